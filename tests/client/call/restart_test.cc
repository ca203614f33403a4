// Goal: a holder that lives again under its name, or in another epoch, costs no call its answer:
// each call makes one new session with it and asks again.

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

// Three holders, chunks all over them; every life of a holder has all chunks.
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
    const auto room = [&] {
      if (!std::exchange(called, true)) second = Attend(&inner);
      return outer.View();
    };
    absl::Status first = requester->Attend(CallNow(), room, /*report=*/nullptr);
    first.Update(second);
    return first;
  }
  absl::Status Fetch(std::vector<std::byte>* rows) {
    FetchCall call;
    call.corpus = published;
    call.chunk_end = static_cast<uint32_t>(published->chunks.size());
    call.layer_end = published->geometry.layers;
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

  // All of them, and nobody else has the chunks.
  for (size_t i = 0; i < 3; ++i) Restart(i);
  Answer last(40, 64);
  const absl::Status all = Attend(&last);
  EXPECT_TRUE(all.ok()) << all;
  EXPECT_TRUE(last.SameBits(before));
  for (const HolderView& view : requester->Holders()) EXPECT_EQ(view.in_flight, 0u);
}

TEST_P(RestartTest, NorAFetch) {
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

// Only shm maps.
class RestartedMapTest : public RestartTest {};
INSTANTIATE_TEST_SUITE_P(, RestartedMapTest, testing::Values(FabricKind::kShm),
                         [](const auto& test) { return std::string(FabricName(test.param)); });

TEST_P(RestartedMapTest, FailsNoMap) {
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

// As after a restart of the directory: the holders stay, in new epochs.
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

// I5: a holder that refuses for ever is asked twice and no more. One that is gone is asked as often
// as the wait for it looks.
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
  EXPECT_NE(gone.ToString().find("for a holder to come back"), std::string::npos) << gone;
  // 5, 10, 20, 40, 80 and then 100 ms between looks; each asks twice at most, where it was and
  // where the directory says that it is.
  EXPECT_LE(fleet.session_calls(), sessions + 2 * (1 + 5 + 20));
}

// All that have a chunk may be between two lives at once: the call takes longer, and says by how
// much.
TEST_P(RestartTest, ACallWaitsForAHolderBetweenTwoLives) {
  Answer before(40, 64), after(40, 64);
  ASSERT_TRUE(Attend(&before).ok());
  std::vector<std::byte> rows_before, rows;
  ASSERT_TRUE(Fetch(&rows_before).ok());
  const auto waits_so_far = [&] { return requester->Stats().return_count; };
  // Runs a call while holder 1 is away, which comes back once the call has waited.
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
  // An Open may need no holder. A call after one that met the new life has no failed attempt.
  ASSERT_TRUE(requester->Attend(CallNow(), after.View(), &report).ok());
  ASSERT_TRUE(requester->Attend(CallNow(), after.View(), &report).ok());
  EXPECT_EQ(report.failed_attempt_count, 0u);
  EXPECT_EQ(report.lost, Duration(0));
}

// Its process may be given another port: the old address refuses, and the directory knows better.
TEST_P(RestartTest, AHolderThatMovedIsFound) {
  Answer answer(40, 64);
  ASSERT_TRUE(Attend(&answer).ok());
  Restart(1);
  fleet.Move(1, "inproc:new");
  const absl::Status status = Attend(&answer);
  EXPECT_TRUE(status.ok()) << status;
}

// Method: holders end and live again, one after another, while callers call. All chunks have a
// replica, and only one holder at a time is away: no call may fail.
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
  // Every caller has begun and ended a call from here on.
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

// The last one that a call can turn to may have restarted before, and its lane be an old one.
TEST_P(RestartTest, AReplicaThatRestartedBeforeAnswers) {
  Replicate();
  Answer before(40, 64), after(40, 64);
  ASSERT_TRUE(AttendTwice().ok());
  ASSERT_TRUE(Attend(&before).ok());
  Restart(0);
  Restart(1);
  // A look at the members while one is away must not make it be passed over later.
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

// The directory's news come before the next call: no lane of the holder's earlier life is used, in
// no context, so that nothing is asked in vain.
TEST_P(RestartTest, WhatTheDirectoryTellsSparesTheAttempt) {
  ASSERT_TRUE(AttendTwice().ok());
  const int sessions = fleet.session_calls();
  fleet.holder(1).lease().Grant({1000}, kInstantMax);
  Member member = fleet.member(1);
  member.epoch = {1000};
  requester->Learn(member);
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
  requester->Learn(member);
  const int asked = fleet.directory_calls();
  status = AttendTwice();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(fleet.session_calls(), sessions + 4);
  EXPECT_EQ(fleet.directory_calls(), asked);

  // News that are late, or of somebody else, change nothing.
  member.epoch = {7};
  requester->Learn(member);
  member.id = {"stranger"};
  requester->Learn(member);
  EXPECT_TRUE(AttendTwice().ok());
  EXPECT_EQ(fleet.session_calls(), sessions + 4);
}

}  // namespace
}  // namespace ckv
