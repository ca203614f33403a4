// Goal: an attend whose holder is late is answered by a replica, with the same bits, and a late
// holder is queried again once it answers. Method: two holders of every chunk in this process; the
// replies of one lane are held back. Every wait is the call's own.

#include "client/call/hedge.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/stall_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;

constexpr uint32_t kHedgedRows = 8;

struct HedgeTest : testing::Test {
  HedgeTest() {
    for (size_t i = 0; i < 2; ++i) fleet.StartHolder(i);
    fleet.Load("c", corpus, {0, 0});
    fleet.Lease("c", corpus, 1, {0, 1});
    RequesterOptions options;
    options.fabrics = {&stalling};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    call.corpus = *requester->Resolve("c", "", Soon());
    call.q = {q.data(), kHedgedRows, 96};
    call.wire = PartialDtype::kF32;
    right = Attended();
    EXPECT_EQ(stalling.lane_count(), 1u);
    first_ = RowsOf(0) > 0 ? 0 : 1;
    // Both holders have turns and enough calls to know what is late, and the budget of hedges is
    // full, whatever was late meanwhile.
    for (uint32_t i = 0; i < 400; ++i) EXPECT_TRUE(Attended().SameBits(right));
  }
  Answer Attended() {
    Answer answer(kHedgedRows, 64);
    call.deadline = Soon();
    const absl::Status status = requester->Attend(call, answer.View(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }
  // Calls until a hedge has won. On a busy machine, other calls may be late and hedged, too.
  void AttendUntilHedgeWins() {
    const uint64_t before = requester->Stats().hedge_won_count;
    for (const Instant end = Soon(); requester->Stats().hedge_won_count == before;) {
      ASSERT_LT(Clock::Real()->Now(), end);
      EXPECT_TRUE(Attended().SameBits(right));
    }
  }
  uint64_t RowsOf(size_t holder) { return fleet.holder(holder).stats().query_row_count; }

  test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {40, 50}, 3);
  std::mt19937 rng{3};
  std::vector<uint16_t> q = RandomBf16(kHedgedRows * 96, rng);
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  std::function<bool(uint32_t)> stalled = [](uint32_t) { return false; };
  std::atomic<bool> stalls{false};
  test::StallFabric stalling{fabric.get(),
                             [this](uint32_t lane) { return stalls && stalled(lane); }};
  test::TestFleet fleet{{fabric.get()}};
  std::unique_ptr<Requester> requester;
  AttendCall call;
  Answer right{kHedgedRows, 64};
  size_t first_ = 0;  // the holder that lane 0 leads to
};

TEST_F(HedgeTest, AReplicaAnswersForALateHolder) {
  stalled = [](uint32_t lane) { return lane == 0; };
  stalls = true;
  AttendUntilHedgeWins();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(Attended().SameBits(right));
}

TEST_F(HedgeTest, AHolderThatAnswersLateIsQueriedAgain) {
  stalled = [](uint32_t lane) { return lane == 0; };
  stalls = true;
  AttendUntilHedgeWins();
  stalls = false;
  const uint64_t queried = RowsOf(first_);
  // More than the request that was given up, which its holder may still count.
  for (const Instant end = Soon(); RowsOf(first_) <= queried + kHedgedRows;) {
    ASSERT_LT(Clock::Real()->Now(), end);
    EXPECT_TRUE(Attended().SameBits(right));
  }
}

// Both replies arrive at the same time: one of them is the answer, and nothing is merged twice.
TEST_F(HedgeTest, OneOfTwoAnswersCounts) {
  for (int round = 0; round < 5; ++round) {
    const uint64_t hedges = requester->Stats().hedge_count;
    stalled = [this, hedges](uint32_t) { return requester->Stats().hedge_count == hedges; };
    stalls = true;
    for (const Instant end = Soon(); requester->Stats().hedge_count == hedges;) {
      ASSERT_LT(Clock::Real()->Now(), end);
      EXPECT_TRUE(Attended().SameBits(right));
    }
    stalls = false;
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(Attended().SameBits(right));
  }
}

TEST_F(HedgeTest, IfTheReplicaIsGoneTheLateHolderAnswers) {
  fleet.StopHolder(1 - first_);
  const uint64_t hedges = requester->Stats().hedge_count;
  // Until a hedge was tried, or the call found the replica gone because it had chosen that one. It
  // may know before that the replica is gone, and then hedges nothing.
  const Instant end = Soon(std::chrono::milliseconds(500));
  stalled = [this, hedges, end](uint32_t) {
    const RequesterStats stats = requester->Stats();
    return stats.hedge_count == hedges && stats.failover_count + stats.reopen_count == 0 &&
           Clock::Real()->Now() < end;
  };
  stalls = true;
  EXPECT_TRUE(Attended().SameBits(right));
}

// Tickets submit the call of HedgeTest.
struct HedgeTicketTest : HedgeTest {
  HedgeTicketTest() {
    EXPECT_TRUE(context.ok()) << context.status();
    segment.context = &*context;
    layer.q = call.q;
    layer.segments = {&segment, 1};
    layer.wire = PartialDtype::kF32;
    layer.deadline = Soon();
  }
  absl::StatusOr<Context> OpenContext() {
    ChunkUse uses[] = {{0, 0}, {1, 0}};
    const ContextPart part = {.corpus = call.corpus, .chunks = uses};
    return requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
  }

  absl::StatusOr<Context> context = OpenContext();
  Segment segment = {.row_count = kHedgedRows};
  LayerCall layer;
};

TEST_F(HedgeTicketTest, ATicketIsHedged) {
  stalled = [](uint32_t lane) { return lane == 0; };
  stalls = true;
  const uint64_t before = requester->Stats().hedge_won_count;
  for (const Instant end = Soon(); requester->Stats().hedge_won_count == before;) {
    ASSERT_LT(Clock::Real()->Now(), end);
    layer.deadline = Soon();
    Answer answer(kHedgedRows, 64);
    auto ticket = requester->Submit(layer, answer.View(), nullptr);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    TicketProgress progress = ticket->TryPoll();
    while (progress == TicketProgress::kInFlight) progress = ticket->TryPoll();
    if (progress == TicketProgress::kMustWait) progress = ticket->Work();
    EXPECT_EQ(progress, TicketProgress::kDone);
    const absl::Status status = ticket->Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(answer.SameBits(right));
  }
}

// Two calls are late, and one hedge at a time is allowed. The second is hedged after the first.
TEST_F(HedgeTicketTest, ACallThatWasRefusedAHedgeGetsOneLater) {
  constexpr uint32_t kEach = ~0u;
  std::atomic<uint32_t> stalled_lane{kEach};
  stalled = [&](uint32_t lane) { return stalled_lane == kEach || stalled_lane == lane; };
  stalls = true;
  // Two of three calls query the same holder.
  std::vector<Answer> answers(3, Answer(kHedgedRows, 64));
  std::vector<Ticket> tickets;
  std::vector<size_t> at[2];  // the tickets at each holder
  uint32_t lanes[3];          // of the tickets
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t before[2] = {RowsOf(0), RowsOf(1)};
    auto ticket = requester->Submit(layer, answers[i].View(), nullptr);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    // A thread may open lanes meanwhile, so their number does not show which one this is.
    lanes[i] = test::StallLane::LastPosted();
    tickets.push_back(*std::move(ticket));
    const Instant end = Soon();
    while (RowsOf(0) + RowsOf(1) == before[0] + before[1]) ASSERT_LT(Clock::Real()->Now(), end);
    at[RowsOf(0) == before[0] ? 1 : 0].push_back(i);
  }
  const std::vector<size_t>& both = at[0].size() >= 2 ? at[0] : at[1];
  Ticket& first = tickets[both[0]];
  Ticket& second = tickets[both[1]];
  const uint64_t hedges = requester->Stats().hedge_count;
  while (requester->Stats().hedge_count == hedges) ASSERT_FALSE(first.Poll());
  // Far longer than what is late.
  const Instant refused = Clock::Real()->Now() + 20 * HedgedAttend::kAfterMin;
  while (Clock::Real()->Now() < refused) ASSERT_FALSE(second.Poll());
  EXPECT_EQ(requester->Stats().hedge_count, hedges + 1);
  stalled_lane = lanes[both[1]];
  for (const Instant end = Soon(); !first.Poll();) ASSERT_LT(Clock::Real()->Now(), end);
  const uint64_t won = requester->Stats().hedge_won_count;
  for (const Instant end = Soon(); !second.Poll();) ASSERT_LT(Clock::Real()->Now(), end);
  EXPECT_EQ(requester->Stats().hedge_won_count, won + 1);
  for (const size_t i : both) EXPECT_TRUE(answers[i].SameBits(right));
  tickets.clear();  // one of them is still in flight
}

}  // namespace
}  // namespace ckv
