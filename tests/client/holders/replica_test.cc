// Goal: the cheapest of a chunk's holders answer in turns, and another answers if one fails. The
// bits of an answer do not depend on the holder (I2), and nothing is merged twice (I1).

#include "client/holders/replica_choice.h"

#include <algorithm>
#include <array>

#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fault_fabric.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::ShiftedClock;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

// Chunks 0, 1, 3 and 4 are on h0, chunk 2 on h1; h2 answers for 0, 1 and 2 as well, so there are
// three groups. 40 query rows are cut into several blocks.
struct ReplicaTest : testing::Test {
  ReplicaTest() {
    for (size_t i = 0; i < 3; ++i) fleet.StartHolder(i);
    fleet.Load("c", corpus, {0, 0, 1, 0, 0});
    fleet.Lease("c", corpus, 2, {0, 1, 2});
    // So h1 answers for chunk 2 while it can: replicas of one target would take turns.
    SetTargets(1, KernelTargetId::kAvx3, 2, KernelTargetId::kAvx2);
    Connect();
  }
  void Connect(bool resolve = true) {
    RequesterOptions options;
    options.clock = &clock;
    options.fabrics = {fabric.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    if (resolve) call.corpus = *requester->Resolve("c", "", clock.Now() + kTimeout);
    call.q = {q.data(), 40, 96};
    call.wire = PartialDtype::kF32;
  }
  absl::Status Choose(Answer* answer) {
    call.deadline = clock.Now() + kTimeout;
    return requester->Attend(call, answer->View(), nullptr);
  }
  Answer Asked() {
    Answer answer(40, 64);
    const absl::Status status = Choose(&answer);
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }
  uint64_t RequestsOf(size_t holder) { return fleet.holder(holder).stats().request_count; }
  // The directory lists h0 and h`alike` with one kernel target, and h`other` with another.
  void SetTargets(size_t alike, KernelTargetId one, size_t other, KernelTargetId another) {
    fleet.SetKernelTarget(0, one);
    fleet.SetKernelTarget(alike, one);
    fleet.SetKernelTarget(other, another);
  }
  // Makes a call. Returns which of the two was queried for chunk 2; 9 if both or neither.
  size_t AskedOf(size_t one, size_t other) {
    const auto rows_of = [&](size_t i) { return fleet.holder(i).stats().query_row_count; };
    const uint64_t of_one = rows_of(one), of_other = rows_of(other);
    (void)Asked();
    const bool asked_one = rows_of(one) > of_one, asked_other = rows_of(other) > of_other;
    return asked_one == asked_other ? 9 : asked_one ? one : other;
  }
  // Puts the chunks of h1 and h2, which restarted empty.
  void PutAgain() {
    for (const auto& [holder, chunk] : {std::pair(1, 2), {2, 0}, {2, 1}, {2, 2}}) {
      ASSERT_TRUE(
          test::PutChunk(fleet.holder(holder).store(), corpus.geometry, corpus.chunks[chunk]).ok());
    }
  }
  static constexpr Duration kTimeout = std::chrono::seconds(20);

  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64, 130, 0, 33}, 9);
  std::mt19937 rng{9};
  std::vector<uint16_t> q = RandomBf16(40 * 96, rng);
  ShiftedClock clock;
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  std::unique_ptr<Requester> requester;
  AttendCall call;
};

TEST_F(ReplicaTest, AnotherAnswersWithTheSameBits) {
  const Answer before = Asked();
  const size_t requested = RequestsOf(1) > 0 ? 1 : 2, other = 3 - requested;
  const uint64_t of_other = RequestsOf(other);
  fleet.StopHolder(requested);
  EXPECT_TRUE(Asked().SameBits(before));
  EXPECT_GT(RequestsOf(other), of_other);
  EXPECT_EQ(requester->Stats().failover_count, 1u);
  // Later calls avoid the stopped holder: no second failure.
  EXPECT_TRUE(Asked().SameBits(before));
  EXPECT_EQ(requester->Stats().failover_count, 1u);
}

// Chunk 2 is queried at h1 or h2, whichever has the kernel target of the other chunks' holder. That
// holds for a requester's first call, when no lane is up.
TEST_F(ReplicaTest, CallsOfF32KeepToOneKernelTarget) {
  for (const size_t alike : {1, 2}) {
    SCOPED_TRACE(alike);
    const size_t other = 3 - alike;
    SetTargets(alike, KernelTargetId::kAvx3, other, KernelTargetId::kAvx2);
    Connect();
    EXPECT_EQ(AskedOf(alike, other), alike);
    const uint64_t of_other = RequestsOf(other);
    // An answer of two targets is better than none.
    fleet.StopHolder(alike);
    (void)Asked();
    EXPECT_GT(RequestsOf(other), of_other);
    fleet.StartHolder(alike);
    for (const size_t chunk : {0, 1, 2}) {
      if (alike == 1 && chunk != 2) continue;
      ASSERT_TRUE(
          test::PutChunk(fleet.holder(alike).store(), corpus.geometry, corpus.chunks[chunk]).ok());
    }
  }
}

// For a corpus that another requester resolved, the first connection fetches all targets, and the
// choice is made again before anything is sent.
TEST_F(ReplicaTest, TheFirstCallOverACorpusOfAnotherRequesterKeepsToOneTarget) {
  for (const size_t alike : {1, 2}) {
    SCOPED_TRACE(alike);
    SetTargets(alike, KernelTargetId::kAvx3, 3 - alike, KernelTargetId::kAvx2);
    const std::shared_ptr<const Corpus> resolved = call.corpus;
    Connect(/*resolve=*/false);
    call.corpus = resolved;
    EXPECT_EQ(AskedOf(alike, 3 - alike), alike);
  }
}

// A member that reports no target may compute anything.
TEST_F(ReplicaTest, AHolderWithoutAReportedTargetCountsAsAnother) {
  for (const size_t alike : {1, 2}) {
    SCOPED_TRACE(alike);
    SetTargets(alike, KernelTargetId::kAvx3, 3 - alike, KernelTargetId::kUnknown);
    Connect();
    EXPECT_EQ(AskedOf(alike, 3 - alike), alike);
  }
}

TEST_F(ReplicaTest, LeavesAHolderThatReturnsWithAnotherTargetForOneThatKeptIt) {
  for (const bool watched : {true, false}) {
    SCOPED_TRACE(watched ? "the requester watches the directory" : "it finds out by itself");
    SetTargets(1, KernelTargetId::kAvx3, 2, KernelTargetId::kAvx2);
    Connect();
    EXPECT_EQ(AskedOf(1, 2), 1u);
    // Both restart, and have exchanged their targets.
    for (const size_t i : {1, 2}) {
      fleet.StopHolder(i);
      fleet.StartHolder(i);
    }
    PutAgain();
    SetTargets(2, KernelTargetId::kAvx3, 1, KernelTargetId::kAvx2);
    if (watched) {
      requester->OnMemberUp(fleet.member(1));
      requester->OnMemberUp(fleet.member(2));
      // News of an earlier incarnation arrive late.
      Member before = fleet.member(1);
      before.epoch = {1};
      before.kernel_target = KernelTargetId::kAvx3;
      requester->OnMemberUp(before);
    }
    EXPECT_EQ(AskedOf(2, 1), 2u) << "by the first call, though its lane to h1 was up";
  }
}

TEST_F(ReplicaTest, AChunkWithoutAnotherHolderIsAnError) {
  (void)Asked();
  fleet.StopHolder(0);
  Answer answer(40, 64);
  call.deadline = clock.Now() + std::chrono::seconds(2);
  const absl::Status status = requester->Attend(call, answer.View(), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(answer.Untouched());
  EXPECT_NE(status.ToString().find("holder h0"), std::string::npos) << status;
  // The chunks that h0 shares with h2 are still answered.
  const ChunkUse shared[] = {{0, 0}, {1, 0}, {2, 0}};
  call.chunks = shared;
  (void)Asked();
}

// A silent holder fails the attempt after half of the time, if another can be queried. Method:
// requests are dropped by seeds, until the first holder's was dropped and the second's was not.
TEST_F(ReplicaTest, GivesUpASilentHolderAtHalfTime) {
  const ChunkUse one[] = {{2, 0}};
  call.chunks = one;
  const Answer before = Asked();
  bool found = false;
  for (uint64_t seed = 0; seed < 30 && !found; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.drop_request = 0.5;
    const auto lossy = NewFaultFabric(fabric.get(), Clock::Real(), plan);
    RequesterOptions options;
    options.clock = &clock;
    options.fabrics = {lossy.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    call.corpus = *requester->Resolve("c", "", clock.Now() + kTimeout);
    call.deadline = clock.Now() + std::chrono::seconds(2);
    Answer answer(40, 64);
    AttendReport report;
    const absl::Status status = requester->Attend(call, answer.View(), &report);
    if (status.ok()) {
      EXPECT_TRUE(answer.SameBits(before));
      found = report.failed_attempt_count > 0;
      EXPECT_TRUE(!found || report.lost >= std::chrono::milliseconds(500));
    } else {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    }
    requester.reset();  // its lanes go before the fabric
  }
  EXPECT_TRUE(found);
}

TEST_F(ReplicaTest, TriesAHolderAgainThatReturned) {
  const ChunkUse one[] = {{2, 0}};
  call.chunks = one;
  const Answer before = Asked();
  fleet.StopHolder(1);
  (void)Asked();
  fleet.StartHolder(1);
  ASSERT_TRUE(test::PutChunk(fleet.holder(1).store(), corpus.geometry, corpus.chunks[2]).ok());
  EXPECT_TRUE(Asked().SameBits(before));
  EXPECT_EQ(RequestsOf(1), 0u);
  // h2 is down, too: h1 is tried again, however recently it failed.
  fleet.StopHolder(2);
  EXPECT_TRUE(Asked().SameBits(before));
  EXPECT_GT(RequestsOf(1), 0u);
}

TEST_F(ReplicaTest, TriesAnotherHolderForADroppedChunk) {
  const Answer before = Asked();
  ASSERT_TRUE(fleet.holder(1).store().Drop(corpus.chunks[2].info.id).ok());
  EXPECT_TRUE(Asked().SameBits(before));
  // The directory is queried before the snapshot is used again.
  const int calls = fleet.directory_calls();
  ASSERT_TRUE(requester->Resolve("c", "", Soon()).ok());
  EXPECT_GT(fleet.directory_calls(), calls);
}

TEST_F(ReplicaTest, ExplainMeasuresAllAndLeavesOutTheDead) {
  ExplainCall question;
  question.corpus = call.corpus;
  question.chunks = {2};
  question.query_rows = 16;
  question.deadline = Soon();
  auto explained = requester->Explain(question);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->holders, (std::vector<HolderId>{{"h1"}, {"h2"}}));
  ASSERT_EQ(explained->input.candidates.size(), 2u);
  for (const Candidate& candidate : explained->input.candidates) {
    EXPECT_EQ(candidate.group, 0u);
    EXPECT_DOUBLE_EQ(candidate.token_share, 1);
    EXPECT_TRUE(candidate.fabric.has_value());
  }
  fleet.StopHolder(1);
  explained = requester->Explain(question);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->holders, (std::vector<HolderId>{{"h2"}}));
  fleet.RemoveMember(1);
  fleet.RemoveMember(2);
  explained = requester->Explain(question);
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_NE(explained->input.gone_holder.find("holder h1"), std::string::npos);
}

TEST_F(ReplicaTest, AFetchContinuesWithAnother) {
  FetchCall fetch;
  fetch.corpus = call.corpus;
  // Rows of h0 are delivered before those of h1 are requested again.
  fetch.chunk_end = 5;
  fetch.tensor_end = corpus.geometry.layers;
  const auto rows_of = [&](std::vector<std::byte>* all) {
    fetch.deadline = clock.Now() + kTimeout;
    return requester->Fetch(fetch, [&](const FetchedRows& run) {
      all->insert(all->end(), run.rows.begin(), run.rows.end());
      return absl::OkStatus();
    });
  };
  std::vector<std::byte> before, after;
  ASSERT_TRUE(rows_of(&before).ok());
  // A new requester takes the same turns, and has no session with either holder yet.
  Connect();
  fetch.corpus = call.corpus;
  fleet.StopHolder(RequestsOf(1) > 0 ? 1 : 2);
  ASSERT_TRUE(rows_of(&after).ok());
  EXPECT_EQ(before, after);
  EXPECT_EQ(requester->Stats().failover_count, 1u);
}

// Links to three holders whose constants are set here.
struct ReplicaChooserTest : testing::Test {
  ReplicaChooserTest() {
    options.clock = Clock::Real();
    for (const char* name : {"a", "b", "c"}) {
      HolderPeer* peer = *peers.Find({name});
      links.push_back(
          std::make_unique<HolderLink>(&options, &peers, peer, TestGeometry(), /*tenant=*/""));
      pointers.push_back(links.back().get());
    }
    group.links = {0, 1, 2};
    group.token_count = 1000;
  }
  // Sets everything that a route's cost depends on.
  void Set(size_t link, double t_probe_us) {
    pointers[link]->peer().fabric.Set({t_probe_us, 1e9});
    pointers[link]->peer().set_compute(TestGeometry().widths(), {.base_us = 1e-3}, {});
  }
  uint32_t Chosen(const ReplicaWork& work = {}) {
    chooser.Look(TestGeometry(), work, pointers, peers, LaneShape(), nullptr, now);
    chooser.Choose(group);
    return group.Chosen(work.primitive);
  }
  // Returns how often each is chosen in `turns` turns. `rank`: they are ranked again for each turn.
  std::array<int, 3> Shares(int turns, bool rank) {
    std::array<int, 3> shares{};
    for (int i = 0; i < turns; ++i) {
      if (rank || i == 0) {
        ++shares[Chosen()];
        continue;
      }
      ReplicaChooser::NextTurn(group, Primitive::kRoute);
      ++shares[group.Chosen(Primitive::kRoute)];
    }
    return shares;
  }
  using Counts = std::array<int, 3>;

  TestFleet fleet{{}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  std::vector<std::unique_ptr<HolderLink>> links;
  std::vector<HolderLink*> pointers;
  ReplicaChooser chooser;
  ReplicaGroup group;
  Instant now = Clock::Real()->Now();
};

TEST_F(ReplicaChooserTest, TakesTheCheapestBeyondTheModelsError) {
  for (size_t i = 0; i < 3; ++i) Set(i, 100);
  Set(2, 50);
  EXPECT_EQ(Shares(30, /*rank=*/true), (Counts{0, 0, 30}));
  Set(1, 20);
  EXPECT_EQ(Shares(30, /*rank=*/false), (Counts{0, 30, 0}));
  Set(0, 20 / (1 + ReplicaChooser::kEqualMax) - 1);
  EXPECT_EQ(Shares(30, /*rank=*/true), (Counts{30, 0, 0}));
}

TEST_F(ReplicaChooserTest, EqualsTakeTurnsByTheirCost) {
  for (const bool rank : {false, true}) {
    group.turns = {};
    for (size_t i = 0; i < 3; ++i) Set(i, 20);
    EXPECT_EQ(Shares(30, rank), (Counts{10, 10, 10}));
    // Noise moves shares by as much as it moves costs.
    Set(1, 24);
    const Counts shares = Shares(340, rank);
    EXPECT_NEAR(shares[0], 120, 2);
    EXPECT_NEAR(shares[1], 100, 2);
    EXPECT_NEAR(shares[2], 120, 2);
  }
  // A holder that was not equal for long does not catch up.
  Set(2, 2000);
  EXPECT_EQ(Shares(300, /*rank=*/true)[2], 0);
  for (size_t i = 0; i < 3; ++i) Set(i, 20);
  EXPECT_NEAR(Shares(30, /*rank=*/true)[2], 10, 2);
}

TEST_F(ReplicaChooserTest, CallersAndGroupsBeginWithDifferentReplicas) {
  for (size_t i = 0; i < 3; ++i) Set(i, 20);
  for (const uint32_t first : {1u, 2u, 0u}) {
    group = {.links = {0, 1, 2}, .token_count = 1000, .first = first};
    EXPECT_EQ(Chosen(), first);
    EXPECT_EQ(Chosen(), (first + 1) % 3);
  }
}

// An unmeasured holder need not cost more, and its turn shows what it costs.
TEST_F(ReplicaChooserTest, HoldersWithoutConstantsTakeTurns) {
  EXPECT_EQ(Shares(30, /*rank=*/true), (Counts{10, 10, 10})) << "of none anything is known";
  Set(2, 50);
  const Counts shares = Shares(30, /*rank=*/true);
  EXPECT_EQ(*std::min_element(shares.begin(), shares.end()), 10);
  pointers[0]->peer().fabric.Set({50, 1e9});
  EXPECT_EQ(Shares(30, /*rank=*/true)[0], 10) << "but nothing of its kernel";
}

// A holder that was measured under load, and is not queried for that reason, reports nothing.
TEST_F(ReplicaChooserTest, RemeasuresAnExpensiveUnusedHolder) {
  for (size_t i = 0; i < 3; ++i) Set(i, 20);
  Set(1, 30), Set(2, 200);
  for (HolderLink* const link : pointers) link->peer().queue.Take(0, now);
  EXPECT_EQ(Chosen(), 0u);
  EXPECT_TRUE(peers.Doubted().empty());
  now = now + ReplicaChooser::kSilentMax + std::chrono::milliseconds(1);
  pointers[0]->peer().queue.Take(0, now);
  EXPECT_EQ(Chosen(), 0u);
  EXPECT_THAT(peers.Doubted(), testing::ElementsAre(&pointers[2]->peer()))
      << "the other is not far from the cheapest";
  Set(2, 20);
  EXPECT_TRUE(peers.Doubted().empty());
}

TEST_F(ReplicaChooserTest, CountsTheLoadOfAReplica) {
  for (size_t i = 0; i < 3; ++i) Set(i, 20);
  pointers[0]->peer().queue.Take(1'000'000, now);
  EXPECT_EQ(Shares(30, /*rank=*/true), (Counts{0, 15, 15}));
  // An old queue report no longer counts. A caller that avoids the holder would never learn that
  // its queue is empty.
  now = now + LiveQueue::kAgeMax + std::chrono::milliseconds(1);
  EXPECT_NEAR(Shares(30, /*rank=*/true)[0], 10, 1);
}

// A holder at its route elbow gets no turn while an equal one is below its own.
TEST_F(ReplicaChooserTest, AHolderAtItsElbowHasNoTurn) {
  Profile profile;
  profile.subject = SubjectOf(TestGeometry(), HostIdentity(), {}, true);
  for (const char* name : {"a", "b", "c"})
    profile.lanes.push_back(
        {.holder = name, .fabric = "tcp", .constants = {20, 1e9}, .route_elbow = 2});
  PeerTable seeded{&view, &fleet, std::make_shared<const Profile>(profile)};
  links.clear();
  pointers.clear();
  for (const char* name : {"a", "b", "c"}) {
    HolderPeer* const peer = *seeded.Find({name});
    peer->lane_epoch.store(1);
    peer->fabric_kind.store(FabricKind::kTcp);
    links.push_back(std::make_unique<HolderLink>(&options, &seeded, peer, TestGeometry(), ""));
    pointers.push_back(links.back().get());
  }
  for (size_t i = 0; i < 3; ++i) Set(i, 20);
  // The load alone would be no reason: its price is far below the model's error.
  pointers[0]->peer().in_flight.Begin(1);
  EXPECT_NEAR(Shares(30, /*rank=*/true)[0], 10, 1);
  pointers[0]->peer().in_flight.Begin(1);
  EXPECT_EQ(Shares(30, /*rank=*/true)[0], 0);
  for (size_t i = 1; i < 3; ++i) pointers[i]->peer().in_flight.Begin(2);
  EXPECT_NEAR(Shares(30, /*rank=*/true)[0], 10, 1) << "all are at it";
  pointers[1]->peer().in_flight.End(1);
  EXPECT_EQ(Shares(30, /*rank=*/true), (Counts{0, 30, 0}));
}

TEST_F(ReplicaChooserTest, FetchesAndRoutesChooseSeparately) {
  for (size_t i = 0; i < 3; ++i) Set(i, 1e5);
  Set(0, 1);
  pointers[0]->peer().fabric.Set({1, 1e8});
  pointers[1]->peer().fabric.Set({1000, 1e10});
  EXPECT_EQ(Chosen({.primitive = Primitive::kRoute}), 0u);
  EXPECT_EQ(Chosen({.primitive = Primitive::kFetch}), 1u);
  EXPECT_EQ(group.Chosen(Primitive::kRoute), 0u);
}

TEST_F(ReplicaChooserTest, PutsFailedHoldersLast) {
  for (size_t i = 0; i < 3; ++i) Set(i, 10 + 10 * double(i));
  HolderPeer &a = pointers[0]->peer(), &b = pointers[1]->peer(), &c = pointers[2]->peer();
  peers.Avoid(a, now, std::nullopt);
  EXPECT_EQ(Chosen(), 1u);
  peers.Avoid(b, now, std::nullopt);
  EXPECT_EQ(Chosen(), 2u);
  // All failed: the one whose pause ends first is queried.
  now = now + std::chrono::milliseconds(1);
  peers.Avoid(b, now, std::chrono::milliseconds(1));
  peers.Avoid(c, now, std::nullopt);
  EXPECT_EQ(Chosen(), 1u);
  now = now + HolderAvoidance::kPauseMin;
  EXPECT_EQ(Chosen(), 0u);
  // The second failure in a row counts double; an answer resets the count.
  peers.Avoid(a, now, std::nullopt);
  now = now + HolderAvoidance::kPauseMin;
  EXPECT_EQ(Chosen(), 1u);
  a.avoidance.End();
  EXPECT_EQ(Chosen(), 0u);
  for (int i = 0; i < 100; ++i) peers.Avoid(a, now, std::nullopt);
  EXPECT_LE(a.avoidance.until(), now + HolderAvoidance::kPauseMax);
  // The pause that an overloaded holder requests is not extended.
  peers.Avoid(a, now, std::chrono::milliseconds(5));
  EXPECT_LE(a.avoidance.until(), now + std::chrono::milliseconds(5));
  // Nor does a requested pause last longer than the longest one without a request.
  peers.Avoid(a, now, std::chrono::hours(1));
  EXPECT_LE(a.avoidance.until(), now + HolderAvoidance::kPauseMax);
}

}  // namespace
}  // namespace ckv
