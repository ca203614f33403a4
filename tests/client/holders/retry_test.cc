// Goal: a requester waits as an overloaded holder requests, retries rarely enough, and reports the
// hint to the caller.
// Method: a holder that refuses a set number of times.

#include "client/holders/retry.h"

#include <thread>

#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_holder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using test::Answer;
using test::FakeHolder;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;
using testing::EndsWith;
using testing::HasSubstr;

TEST(RetryAfter, IsSentWithTheStatus) {
  const absl::Status plain = absl::ResourceExhaustedError("the store is full");
  EXPECT_EQ(RetryAfterOf(plain), std::nullopt);
  EXPECT_EQ(RetryAfterOf(absl::OkStatus()), std::nullopt);
  const absl::Status hinted = WithRetryAfter(plain, 250);
  EXPECT_EQ(hinted.code(), plain.code());
  EXPECT_EQ(hinted.message(), "the store is full; retry in 250 us");
  EXPECT_EQ(RetryAfterOf(hinted), std::chrono::microseconds(250));
  // A text that only looks like a hint is none: a holder writes its text itself.
  EXPECT_EQ(RetryAfterOf(absl::ResourceExhaustedError("retry in 9 us")), std::nullopt);
}

TEST(RetryBudgetTest, AllowsATenthOfTheRequestsAfterABurst) {
  RetryBudget budget;
  for (uint32_t i = 0; i < RetryBudget::kBurstMax; ++i) EXPECT_TRUE(budget.Spend());
  EXPECT_FALSE(budget.Spend());
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < RetryBudget::kRequestsPerRetry; ++i) budget.Earn();
    EXPECT_TRUE(budget.Spend());
    EXPECT_FALSE(budget.Spend());
  }
  // Unused retries are not saved up beyond the burst.
  for (int i = 0; i < 1000; ++i) budget.Earn();
  for (uint32_t i = 0; i < RetryBudget::kBurstMax; ++i) EXPECT_TRUE(budget.Spend());
  EXPECT_FALSE(budget.Spend());
}

struct Overload : testing::Test {
  void SetUp() override {
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &holder, &holder);
    published = *requester->Resolve("c", "", Soon());
  }
  void Serve(const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
    ++requested;
    if (refusals <= 0 || --refusals < 0) return holder.AnswerZeros(header, lane, arrival.slot);
    lane.Post(arrival.slot, EncodeErrorReply(header, absl::Status(code, "too much to do"),
                                             retry_after_us, lane.reply(arrival.slot)))
        .IgnoreError();
  }
  absl::Status Attend(Instant deadline = Soon()) {
    AttendCall call;
    call.corpus = published;
    call.q = {q.data(), 4, 96};
    call.deadline = deadline;
    Answer out(4, 64);
    requested = 0;
    absl::Status status = requester->Attend(call, out.View(), nullptr);
    EXPECT_TRUE(status.ok() || out.Untouched());
    return status;
  }
  absl::Status Fetch() {
    FetchCall call;
    call.corpus = published;
    call.chunk_end = call.tensor_end = 1;
    call.deadline = Soon();
    requested = 0;
    return requester->Fetch(call, [](const FetchedRows&) { return absl::OkStatus(); });
  }

  std::atomic<int> refusals{0}, requested{0};
  std::atomic<uint32_t> retry_after_us{2000};
  std::atomic<absl::StatusCode> code{absl::StatusCode::kResourceExhausted};
  std::mt19937 rng{1};
  std::vector<uint16_t> q = RandomBf16(4 * 96, rng);
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5}, 1);
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  FakeHolder holder{fabric.get(), corpus.Publish("c", "", {{TestFleet::Name(0)}}),
                    [this](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
                      Serve(header, lane, arrival);
                    }};
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};

TEST_F(Overload, RetriesTwiceAfterTheHint) {
  refusals = 2;
  const Instant begin = Clock::Real()->Now();
  const absl::Status status = Attend();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(requested, 3);
  EXPECT_GE(Clock::Real()->Now() - begin, milliseconds(4));
  EXPECT_EQ(requester->Stats().retry_count, 2u);
}

TEST_F(Overload, RetriesAtMostTwiceAndThenReturnsTheHint) {
  refusals = 100;
  const absl::Status status = Attend();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(requested, 1 + kRetryCountMax);
  EXPECT_EQ(RetryAfterOf(status), milliseconds(2));
  EXPECT_THAT(std::string(status.message()), HasSubstr("holder h0"));
  EXPECT_THAT(std::string(status.message()), EndsWith("too much to do; retry in 2000 us"));
  const absl::Status fetched = Fetch();
  EXPECT_EQ(requested, 1 + kRetryCountMax);
  EXPECT_EQ(RetryAfterOf(fetched), milliseconds(2));
  EXPECT_EQ(requester->Holders()[0].in_flight, 0u);
}

TEST_F(Overload, DoesNotRetryPastTheDeadlineNorForLong) {
  refusals = 100;
  retry_after_us = 900'000;
  EXPECT_TRUE(RetryAfterOf(Attend(Soon(milliseconds(800)))).has_value());
  EXPECT_EQ(requested, 1);
  retry_after_us = 1'000'001;
  EXPECT_TRUE(RetryAfterOf(Attend()).has_value());
  EXPECT_EQ(requested, 1);
  EXPECT_EQ(requester->Stats().retry_count, 0u);
}

TEST_F(Overload, DoesNotRetryWithoutAHintNorForAnotherError) {
  refusals = 1;
  retry_after_us = 0;
  EXPECT_EQ(Attend().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(requested, 1);
  refusals = 1;
  retry_after_us = 1000;
  code = absl::StatusCode::kInternal;
  EXPECT_EQ(Attend().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(requested, 1);
}

// A holder that refuses everything gets a tenth more requests, not three times as many.
TEST_F(Overload, TheBudgetBoundsTheWhole) {
  retry_after_us = 1;
  refusals = 1 << 20;
  int all = 0;
  constexpr int kCalls = 100;
  for (int i = 0; i < kCalls; ++i) {
    EXPECT_FALSE(Attend().ok());
    all += requested;
  }
  const RequesterStats stats = requester->Stats();
  EXPECT_EQ(all, kCalls + int(stats.retry_count));
  EXPECT_LE(stats.retry_count, RetryBudget::kBurstMax + kCalls / RetryBudget::kRequestsPerRetry);
  EXPECT_GE(stats.retry_refused_count, 80u);
}

}  // namespace
}  // namespace ckv
