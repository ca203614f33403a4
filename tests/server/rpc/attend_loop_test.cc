// Goal: one thread drives the attends of many callers; none of them waits for another's holder.
// Method: real holders in this process; calls of others take the call contexts.

#include "server/rpc/attend_loop.h"

#include <deque>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::Soon;

constexpr uint32_t kQueryValues = 96, kAnswerValues = 64, kRows = 12;

class AttendLoopTest : public testing::Test {
 protected:
  static constexpr uint32_t kCallCountMax = 3;

  struct Attend {
    Answer answer{kRows, kAnswerValues};
    AttendJob job;
    absl::Status status = absl::UnknownError("not done");
  };

  AttendLoopTest() {
    cluster_.fleet.Load("c", corpus_, {0, 1, 0, 1, 1});
    const ContextPart part = {cluster_.Resolve(), {}};
    context_ = *cluster_.requester->Open({.parts = {&part, 1}}, Soon());
    segment_ = {.row_count = kRows, .context = &context_};
  }
  LayerCall Call(uint32_t layer) {
    LayerCall call = {
        .layer = layer, .q = {q_.data(), kRows, kQueryValues}, .segments = {&segment_, 1}};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return call;
  }
  Answer Blocking(uint32_t layer) {
    Answer answer(kRows, kAnswerValues);
    EXPECT_TRUE(cluster_.requester->Attend(Call(layer), answer.View()).ok());
    return answer;
  }
  Attend& Post(uint32_t layer, Instant deadline = Soon()) {
    Attend& attend = attends_.emplace_back();
    attend.job.call = Call(layer);
    attend.job.call.deadline = deadline;
    attend.job.out = attend.answer.View();
    attend.job.done = [this, &attend](absl::Status status) {
      absl::MutexLock lock(&mu_);
      attend.status = std::move(status);
      ++done_count_;
    };
    loop_->Post(&attend.job);
    return attend;
  }
  void AwaitAll() {
    absl::MutexLock lock(&mu_);
    const auto all = [this] { return done_count_ == attends_.size(); };
    ASSERT_TRUE(Clock::Real()->Await(mu_, absl::Condition(&all), Soon()));
  }

  std::mt19937 rng_{5};
  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::TestGeometry(), {40, 9, 130, 33, 70}, 4);
  const std::vector<uint16_t> q_ = test::RandomBf16(kRows * kQueryValues, rng_);
  const std::unique_ptr<Fabric> fabric_ = NewShmFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 2, test::SmallShape(), nullptr, kCallCountMax};
  Context context_;
  Segment segment_;
  absl::Mutex mu_;
  size_t done_count_ = 0;
  std::deque<Attend> attends_;
  std::unique_ptr<AttendLoop> loop_ = std::make_unique<AttendLoop>(
      cluster_.requester.get(), Clock::Real(), std::chrono::microseconds(50));
};

TEST_F(AttendLoopTest, MoreJobsThanThereAreCallContexts) {
  const Answer want[] = {Blocking(0), Blocking(1), Blocking(2)};
  for (uint32_t i = 0; i < 60; ++i) Post(i % 3);
  AwaitAll();
  for (uint32_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(attends_[i].status.ok()) << attends_[i].status;
    EXPECT_TRUE(attends_[i].answer.SameBits(want[i % 3])) << i;
    EXPECT_EQ(attends_[i].job.report.holder_count, 2u);
  }
}

// Others hold every call context: a job waits in their queue, and ends there at its deadline.
TEST_F(AttendLoopTest, JobsWaitForTheCallContextsOfOthers) {
  const Answer want = Blocking(0);
  std::vector<Answer> answers(kCallCountMax, Answer(kRows, kAnswerValues));
  std::vector<Ticket> held;
  for (Answer& answer : answers)
    held.push_back(*cluster_.requester->Submit(Call(0), answer.View()));
  const Attend& late = Post(0, Clock::Real()->Now() + std::chrono::milliseconds(20));
  AwaitAll();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status)) << late.status;
  EXPECT_TRUE(late.answer.Untouched());
  // Behind a job that may wait for long, one that may not.
  const Attend& waits = Post(0);
  const Attend& ahead = Post(0);
  const Attend& short_one = Post(0, Clock::Real()->Now() + std::chrono::milliseconds(20));
  {
    absl::MutexLock lock(&mu_);
    const auto ended = [&] { return !absl::IsUnknown(short_one.status); };
    ASSERT_TRUE(Clock::Real()->Await(mu_, absl::Condition(&ended), Soon()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(short_one.status)) << short_one.status;
    EXPECT_TRUE(absl::IsUnknown(waits.status) && absl::IsUnknown(ahead.status));
  }
  held.clear();
  AwaitAll();
  EXPECT_TRUE(ahead.answer.SameBits(want));
  EXPECT_TRUE(waits.status.ok()) << waits.status;
  EXPECT_TRUE(waits.answer.SameBits(want));
}

TEST_F(AttendLoopTest, AnErrorEndsOneJobOnly) {
  const Answer want = Blocking(1);
  const Attend& wrong = Post(99);
  const Attend& passed = Post(1, Clock::Real()->Now());
  const Attend& right = Post(1);
  AwaitAll();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong.status)) << wrong.status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(passed.status)) << passed.status;
  EXPECT_TRUE(right.status.ok()) << right.status;
  EXPECT_TRUE(right.answer.SameBits(want));
}

TEST_F(AttendLoopTest, AnUnwantedJobEndsWithoutItsHolder) {
  cluster_.fleet.StopHolder(1);
  for (int i = 0; i < 30; ++i) {
    Attend& attend = Post(0);
    attend.job.unwanted.store(true);
    loop_->Wake();
  }
  AwaitAll();
  for (const Attend& attend : attends_) {
    // A helper may have been at work on it.
    EXPECT_TRUE(absl::IsCancelled(attend.status) || absl::IsUnavailable(attend.status));
    EXPECT_TRUE(attend.answer.Untouched());
  }
}

}  // namespace
}  // namespace ckv
