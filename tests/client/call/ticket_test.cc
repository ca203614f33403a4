// Goal: a submitted call ends as the blocking one does, holds no thread, and can be cancelled at
// any time. Late replies are dropped.
// Method: real holders in this process, over a fabric that can lose replies.

#include "client/ticket.h"

#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "client/call/ticket_wait.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/fault_fabric.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::Shortly;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

constexpr uint32_t kQueryValues = 96, kAnswerValues = 64, kTicketRows = 30;

class TicketTest : public testing::Test {
 protected:
  static constexpr uint32_t kCallCountMax = 4;

  TicketTest() {
    // Calls of f32 keep to the kernel target of the other holders, so no call queries holder 2
    // unless another holder fails (client/holders/replica_choice.h).
    cluster_.fleet.SetKernelTarget(2, KernelTargetId::kScalar);
    cluster_.fleet.Load("c", corpus_, {0, 1, 0, 1, 1});
    Open();
  }
  void Open() {
    const ContextPart part = {cluster_.Resolve(), {}};
    auto context = cluster_.requester->Open({.parts = {&part, 1}}, Soon());
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    segment_ = {.row_count = kTicketRows, .context = &context_};
  }
  LayerCall Call(uint32_t layer = 0) {
    LayerCall call;
    call.layer = layer;
    call.q = {q_.data(), kTicketRows, kQueryValues};
    call.segments = {&segment_, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return call;
  }
  Answer Blocking(uint32_t layer = 0) {
    Answer answer(kTicketRows, kAnswerValues);
    const absl::Status status = cluster_.requester->Attend(Call(layer), answer.View());
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }
  Ticket Submit(const LayerCall& call, Answer& answer) {
    auto ticket = cluster_.requester->Submit(call, answer.View());
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return *std::move(ticket);
  }

  // Puts the chunks of holder 1 on holder 2, too, makes a call, and stops holder 1. Returns the
  // answer.
  Answer StopReplica() {
    cluster_.fleet.Lease("c", corpus_, 2, {1, 3, 4});
    cluster_.requester->Invalidate("c");
    Open();
    Answer answer = Blocking();
    EXPECT_EQ(cluster_.fleet.holder(2).stats().query_row_count, 0u);
    cluster_.fleet.StopHolder(1);
    return answer;
  }
  // Stops a replica, submits a call, and then runs `meanwhile`. Expects an answer with the same
  // bits.
  template <typename Meanwhile>
  void ExpectReplicaAnswers(Meanwhile meanwhile) {
    const Answer want = StopReplica();
    Answer got(kTicketRows, kAnswerValues);
    Ticket ticket = Submit(Call(), got);
    meanwhile();
    const absl::Status status = ticket.Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got.SameBits(want));
    EXPECT_GE(cluster_.requester->Stats().failover_count, 1u);
  }

  std::mt19937 rng_{5};
  test::TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {40, 9, 130, 33, 70}, 4);
  std::vector<uint16_t> q_ = RandomBf16(kTicketRows * kQueryValues, rng_);
  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 3, SmallShape(), nullptr, kCallCountMax};
  Context context_;
  Segment segment_;
};

TEST_F(TicketTest, ManyAreInFlightOnOneThread) {
  const Answer want[] = {Blocking(0), Blocking(1), Blocking(2)};
  std::vector<Answer> got(3, Answer(kTicketRows, kAnswerValues));
  std::vector<Ticket> tickets;
  for (uint32_t i = 0; i < 3; ++i) tickets.push_back(Submit(Call(i), got[i]));
  // In any order, and more than once.
  for (const size_t i : {2, 0, 1, 2}) {
    const absl::Status status = tickets[i].Wait();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(tickets[i].Poll());
    EXPECT_TRUE(got[i].SameBits(want[i])) << i;
  }
}

TEST_F(TicketTest, PollAloneCompletesIt) {
  const Answer want = Blocking();
  Answer got(kTicketRows, kAnswerValues);
  AttendReport report;
  auto ticket = cluster_.requester->Submit(Call(), got.View(), &report);
  ASSERT_TRUE(ticket.ok());
  const Instant give_up = Soon();
  while (!ticket->Poll()) {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    std::this_thread::yield();
  }
  EXPECT_TRUE(ticket->Wait().ok());
  EXPECT_TRUE(got.SameBits(want));
  EXPECT_EQ(report.holder_count, 2u);
  EXPECT_TRUE(report.same_bits_anywhere);
}

TEST_F(TicketTest, MayMoveToAnotherThread) {
  const Answer want = Blocking();
  Answer got(kTicketRows, kAnswerValues);
  Ticket ticket = Submit(Call(), got);
  absl::Status status;
  std::thread([&] { status = ticket.Wait(); }).join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(got.SameBits(want));
}

TEST_F(TicketTest, ACancelledCallWritesNothingAndDisturbsNoOther) {
  const Answer want = Blocking();
  for (int i = 0; i < 50; ++i) {
    Answer got(kTicketRows, kAnswerValues);
    {
      Ticket ticket = Submit(Call(), got);
      if (i % 3 == 0) (void)ticket.Poll();
      const bool done = ticket.Poll();
      ticket.Cancel();
      const absl::Status status = ticket.Wait();
      EXPECT_TRUE(done ? status.ok() : absl::IsCancelled(status)) << status;
      EXPECT_TRUE(done || got.Untouched());
    }
    // The cancelled call's late replies match no request of the next call.
    ASSERT_TRUE(Blocking().SameBits(want)) << i;
  }
  // A ticket is dropped in flight.
  Answer got(kTicketRows, kAnswerValues);
  (void)Submit(Call(), got);
  EXPECT_TRUE(Blocking().SameBits(want));
}

TEST_F(TicketTest, RefusesACallAtOnceIfAllContextsAreInUse) {
  std::vector<Answer> got(kCallCountMax, Answer(kTicketRows, kAnswerValues));
  std::vector<Ticket> tickets;
  for (uint32_t i = 0; i < kCallCountMax; ++i) tickets.push_back(Submit(Call(), got[i]));
  Answer more(kTicketRows, kAnswerValues);
  EXPECT_TRUE(absl::IsResourceExhausted(cluster_.requester->Submit(Call(), more.View()).status()));
  EXPECT_TRUE(tickets[1].Wait().ok());
  EXPECT_TRUE(Submit(Call(), more).Wait().ok());
}

TEST_F(TicketTest, ItsContextMayEndBeforeIt) {
  const Answer want = Blocking();
  Answer got(kTicketRows, kAnswerValues);
  Ticket ticket = Submit(Call(), got);
  context_ = Context();
  EXPECT_TRUE(ticket.Wait().ok());
  EXPECT_TRUE(got.SameBits(want));
}

TEST_F(TicketTest, AReplicaAnswersIfAHolderIsGone) {
  ExpectReplicaAnswers([] {});
}

// Closing a context ends no call in progress, not even one that needs another replica.
TEST_F(TicketTest, AReplicaAnswersForAClosedContext) {
  ExpectReplicaAnswers([this] { context_ = Context(); });
}

TEST_F(TicketTest, WithoutAReplicaItFailsAsTheBlockingCallDoes) {
  cluster_.fleet.StopHolder(1);
  Answer got(kTicketRows, kAnswerValues);
  LayerCall call = Call();
  call.deadline = Shortly();
  const absl::Status blocking = cluster_.requester->Attend(call, got.View());
  call.deadline = Shortly();
  Ticket ticket = Submit(call, got);
  const absl::Status status = ticket.Wait();
  EXPECT_EQ(status.code(), blocking.code()) << status;
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(got.Untouched());
}

// A call that waits for a holder's restart keeps neither a thread nor a call context.
TEST_F(TicketTest, ACallThatWaitsForAHolderKeepsNoContext) {
  const Answer want = Blocking();
  cluster_.fleet.StopHolder(1);
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<Ticket> tickets;
  for (uint32_t i = 0; i < 2 * kCallCountMax; ++i) {
    answers.push_back(std::make_unique<Answer>(kTicketRows, kAnswerValues));
    tickets.push_back(Submit(Call(), *answers.back()));
    while (tickets.back().Work() != TicketProgress::kInFlight) {
      ASSERT_FALSE(tickets.back().Poll());
    }
  }
  cluster_.fleet.StartHolder(1);
  for (const size_t chunk : {1, 3, 4}) {
    ASSERT_TRUE(
        test::PutChunk(cluster_.fleet.holder(1).store(), corpus_.geometry, corpus_.chunks[chunk])
            .ok());
  }
  for (size_t i = 0; i < tickets.size(); ++i) {
    const absl::Status status = tickets[i].Wait();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(answers[i]->SameBits(want));
  }
}

// A call that waited for a holder, and finds no call context to continue in, still ends in time.
TEST_F(TicketTest, WithoutAContextAWaitEndsInTime) {
  cluster_.fleet.StopHolder(1);
  Answer got(kTicketRows, kAnswerValues);
  LayerCall call = Call();
  call.deadline = Shortly();
  Ticket waits = Submit(call, got);
  while (waits.Work() != TicketProgress::kInFlight) ASSERT_FALSE(waits.Poll());
  const ChunkUse use[] = {{0, 0}};  // of holder 0, which is up
  const ContextPart part = {cluster_.Resolve(), use};
  const auto context = cluster_.requester->Open({.parts = {&part, 1}}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  const Segment segment = {.row_count = kTicketRows, .context = &*context};
  call.segments = {&segment, 1};
  call.deadline = Soon();
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<Ticket> others;  // neither polled nor waited for
  for (uint32_t i = 0; i < kCallCountMax; ++i) {
    answers.push_back(std::make_unique<Answer>(kTicketRows, kAnswerValues));
    others.push_back(Submit(call, *answers.back()));
  }
  const absl::Status status = waits.Wait();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.ToString().find("holder h1"), std::string::npos) << status;
}

// TryPoll leaves to others what may wait for a holder: opening a lane, resolving handles.
TEST_F(TicketTest, ATryNeverWaitsForAHolder) {
  const Answer want = Blocking();
  // The one warm context is in use, so that the next call needs lanes of its own.
  Answer first(kTicketRows, kAnswerValues), got(kTicketRows, kAnswerValues);
  Ticket holds = Submit(Call(), first);
  auto ticket = cluster_.requester->TrySubmit(Call(), got.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ticket->TryPoll(), TicketProgress::kMustWait);
  std::thread([&] { EXPECT_TRUE(ticket->Wait().ok()); }).join();
  EXPECT_EQ(ticket->TryPoll(), TicketProgress::kDone);
  EXPECT_TRUE(got.SameBits(want));
  EXPECT_TRUE(holds.Wait().ok());
  // Both contexts are warm now.
  for (int i = 0; i < 2; ++i) {
    Answer warm(kTicketRows, kAnswerValues);
    ticket = cluster_.requester->TrySubmit(Call(), warm.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    TicketWait wait(Clock::Real(), std::chrono::microseconds(10));
    wait.Again();
    TicketProgress progress;
    while ((progress = ticket->TryPoll()) == TicketProgress::kInFlight) {
      const Ticket* const tickets[] = {&*ticket};
      wait.Rest(tickets, /*wake_fd=*/-1);
    }
    ASSERT_EQ(progress, TicketProgress::kDone);
    EXPECT_TRUE(ticket->Wait().ok());
    EXPECT_TRUE(warm.SameBits(want));
  }
}

TEST_F(TicketTest, ATryThatMustWaitEndsAtItsDeadline) {
  test::ShiftedClock clock;
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  options.lane_shape = SmallShape();
  options.call_count_max = 1;
  options.clock = &clock;
  const auto requester = *Requester::Create(options, &cluster_.fleet, &cluster_.fleet);
  Answer got(kTicketRows, kAnswerValues);
  LayerCall call = Call();
  call.deadline = clock.Now() + std::chrono::hours(1);
  auto ticket = requester->TrySubmit(call, got.View());  // it has no lanes yet
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  ASSERT_EQ(ticket->TryPoll(), TicketProgress::kMustWait);
  clock.Advance(std::chrono::hours(2));
  const absl::Status late = ticket->Wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  // A cancelled call leaves no state to the next call on its context. That call fails before it
  // needs a holder.
  call.deadline = clock.Now() + std::chrono::hours(1);
  ticket = requester->TrySubmit(call, got.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  ASSERT_EQ(ticket->TryPoll(), TicketProgress::kMustWait);
  ticket->Cancel();
  const int32_t outside = 1 << 20;
  segment_.selection = {&outside, 1, kTicketRows};
  ticket = requester->TrySubmit(call, got.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->TryPoll(), TicketProgress::kDone);
  EXPECT_TRUE(absl::IsInvalidArgument(ticket->Wait())) << ticket->Wait();
  EXPECT_TRUE(got.Untouched());
}

// If a holder stops while a call is in flight, a caller that may wait queries its replica.
TEST_F(TicketTest, ATryLeavesTheCureToOthers) {
  const Answer want = StopReplica();
  Answer got(kTicketRows, kAnswerValues);
  auto ticket = cluster_.requester->TrySubmit(Call(), got.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  TicketProgress progress;
  const Instant give_up = Soon();
  while ((progress = ticket->TryPoll()) == TicketProgress::kInFlight)
    ASSERT_LT(Clock::Real()->Now(), give_up);
  ASSERT_EQ(progress, TicketProgress::kMustWait);
  EXPECT_TRUE(got.Untouched());
  const absl::Status status = ticket->Wait();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(got.SameBits(want));
}

// Own rows are attended by the first Poll or Wait, and merged once.
TEST_F(TicketTest, OwnRowsAreAttendedOnTheWaitingThread) {
  const auto rows = RandomBf16(12 * kQueryValues, rng_);
  const OwnRows own = {{reinterpret_cast<const std::byte*>(rows.data()), 12, kQueryValues * 2},
                       nullptr};
  segment_.own = {&own, 1};
  const Answer want = Blocking();
  Answer got(kTicketRows, kAnswerValues);
  Ticket ticket = Submit(Call(), got);
  EXPECT_TRUE(ticket.Wait().ok());
  EXPECT_TRUE(got.SameBits(want));
}

TEST(TicketFaults, ALostReplyEndsAtTheDeadline) {
  const auto inner = NewLoopbackFabric(Clock::Real());
  FaultPlan plan;
  plan.drop_reply = 1;
  const auto faulty = NewFaultFabric(inner.get(), Clock::Real(), plan);
  Cluster cluster(inner.get(), 1, SmallShape(), faulty.get());
  const auto corpus = MakeTestCorpus(TestGeometry(), {40}, 4);
  cluster.fleet.Load("c", corpus, {0});
  const ContextPart part = {cluster.Resolve(), {}};
  const auto context = cluster.requester->Open({.parts = {&part, 1}}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  std::mt19937 rng(1);
  const auto q = RandomBf16(4 * kQueryValues, rng);
  const Segment segment = {.row_count = 4, .context = &*context};
  LayerCall call;
  call.q = {q.data(), 4, kQueryValues};
  call.segments = {&segment, 1};
  call.deadline = Soon(std::chrono::milliseconds(30));
  Answer got(4, kAnswerValues);
  auto ticket = cluster.requester->Submit(call, got.View());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  // Polling alone detects it, too.
  while (!ticket->Poll()) std::this_thread::yield();
  const absl::Status status = ticket->Wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(got.Untouched());
}

TEST(Ticket, ADefaultTicketIsDone) {
  Ticket ticket;
  EXPECT_TRUE(ticket.Poll());
  EXPECT_TRUE(ticket.Wait().ok());
  ticket.Cancel();
}

}  // namespace
}  // namespace ckv
