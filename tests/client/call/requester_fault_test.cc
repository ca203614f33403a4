// Goal: before its deadline a call returns the bits of a run without faults, or a typed error. An
// error leaves `out` untouched and the requester usable (I1, I2).

#include <cstring>
#include <thread>

#include "absl/synchronization/notification.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/fault_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::Shortly;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

// Three holders with the chunks spread over them; 40 query rows in blocks of a few.
struct LoadedCluster : test::Cluster {
  explicit LoadedCluster(Fabric* holder_fabric, Fabric* requester_fabric = nullptr)
      : Cluster(holder_fabric, 3, SmallShape(), requester_fabric) {
    fleet.Load("c", corpus, {0, 1, 2, 0, 1, 2});
    Prepare();
  }
  // Creates the requester again, over another fabric.
  void Connect(Fabric* fabric) {
    RequesterOptions options;
    options.fabrics = {fabric};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    Prepare();
  }
  void Prepare() {
    call.corpus = Resolve();
    call.q = {q.data(), 40, 96};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
  }
  absl::StatusCode Code(const AttendCall& bad, std::string_view mentions = "") {
    Answer out(bad.q.count, 64);
    const absl::Status status = requester->Attend(bad, out.View(), nullptr);
    EXPECT_TRUE(status.ok() || out.Untouched()) << status;
    EXPECT_NE(status.ToString().find(mentions), std::string::npos) << status;
    return status.code();
  }
  bool Works() {
    call.deadline = Soon();
    Answer out(40, 64);
    return requester->Attend(call, out.View(), nullptr).ok();
  }

  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64, 0, 130, 1, 33}, 9);
  std::mt19937 rng{9};
  std::vector<uint16_t> q = RandomBf16(40 * 96, rng);
  AttendCall call;
};

TEST(RequesterErrors, RefusesMistakesOfTheCaller) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get());
  const std::vector<uint16_t> many(size_t{kAttendRowCountMax + 1} * 96);
  const ChunkUse outside[] = {{6, 0}}, twice[] = {{1, 0}, {1, 5}}, far[] = {{1, INT64_MIN}};
  const auto invalid = absl::StatusCode::kInvalidArgument;
  AttendCall call = cluster.call;
  call.layer = 3;
  EXPECT_EQ(cluster.Code(call, "layer 3 of 3"), invalid);
  call = cluster.call;
  call.q = {many.data(), kAttendRowCountMax + 1, 96};
  EXPECT_EQ(cluster.Code(call, "65537 query rows"), invalid);
  call.q = {many.data(), 0, 96};
  EXPECT_EQ(cluster.Code(call), invalid);
  call.q = {many.data(), 40, 95};
  EXPECT_EQ(cluster.Code(call), invalid);
  call = cluster.call;
  call.chunks = outside;
  EXPECT_EQ(cluster.Code(call, "chunk 6 of 6"), invalid);
  call.chunks = twice;
  EXPECT_EQ(cluster.Code(call, "chunk 1 twice"), invalid);
  call.chunks = far;
  EXPECT_EQ(cluster.Code(call), invalid);
  call = cluster.call;
  const int32_t index = 0;
  call.selection = {&index, 1, 0};
  EXPECT_EQ(cluster.Code(call), invalid);
  call.selection = {&index, UINT32_MAX, 1};
  EXPECT_EQ(cluster.Code(call), invalid);
  call = cluster.call;
  call.corpus = nullptr;
  EXPECT_EQ(cluster.Code(call), invalid);
  call = cluster.call;
  call.deadline = Clock::Real()->Now();
  EXPECT_EQ(cluster.Code(call), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.fleet.session_calls(), 0);  // nothing was sent
  EXPECT_TRUE(cluster.Works());
}

TEST(RequesterErrors, ASlotTooSmallForOneRow) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get());
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  options.lane_shape = {.slot_count = 2, .request_bytes_max = 256, .reply_bytes_max = 4096};
  cluster.requester = *Requester::Create(options, &cluster.fleet, &cluster.fleet);
  EXPECT_EQ(cluster.Code(cluster.call, "request_bytes_max 256"),
            absl::StatusCode::kInvalidArgument);
  // One row fits without its selection, but not with it.
  options.lane_shape.request_bytes_max = 512;
  cluster.requester = *Requester::Create(options, &cluster.fleet, &cluster.fleet);
  EXPECT_TRUE(cluster.Works());
  AttendCall call = cluster.call;
  const std::vector<int32_t> indices(40 * 100, 1);
  call.selection = {indices.data(), 100, 1};
  EXPECT_EQ(cluster.Code(call, "100 selected indices"), absl::StatusCode::kInvalidArgument);
}

TEST(RequesterErrors, UnknownChunksAndGeometries) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get());
  ASSERT_TRUE(cluster.Works());
  // The chunk is dropped while its handle is cached. The handle is resolved once more, then the
  // call is refused and the corpus is invalidated.
  ASSERT_TRUE(cluster.fleet.holder(0).store().Drop(cluster.corpus.chunks[3].info.id).ok());
  const int sessions = cluster.fleet.session_calls(), requested = cluster.fleet.directory_calls();
  EXPECT_EQ(cluster.Code(cluster.call, "holder h0 (inproc:0)"), absl::StatusCode::kNotFound);
  EXPECT_LE(cluster.fleet.session_calls(), sessions + 2);
  ASSERT_TRUE(cluster.requester->Resolve("c", "", Soon()).ok());
  EXPECT_GT(cluster.fleet.directory_calls(), requested);
  // Put again: the same session serves it.
  ASSERT_TRUE(test::PutChunk(cluster.fleet.holder(0).store(), cluster.corpus.geometry,
                             cluster.corpus.chunks[3])
                  .ok());
  EXPECT_TRUE(cluster.Works());

  Corpus other = *cluster.call.corpus;
  other.geometry.softmax_scale *= 2;
  AttendCall call = cluster.call;
  call.corpus = std::make_shared<const Corpus>(other);
  EXPECT_EQ(cluster.Code(call, "geometry"), absl::StatusCode::kFailedPrecondition);
  other = *cluster.call.corpus;
  other.chunks[0].token_count = 6;
  call.corpus = std::make_shared<const Corpus>(other);
  EXPECT_EQ(cluster.Code(call, "5 tokens"), absl::StatusCode::kFailedPrecondition);
  other = *cluster.call.corpus;
  other.chunks[0].set_holders({HolderId{"stranger"}});
  call.corpus = std::make_shared<const Corpus>(other);
  call.deadline = Shortly();
  EXPECT_EQ(cluster.Code(call, "stranger"), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(cluster.Works());
}

TEST(RequesterErrors, AnEpochThatMovedOnIsANewSession) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get());
  ASSERT_TRUE(cluster.Works());
  cluster.fleet.holder(1).lease().Grant({1000}, kInstantMax);
  const int sessions = cluster.fleet.session_calls();
  EXPECT_TRUE(cluster.Works());  // refused, then queried again within the call
  EXPECT_EQ(cluster.fleet.session_calls(), sessions + 1);
  cluster.fleet.holder(1).lease().Revoke();
  cluster.call.deadline = Shortly();
  EXPECT_EQ(cluster.Code(cluster.call, "holder h1"), absl::StatusCode::kUnavailable);
  cluster.fleet.holder(1).lease().Grant({1001}, kInstantMax);
  EXPECT_TRUE(cluster.Works());
}

TEST(RequesterErrors, RecoversFromAHolderThatRestarted) {
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    SCOPED_TRACE(FabricName(kind));
    const auto fabric = kind == FabricKind::kShm   ? NewShmFabric(Clock::Real())
                        : kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                                   : NewLoopbackFabric(Clock::Real());
    LoadedCluster cluster(fabric.get());
    ASSERT_TRUE(cluster.Works());
    cluster.fleet.StopHolder(2);
    // Holder 2 has chunk 2, which has no tokens, and chunk 5, which has some.
    cluster.call.deadline = Shortly();
    EXPECT_EQ(cluster.Code(cluster.call, "holder h2"), absl::StatusCode::kUnavailable);
    cluster.fleet.StartHolder(2);
    for (const size_t chunk : {2, 5}) {
      ASSERT_TRUE(test::PutChunk(cluster.fleet.holder(2).store(), cluster.corpus.geometry,
                                 cluster.corpus.chunks[chunk])
                      .ok());
    }
    EXPECT_TRUE(cluster.Works());
  }
}

// Goal: after a holder died, the requester needs no restart once the chunks are on other holders.
TEST(RequesterErrors, QueriesTheDirectoryAfterAHolderDied) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get());
  ASSERT_TRUE(cluster.Works());
  cluster.fleet.StopHolder(2);
  cluster.call.deadline = Shortly();
  EXPECT_EQ(cluster.Code(cluster.call, "holder h2"), absl::StatusCode::kUnavailable);
  cluster.fleet.Load("c", cluster.corpus, {0, 1, 0, 0, 1, 1});
  cluster.call.corpus = *cluster.requester->Resolve("c", "", Soon());
  EXPECT_TRUE(cluster.Works());
}

// A holder is destroyed while calls are in progress: each call returns the right bits or
// Unavailable before its deadline.
TEST(RequesterErrors, AHolderThatDiesMidCall) {
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    SCOPED_TRACE(FabricName(kind));
    const auto fabric = kind == FabricKind::kShm   ? NewShmFabric(Clock::Real())
                        : kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                                   : NewLoopbackFabric(Clock::Real());
    LoadedCluster cluster(fabric.get());
    Answer right(40, 64);
    ASSERT_TRUE(cluster.requester->Attend(cluster.call, right.View(), nullptr).ok());
    absl::Notification running;
    absl::Status last;
    int wrong = 0;
    std::thread caller([&] {
      AttendCall call = cluster.call;
      for (int i = 0;; ++i) {
        Answer got(40, 64);
        call.deadline = Shortly();
        last = cluster.requester->Attend(call, got.View(), nullptr);
        if (i == 20) running.Notify();
        if (last.ok() ? !got.SameBits(right) : !got.Untouched()) ++wrong;
        if (!last.ok() && i >= 20) return;
      }
    });
    running.WaitForNotification();
    cluster.fleet.StopHolder(1);
    caller.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(last.code(), absl::StatusCode::kUnavailable) << last;
    for (const HolderView& view : cluster.requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
  }
}

TEST(RequesterErrors, ContextsInUseUntilTheDeadline) {
  // A call whose requests are all lost keeps its call context until its deadline.
  const auto inner = NewLoopbackFabric(Clock::Real());
  FaultPlan plan;
  plan.drop_request = 1;
  const auto lossy = NewFaultFabric(inner.get(), Clock::Real(), plan);
  LoadedCluster cluster(inner.get(), lossy.get());
  RequesterOptions options;
  options.fabrics = {lossy.get()};
  options.lane_shape = SmallShape();
  options.call_count_max = 1;
  cluster.requester = *Requester::Create(options, &cluster.fleet, &cluster.fleet);
  cluster.call.deadline = Soon(std::chrono::milliseconds(300));
  std::thread first(
      [&] { EXPECT_EQ(cluster.Code(cluster.call), absl::StatusCode::kDeadlineExceeded); });
  AttendCall late = cluster.call;
  late.deadline = Soon(std::chrono::milliseconds(100));
  EXPECT_EQ(cluster.Code(late), absl::StatusCode::kDeadlineExceeded);
  first.join();
}

// Method: faults drawn from a seed at the requester's end of every lane. Dropped messages end in
// DeadlineExceeded, so deadlines are short; a broken lane ends in Unavailable.
// Each call has `patience`. Faults that lose a reply use it up.
void RunWithFaults(FabricKind kind, const FaultPlan& base, uint32_t seed_count, int* right_count,
                   int* error_count, Duration patience = std::chrono::milliseconds(60)) {
  const auto inner =
      kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real()) : NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(inner.get());
  std::vector<std::unique_ptr<Answer>> right;
  const std::vector<int32_t> indices = [&] {
    std::vector<int32_t> made(40 * 30);
    for (int32_t& index : made) index = int32_t(cluster.rng() % 233);
    return made;
  }();
  const auto variant = [&](int i) {
    AttendCall call = cluster.call;
    call.layer = uint32_t(i % 3);
    if (i % 4 >= 2) call.selection = {indices.data(), 30, 1};
    return call;
  };
  for (int i = 0; i < 12; ++i) {
    right.push_back(std::make_unique<Answer>(40, 64));
    ASSERT_TRUE(cluster.requester->Attend(variant(i), right.back()->View(), nullptr).ok());
  }
  for (uint32_t seed = 0; seed < seed_count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FaultPlan plan = base;
    plan.seed = seed;
    const auto faulty = NewFaultFabric(inner.get(), Clock::Real(), plan);
    cluster.Connect(faulty.get());
    for (int i = 0; i < 12; ++i) {
      AttendCall call = variant(i);
      call.deadline = Soon(patience);
      Answer got(40, 64);
      const absl::Status status = cluster.requester->Attend(call, got.View(), nullptr);
      if (status.ok()) {
        ASSERT_TRUE(got.SameBits(*right[size_t(i)])) << "call " << i;
        ++*right_count;
      } else {
        ASSERT_TRUE(got.Untouched()) << "call " << i;
        // A holder on a busy machine may refuse at once because the time left is too short.
        ASSERT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                    absl::IsResourceExhausted(status))
            << status;
        ++*error_count;
      }
    }
    for (const HolderView& view : cluster.requester->Holders()) ASSERT_EQ(view.in_flight, 0u);
    cluster.requester.reset();
  }
}

TEST(RequesterFaults, DuplicatesAreDiscarded) {
  int right = 0, errors = 0;
  FaultPlan plan;
  plan.duplicate_reply = 0.5;
  RunWithFaults(FabricKind::kLoopback, plan, 50, &right, &errors);
  RunWithFaults(FabricKind::kTcp, plan, 10, &right, &errors);
  // Duplicates alone fail no call. On a loaded machine a call may miss its deadline.
  EXPECT_GT(right, 9 * errors);
}

TEST(RequesterFaults, DelaysReorder) {
  int right = 0, errors = 0;
  FaultPlan plan;
  plan.delay = 0.3;
  plan.delay_max = std::chrono::milliseconds(2);
  plan.duplicate_reply = 0.3;
  RunWithFaults(FabricKind::kLoopback, plan, 15, &right, &errors);
  EXPECT_GT(right, 0);
}

TEST(RequesterFaults, DropsEndInTheDeadline) {
  int right = 0, errors = 0;
  FaultPlan plan;
  plan.drop_request = 0.01;
  plan.drop_reply = 0.01;
  RunWithFaults(FabricKind::kLoopback, plan, 12, &right, &errors);
  EXPECT_GT(right, 0);
  EXPECT_GT(errors, 0);
}

// A broken lane is that holder's failure and not the call's: another session, or a replica, answers
// the call before its deadline.
TEST(RequesterFaults, BreaksFailNoCall) {
  int right = 0, errors = 0;
  FaultPlan plan;
  plan.break_lane = 0.01;
  RunWithFaults(FabricKind::kLoopback, plan, 40, &right, &errors, std::chrono::seconds(30));
  RunWithFaults(FabricKind::kTcp, plan, 10, &right, &errors, std::chrono::seconds(30));
  EXPECT_GT(right, 0);
  EXPECT_EQ(errors, 0);
}

TEST(RequesterFaults, EverythingAtOnce) {
  int right = 0, errors = 0;
  FaultPlan plan;
  plan.drop_request = plan.drop_reply = 0.005;
  plan.duplicate_reply = 0.2;
  plan.delay = 0.1;
  plan.delay_max = std::chrono::milliseconds(1);
  plan.break_lane = 0.005;
  RunWithFaults(FabricKind::kLoopback, plan, 25, &right, &errors);
  EXPECT_GT(right, 0);
  EXPECT_GT(errors, 0);
}

}  // namespace
}  // namespace ckv
