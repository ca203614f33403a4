// Goal: no call fails if a holder restarts under its name, or gets another epoch. Each call opens
// one new session with the holder and queries it again.

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "client/holders/retry.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/fabric_kinds.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::Shortly;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

// Three holders with the chunks spread over them. Every incarnation of a holder has all chunks.
struct RestartTest : testing::TestWithParam<FabricKind> {
  RestartTest() {
    for (size_t i = 0; i < 3; ++i) Start(i);
    fleet.Load("c", corpus, {0, 1, 2, 0, 1, 2});
    Connect();
  }
  void Connect() {
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, &fleet, &fleet);
    published = *requester->Resolve("c", "", Soon());
  }
  void Start(size_t i) {
    fleet.StartHolder(i, size_t{64} << 20, 256, [this](Holder& holder) {
      ASSERT_TRUE(test::PutCorpus(holder.store(), corpus).ok());
    });
  }
  void Restart(size_t i) {
    fleet.StopHolder(i);
    Start(i);
  }
  // Every chunk has a replica on the next holder.
  void Replicate() {
    for (size_t i = 0; i < 3; ++i) fleet.Lease("c", corpus, (i + 1) % 3, {i, i + 3});
    Connect();
  }
  AttendCall CallNow() const {
    AttendCall call;
    call.corpus = published;
    call.q = {q.data(), 40, 96};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return call;
  }
  absl::Status Attend(Answer* answer) {
    return requester->Attend(CallNow(), answer->View(), /*report=*/nullptr);
  }
  // Two calls at once, so each in a context of its own.
  absl::Status AttendTwice() {
    Answer outer(40, 64), inner(40, 64);
    absl::Status second;
    bool called = false;
    const auto buffers = [&] {
      if (!std::exchange(called, true)) second = Attend(&inner);
      return outer.View();
    };
    absl::Status first = requester->Attend(CallNow(), buffers, /*report=*/nullptr);
    first.Update(second);
    return first;
  }
  absl::Status Fetch(std::vector<std::byte>* rows) {
    FetchCall call;
    call.corpus = published;
    call.chunk_end = static_cast<uint32_t>(published->chunks.size());
    call.tensor_end = published->geometry.layers;
    call.deadline = Soon();
    return requester->Fetch(call, [rows](const FetchedRows& run) {
      rows->insert(rows->end(), run.rows.begin(), run.rows.end());
      return absl::OkStatus();
    });
  }
  absl::Status FetchSelection(std::vector<std::byte>* rows) {
    const std::vector<int32_t> indices = {0, 3, 70, 100, 199, 232};
    const std::span<const int32_t> layers[] = {indices};
    SelectionCall call;
    call.corpus = published;
    call.chunk_end = static_cast<uint32_t>(published->chunks.size());
    call.indices = layers;
    call.deadline = Soon();
    rows->resize(indices.size() * published->geometry.row_bytes());
    return requester->FetchSelection(call, [&](uint32_t) { return std::span(*rows); });
  }

  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64, 0, 130, 1, 33}, 9);
  std::mt19937 rng{9};
  std::vector<uint16_t> q = RandomBf16(40 * 96, rng);
  std::unique_ptr<Fabric> fabric = test::MakeFabric(GetParam());
  TestFleet fleet{{fabric.get()}};
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};
INSTANTIATE_TEST_SUITE_P(, RestartTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         [](const auto& test) { return std::string(FabricName(test.param)); });

TEST_P(RestartTest, AHolderThatRestartedFailsNoCall) {
  Answer before(40, 64);
  ASSERT_TRUE(Attend(&before).ok());
  const int sessions = fleet.session_calls();
  Restart(2);
  Answer after(40, 64);
  const absl::Status status = Attend(&after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(after.SameBits(before));
  EXPECT_EQ(fleet.session_calls(), sessions + 1);

  // All holders restart, and no other holder has the chunks.
  for (size_t i = 0; i < 3; ++i) Restart(i);
  Answer last(40, 64);
  const absl::Status all = Attend(&last);
  EXPECT_TRUE(all.ok()) << all;
  EXPECT_TRUE(last.SameBits(before));
  for (const HolderView& view : requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
}

TEST_P(RestartTest, AHolderThatRestartedFailsNoFetch) {
  std::vector<std::byte> before, after, chosen_before, chosen_after;
  ASSERT_TRUE(Fetch(&before).ok());
  ASSERT_TRUE(FetchSelection(&chosen_before).ok());
  for (size_t i = 0; i < 3; ++i) Restart(i);
  absl::Status status = Fetch(&after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(after, before);
  for (size_t i = 0; i < 3; ++i) Restart(i);
  status = FetchSelection(&chosen_after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(chosen_after, chosen_before);
}

// Only the shm fabric maps chunks.
class RestartedMapTest : public RestartTest {};
INSTANTIATE_TEST_SUITE_P(, RestartedMapTest, testing::Values(FabricKind::kShm),
                         [](const auto& test) { return std::string(FabricName(test.param)); });

TEST_P(RestartedMapTest, AHolderThatRestartedFailsNoMap) {
  const MapCall call = {published, /*chunk=*/1, Soon()};
  const auto before = requester->Map(call);
  ASSERT_TRUE(before.ok()) << before.status();
  Restart(1);
  const auto after = requester->Map(call);
  ASSERT_TRUE(after.ok()) << after.status();
  const auto a = before->layer(1), b = after->layer(1);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0);
  fleet.holder(1).lease().Grant({1000}, kInstantMax);
  EXPECT_TRUE(requester->Map(call).ok());
}

// As after a restart of the directory: the same holders, in new epochs.
TEST_P(RestartTest, AllHoldersAreInNewEpochs) {
  Answer before(40, 64);
  ASSERT_TRUE(Attend(&before).ok());
  uint64_t epoch = 1000;
  const auto renew = [&] {
    for (size_t i = 0; i < 3; ++i) fleet.holder(i).lease().Grant({++epoch}, kInstantMax);
  };
  const int sessions = fleet.session_calls();
  renew();
  Answer after(40, 64);
  absl::Status status = Attend(&after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(after.SameBits(before));
  EXPECT_GE(fleet.session_calls(), sessions + 3);
  renew();
  std::vector<std::byte> rows;
  status = Fetch(&rows);
  EXPECT_TRUE(status.ok()) << status;
  renew();
  status = FetchSelection(&rows);
  EXPECT_TRUE(status.ok()) << status;
}

// I5: a holder that always refuses is queried twice and no more. One that is unreachable is queried
// each time the wait for it checks.
TEST_P(RestartTest, ACallReopensAHolderOnce) {
  Answer answer(40, 64);
  ASSERT_TRUE(Attend(&answer).ok());
  const int sessions = fleet.session_calls();
  ASSERT_TRUE(fleet.holder(2).store().Drop(corpus.chunks[5].info.id).ok());
  EXPECT_TRUE(absl::IsNotFound(Attend(&answer)));
  EXPECT_EQ(fleet.session_calls(), sessions + 1);
  fleet.StopHolder(2);
  AttendCall call = CallNow();
  call.deadline = Shortly();
  const absl::Status gone = requester->Attend(call, answer.View(), /*report=*/nullptr);
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_NE(gone.ToString().find("holder h2"), std::string::npos) << gone;
  EXPECT_NE(gone.ToString().find("for a holder to return"), std::string::npos) << gone;
  // The wait checks after 5, 10, 20, 40, 80 and then every 100 ms. Each check queries two addresses
  // at most: the previous one and the directory's.
  EXPECT_LE(fleet.session_calls(), sessions + 2 * (1 + 5 + 20));
}

// All holders of a chunk may be restarting at once. The call takes longer, and reports by how much.
TEST_P(RestartTest, ACallWaitsForAHolderThatRestarts) {
  Answer before(40, 64), after(40, 64);
  ASSERT_TRUE(Attend(&before).ok());
  std::vector<std::byte> rows_before, rows;
  ASSERT_TRUE(Fetch(&rows_before).ok());
  const auto waits_so_far = [&] { return requester->Stats().return_count; };
  // Runs a call while holder 1 is down. The holder restarts once the call has waited.
  const auto while_away = [&](const std::function<absl::Status()>& call) {
    const uint64_t waits = waits_so_far();
    fleet.StopHolder(1);
    std::atomic<bool> ended{false};
    std::thread back([&] {
      while (waits_so_far() < waits + 2 && !ended) std::this_thread::yield();
      Start(1);
    });
    const absl::Status status = call();
    ended = true;
    EXPECT_TRUE(status.ok()) << status;
    back.join();
  };
  AttendReport report;
  while_away([&] { return requester->Attend(CallNow(), after.View(), &report); });
  EXPECT_TRUE(after.SameBits(before));
  EXPECT_GE(report.failed_attempt_count, 2u);
  EXPECT_GE(report.lost, kReturnPauseMin) << "it waited once at least";
  EXPECT_GT(report.elapsed, report.lost);
  const RequesterStats stats = requester->Stats();
  EXPECT_GE(stats.lost, report.lost);
  EXPECT_GE(stats.latency.route.sum_ns, static_cast<uint64_t>(report.elapsed.count()));
  while_away([&] {
    rows.clear();
    return Fetch(&rows);
  });
  EXPECT_EQ(rows, rows_before);
  while_away([&] { return FetchSelection(&rows); });
  const ContextPart part = {published, {}};
  while_away([&] { return requester->Open({.parts = {&part, 1}}, Soon()).status(); });
  // Open may need no holder. A call after one that met the new incarnation has no failed attempt.
  ASSERT_TRUE(requester->Attend(CallNow(), after.View(), &report).ok());
  ASSERT_TRUE(requester->Attend(CallNow(), after.View(), &report).ok());
  EXPECT_EQ(report.failed_attempt_count, 0u);
  EXPECT_EQ(report.lost, Duration(0));
}

// A restarted holder may have another port: the old address refuses, and the directory has the new
// one.
TEST_P(RestartTest, AHolderThatMovedIsFound) {
  Answer answer(40, 64);
  ASSERT_TRUE(Attend(&answer).ok());
  Restart(1);
  fleet.Move(1, "inproc:new");
  const absl::Status status = Attend(&answer);
  EXPECT_TRUE(status.ok()) << status;
}

// Method: holders restart one after another while callers call. All chunks have a replica, and only
// one holder at a time is down: no call may fail.
TEST_P(RestartTest, ARollingRestartLosesNoCall) {
  constexpr size_t kCallerCount = 4;
  Replicate();
  Answer right(40, 64);
  ASSERT_TRUE(Attend(&right).ok());
  absl::Mutex mu;
  std::array<int, kCallerCount> done{};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<absl::Status> errors;
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kCallerCount; ++i) {
    callers.emplace_back([&, i] {
      while (!stop) {
        Answer got(40, 64);
        const absl::Status status = Attend(&got);
        if (status.ok() && !got.SameBits(right)) ++wrong;
        absl::MutexLock lock(&mu);
        if (!status.ok()) errors.push_back(status);
        ++done[i];
      }
    });
  }
  // Waits until every caller has begun and ended a call.
  const auto progress = [&] {
    absl::MutexLock lock(&mu);
    const std::array<int, kCallerCount> before = done;
    const auto all = [&] {
      for (size_t i = 0; i < kCallerCount; ++i) {
        if (done[i] < before[i] + 2) return false;
      }
      return true;
    };
    mu.Await(absl::Condition(&all));
  };
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 3; ++i) {
      progress();
      fleet.StopHolder(i);
      progress();
      Start(i);
    }
  }
  progress();
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(errors.size(), 0u) << errors.front();
  for (const HolderView& view : requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
}

// The last replica left to a call may have restarted earlier, so that its lane is stale.
TEST_P(RestartTest, AReplicaThatRestartedBeforeAnswers) {
  Replicate();
  Answer before(40, 64), after(40, 64);
  ASSERT_TRUE(AttendTwice().ok());
  ASSERT_TRUE(Attend(&before).ok());
  Restart(0);
  Restart(1);
  // Listing the holders while one is down must not exclude it from later calls.
  fleet.StopHolder(1);
  fleet.RemoveMember(1);
  (void)requester->Holders();
  Start(1);
  fleet.StopHolder(2);
  const absl::Status status = Attend(&after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(after.SameBits(before));
  EXPECT_TRUE(AttendTwice().ok());
}

// The directory's news arrive before the next call. No context then uses a lane of the holder's
// earlier incarnation, so no attempt is wasted.
TEST_P(RestartTest, UsesTheDirectorysUpdateInsteadOfAFailedAttempt) {
  ASSERT_TRUE(AttendTwice().ok());
  const int sessions = fleet.session_calls();
  fleet.holder(1).lease().Grant({1000}, kInstantMax);
  Member member = fleet.member(1);
  member.epoch = {1000};
  requester->OnMemberUp(member);
  absl::Status status = AttendTwice();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(fleet.session_calls(), sessions + 2);
  EXPECT_EQ(fleet.holder(1).stats().error_count, 0u);

  // Another process, at another address.
  Restart(1);
  fleet.Move(1, "inproc:new");
  member.epoch = {1001};
  member.control_address = "inproc:new";
  fleet.holder(1).lease().Grant(member.epoch, kInstantMax);
  requester->OnMemberUp(member);
  const int requested = fleet.directory_calls();
  status = AttendTwice();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(fleet.session_calls(), sessions + 4);
  EXPECT_EQ(fleet.directory_calls(), requested);

  // Late news, and news about another member, change nothing.
  member.epoch = {7};
  requester->OnMemberUp(member);
  member.id = {"stranger"};
  requester->OnMemberUp(member);
  EXPECT_TRUE(AttendTwice().ok());
  EXPECT_EQ(fleet.session_calls(), sessions + 4);
}

}  // namespace
}  // namespace ckv
