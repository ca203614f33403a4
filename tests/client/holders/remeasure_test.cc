// Goal: constants that were measured under load recover, through calls over several holders and
// without a request for it. A holder is measured again once for a doubt, and at growing intervals.
// Method: holders whose replies report kernel times from a script; a clock advanced by hand.

#include "client/remeasure.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "client/call/route.h"
#include "client/cost/doubts.h"
#include "client/explain.h"
#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_holder.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::TestFleet;
using test::TestGeometry;

constexpr uint32_t kTokens = 64;

// Three holders of a chunk each. A kernel call takes 20 us, and 20 ns a query row and token. A
// loaded holder takes `slow` times as long.
struct LoadedHolders : testing::Test {
  LoadedHolders() {
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    requester = *Requester::Create(options, &holder, &holder);
    published = *requester->Resolve("c", "", test::Soon());
  }
  void Serve(const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
    AttendRequest request;
    const size_t bytes = sizeof(header) + header.body_bytes;
    CKV_CHECK(DecodeAttendRequest(header, lane.request(arrival.slot).first(bytes), corpus.geometry,
                                  request)
                  .ok());
    double row_tokens = 0;
    for (const AttendSegment& segment : request.segments) {
      for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
        const PieceEntry& piece = request.pieces[i];
        row_tokens += segment.row_count * (piece.index_begin == kDense ? kTokens : piece.k);
      }
    }
    const uint32_t chunk = request.pieces.front().handle - 1;
    if (header.row_count == 64) ++measured[chunk];
    const double us = (20 + 0.02 * row_tokens) * slow[chunk];
    holder.AnswerZeros(header, lane, arrival.slot, static_cast<uint32_t>(us * 1e3));
  }
  absl::Status Attend() {
    const std::vector<uint16_t> q(size_t{16} * corpus.geometry.d_qk);
    test::Answer answer(16, corpus.geometry.d_v);
    AttendCall call;
    call.corpus = published;
    call.q = {q.data(), 16, corpus.geometry.d_qk};
    call.deadline = test::Soon();
    return requester->Attend(call, answer.View(), nullptr);
  }
  absl::StatusOr<Explanation> Explain() {
    ExplainCall call;
    call.corpus = published;
    call.query_rows = 16;
    call.deadline = test::Soon();
    return requester->Explain(call);
  }
  // Returns the kernel time of each holder by the cost model, in microseconds. Queries no holder.
  std::array<double, 3> KernelTimes() {
    std::array<double, 3> times{};
    const auto estimates = requester->Estimate({.corpus = published, .query_rows = 16});
    EXPECT_TRUE(estimates.ok()) << estimates.status();
    for (size_t i = 0; i < 3; ++i) {
      times[i] =
          (*estimates)[i].decision.cost(Primitive::kRoute).compute_us / corpus.geometry.layers;
    }
    return times;
  }
  static constexpr double kIdleUs = 20 + 0.02 * 16 * kTokens;
  bool Healed() {
    looked = KernelTimes();
    return std::all_of(looked.begin(), looked.end(),
                       [](double us) { return us > kIdleUs / 1.5 && us < kIdleUs * 1.5; });
  }
  // A measurement in progress counts as another requester, whose rows cost as much again.
  bool HealsSoon() {
    const Instant until = test::Soon();
    bool healed = Healed();
    for (; !healed && Clock::Real()->Now() < until; healed = Healed()) sched_yield();
    return healed;
  }

  std::array<double, 3> looked{};  // the times of the last check
  std::array<std::atomic<double>, 3> slow{1, 1, 1};
  std::array<std::atomic<int>, 3> measured{};  // attends of 64 rows: three for each measurement
  test::TestCorpus corpus = test::MakeTestCorpus(TestGeometry(), {kTokens, kTokens, kTokens}, 1);
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  test::FakeHolder holder{
      fabric.get(),
      corpus.Publish("c", "", {{TestFleet::Name(0)}, {TestFleet::Name(1)}, {TestFleet::Name(2)}}),
      [this](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
        Serve(header, lane, arrival);
      }};
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};

TEST_F(LoadedHolders, ABaseThatWasMeasuredUnderLoadHealsThroughCallsOverAllOfThem) {
  slow[0] = 100, slow[1] = 0.01, slow[2] = 3;
  const auto loaded = Explain();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_GT(KernelTimes()[0], 50 * kIdleUs);
  for (auto& factor : slow) factor = 1;
  for (int calls = 0; calls < 100; ++calls) ASSERT_TRUE(Attend().ok());
  EXPECT_TRUE(HealsSoon()) << testing::PrintToString(looked);
  // Each was measured once while it was loaded, and not much more often than once since.
  for (const auto& count : measured) {
    EXPECT_GE(count, 3);
    EXPECT_LE(count, 3 * 4);
  }
}

// Explain does not wait for the thread. It measures doubted constants itself.
TEST_F(LoadedHolders, ExplainMeasuresWhatIsDoubted) {
  slow[1] = 300;
  ASSERT_TRUE(Explain().ok());
  slow[1] = 1;
  for (int i = 0; i < 2 * DoubtCount::kCount; ++i) ASSERT_TRUE(Attend().ok());
  const auto explained = Explain();
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_TRUE(HealsSoon()) << testing::PrintToString(looked);
}

// Rounds over several holders show how far predictions are off.
TEST_F(LoadedHolders, RoundsOfACallOverSeveralAreJudged) {
  ASSERT_TRUE(Explain().ok());
  for (uint32_t i = 0; i < 2 * LiveError::kSampleCountMin; ++i) ASSERT_TRUE(Attend().ok());
  for (const HolderView& view : requester->KnownHolders()) {
    EXPECT_TRUE(view.model_error.has_value()) << view.member.id.name;
    uint64_t judged = 0;
    for (const uint64_t count : view.route_ratios.counts) judged += count;
    EXPECT_GT(judged, 0u);
  }
}

TEST_F(LoadedHolders, UnlikeHoldersOfOneTargetAreNamed) {
  DecisionInput input;
  input.query_rows = 16;
  input.geometry = TestGeometry();
  Candidate one;
  one.fabric = FabricConstants{10, 1e9};
  one.compute.base_us = 10;
  input.candidates = {one, one, one};
  input.candidates[1].compute.base_us = 45;
  std::vector<DoubtedHolder> holders = {{"h1", KernelTargetId::kAvx2, 0.1},
                                        {"h2", KernelTargetId::kAvx2, {}},
                                        {"h3", KernelTargetId::kUnknown, {}}};
  EXPECT_THAT(Doubts(input, holders),
              testing::ElementsAre(testing::StartsWith("h2 takes 4.5 x as long as h1")));
  input.candidates[1].compute.base_us = 35;
  EXPECT_TRUE(Doubts(input, holders).empty());
  input.candidates[1].compute.base_us = 1000;
  holders[1].target = KernelTargetId::kAvx3;
  EXPECT_TRUE(Doubts(input, holders).empty()) << "of another target";
  holders[0].model_error = 0.4;
  EXPECT_THAT(Doubts(input, holders),
              testing::ElementsAre(testing::StartsWith("h1: the model is off by 40 %")));
  holders[0].model_error.reset();
  // Two threads of holders and the requester's own on two processors.
  input.candidates[0].seat = input.candidates[2].seat = {kThisHost, 1, 2};
  EXPECT_THAT(Doubts(input, holders),
              testing::ElementsAre(testing::StartsWith("h1, h3 and this requester share 2")));
  EXPECT_THAT(Doubts(input, holders), testing::ElementsAre(testing::HasSubstr("not counted")));
  input.candidates[0].seat.processors = input.candidates[2].seat.processors = 1;
  EXPECT_THAT(Doubts(input, holders), testing::ElementsAre(testing::HasSubstr("which is counted")));
  input.candidates[0].seat.processors = input.candidates[2].seat.processors = 3;
  EXPECT_TRUE(Doubts(input, holders).empty());
}

// A peer with constants that replies disagree with.
struct RemeasurerTest : testing::Test {
  void MakeDoubted(HolderPeer& peer) {
    const Geometry geometry = TestGeometry();
    const SharedRun run = {1, 1};
    peer.set_compute(geometry.widths(), {.base_us = 1000}, {});
    for (int32_t i = 0; i < DoubtCount::kCount; ++i) {
      peer.ObserveAttend({.geometry = geometry, .rows = 1, .runs = {&run, 1}, .compute_ns = 1000});
    }
  }

  ManualClock clock;
  TestFleet fleet{{}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
};

TEST_F(RemeasurerTest, RemeasuresOnlyDoubtedHoldersAndEverMoreRarely) {
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  (void)*peers.Find(TestFleet::Name(1));
  std::vector<Instant> times;
  bool answers = false;
  Remeasurer remeasurer(&clock, &peers,
                        [&](HolderPeer& requested, Instant deadline) -> absl::Status {
                          EXPECT_EQ(&requested, &peer);
                          EXPECT_EQ(deadline, clock.Now() + Remeasurer::kTimeout);
                          times.push_back(clock.Now());
                          if (!answers) return absl::UnavailableError("does not answer");
                          requested.set_compute(TestGeometry().widths(), {.base_us = 1}, {});
                          return absl::OkStatus();
                        });
  clock.Advance(Remeasurer::kPauseMax);
  EXPECT_EQ(remeasurer.Step(clock.Now()), kInstantMax) << "nothing is doubted";
  MakeDoubted(peer);
  Duration pause = Remeasurer::kPauseMin;
  for (int i = 0; i < 20; ++i) {
    const Instant next = remeasurer.Step(clock.Now());
    EXPECT_EQ(next, clock.Now() + pause);
    pause = std::min(2 * pause, Remeasurer::kPauseMax);
    clock.Advance(next - clock.Now() - Duration(1));
    EXPECT_EQ(remeasurer.Step(clock.Now()), next) << "not before";
    clock.Advance(Duration(1));
  }
  EXPECT_EQ(times.size(), 20u);
  answers = true;
  EXPECT_EQ(remeasurer.Step(clock.Now()), kInstantMax);
  EXPECT_TRUE(peers.Doubted().empty());
  // A holder that is doubted again at once waits for its pause.
  MakeDoubted(peer);
  const Instant next = remeasurer.Step(clock.Now());
  EXPECT_EQ(next, clock.Now() + Remeasurer::kPauseMax);
  clock.Advance(2 * Remeasurer::kPauseMax);
  EXPECT_EQ(remeasurer.Step(clock.Now()), kInstantMax);
  // After a long time without a doubt it does not wait.
  clock.Advance(2 * Remeasurer::kPauseMax);
  answers = false;
  MakeDoubted(peer);
  EXPECT_EQ(remeasurer.Step(clock.Now()), clock.Now() + Remeasurer::kPauseMin);
}

TEST_F(RemeasurerTest, ItsThreadWakesForADoubt) {
  HolderPeer& peer = **peers.Find(TestFleet::Name(0));
  std::atomic<int> measured{0};
  Remeasurer remeasurer(Clock::Real(), &peers, [&](HolderPeer& requested, Instant) {
    requested.set_compute(TestGeometry().widths(), {.base_us = 1}, {});
    ++measured;
    return absl::OkStatus();
  });
  remeasurer.Start();
  remeasurer.Start();
  MakeDoubted(peer);
  const Instant until = test::Soon();
  while (measured == 0 && Clock::Real()->Now() < until) sched_yield();
  EXPECT_EQ(measured, 1);
}

}  // namespace
}  // namespace ckv
