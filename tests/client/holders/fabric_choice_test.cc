// Goal: a requester uses the fabric that a probe finds the fastest of those both sides have, and
// probes once. Method: real holders, fabrics with set costs.

#include "client/holders/fabric_choice.h"

#include <thread>

#include "client/holders/link_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scripted_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using test::MakeTestCorpus;
using test::ScriptedFabric;
using test::ShiftedClock;
using test::SmallShape;
using test::TestFleet;
using test::TestGeometry;
using testing::HasSubstr;

struct FabricChoiceTest : testing::Test {
  FabricChoiceTest() {
    options.requester = "r";
    options.host_identity = HostIdentity();
    options.clock = &clock;
    options.fabrics = {&shm, &tcp, &verbs};
    options.shape = SmallShape();
    options.connect_timeout = std::chrono::hours(1000);
    fleet.StartHolder(0);
  }
  // Opens a lane, as a context does that never had one to the holder.
  absl::Status Open() {
    tables.push_back(std::make_unique<LinkTable>(&options, &peers));
    const auto published =
        std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
    LinkTable::ChunkLinks& chunk_links = **tables.back()->LinksFor(published);
    absl::Status status = tables.back()->EnsureUp(*chunk_links.links[0], clock.Now() + kLong);
    if (status.ok()) kind = chunk_links.links[0]->lane().kind();
    return status;
  }
  FabricKind Opened() {
    const absl::Status status = Open();
    EXPECT_TRUE(status.ok()) << status;
    return kind;
  }
  HolderView View() { return peers.Views().at(0); }

  static constexpr Duration kLong = std::chrono::hours(10'000);
  ShiftedClock clock;
  ScriptedFabric shm{FabricKind::kShm, &clock, seconds(30)};
  ScriptedFabric tcp{FabricKind::kTcp, &clock, seconds(100)};
  ScriptedFabric verbs{FabricKind::kVerbs, &clock, seconds(10), 10e3};
  TestFleet fleet{{&shm, &tcp, &verbs}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {3}, 1);
  std::vector<std::unique_ptr<LinkTable>> tables;
  FabricKind kind = FabricKind::kLoopback;
};

TEST_F(FabricChoiceTest, TheFastestIsTakenWhateverTheOrder) {
  options.fabrics = {&tcp, &shm, &verbs};
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  const HolderView seen = View();
  EXPECT_EQ(seen.fabric, FabricKind::kVerbs);
  ASSERT_EQ(seen.trials.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen.trials[i].fabric, options.fabrics[i]->kind());
    EXPECT_EQ(seen.trials[i].why_not, "");
  }
  // A header of 64 bytes is sent each way.
  EXPECT_NEAR(seen.trials[0].constants.t_probe_us, 100'128'000, 2'000'000);
  EXPECT_NEAR(seen.trials[0].constants.bandwidth_bytes_per_s, 1e3, 2e2);
  EXPECT_NEAR(seen.trials[0].exchange_us, ExchangeUs(seen.trials[0].constants), 1e-6);
  EXPECT_GE(seen.trials[0].exchange_p50_us, seen.trials[0].exchange_us);
  EXPECT_NEAR(seen.trials[2].constants.t_probe_us, 10'013'000, 2'000'000);
  // The predicate uses the measured constants.
  EXPECT_EQ(seen.constants.t_probe_us, seen.trials[2].constants.t_probe_us);
  EXPECT_EQ(seen.constants.bandwidth_bytes_per_s, LiveFabric::kBandwidthMin);
  // The others' lanes and sessions are closed.
  EXPECT_EQ(fleet.holder(0).stats().session_count, 1u);
}

TEST(ExchangeUs, IsTheProbeAndSixteenRows) {
  EXPECT_DOUBLE_EQ(ExchangeUs({10, 1e9}), 10 + 16 * 2184 / 1e3);
  EXPECT_DOUBLE_EQ(ExchangeUs({10, 0}), 10);
}

TEST_F(FabricChoiceTest, BandwidthDecidesWhereProbesDoNot) {
  verbs.set_cost(seconds(100), 10e3);
  options.fabrics = {&tcp, &verbs};
  tcp.set_cost(seconds(100), 0.2e3);  // 175 s for 16 rows
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
}

TEST_F(FabricChoiceTest, ATieIsWonByThePreferred) {
  // 10 % apart, whichever is first.
  tcp.set_cost(seconds(100), 10e3);
  verbs.set_cost(seconds(90), 10e3);
  options.fabrics = {&tcp, &verbs};
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  PeerTable others(&view, &fleet);
  options.fabrics = {&verbs, &tcp};
  LinkTable table(&options, &others);
  const auto published =
      std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
  HolderLink& link = *(*table.LinksFor(published))->links[0];
  ASSERT_TRUE(table.EnsureUp(link, clock.Now() + kLong).ok());
  EXPECT_EQ(link.lane().kind(), FabricKind::kVerbs);
}

TEST_F(FabricChoiceTest, LaterLanesTakeItWithoutProbing) {
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  const int sessions = fleet.session_calls();
  EXPECT_EQ(sessions, 3);
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  EXPECT_EQ(fleet.session_calls(), sessions + 1);
  EXPECT_EQ(shm.connect_count(), 1);
  EXPECT_EQ(tcp.connect_count(), 1);
  EXPECT_EQ(verbs.connect_count(), 2);
}

// The first call to a holder that restarted pays for no probes, unless it has other fabrics now.
TEST_F(FabricChoiceTest, ChoosesAgainForAnIncarnationWithOtherFabrics) {
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  tables.clear();
  fleet.StopHolder(0);
  fleet.StartHolder(0);
  verbs.set_cost(seconds(500), 1e3);
  const int sessions = fleet.session_calls();
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  EXPECT_EQ(fleet.session_calls(), sessions + 1);
  tables.clear();
  fleet.StopHolder(0);
  fleet.StartHolder(0);
  fleet.Unlist(FabricKind::kTcp);
  EXPECT_EQ(Opened(), FabricKind::kShm);
  EXPECT_EQ(View().fabric, FabricKind::kShm);
}

TEST_F(FabricChoiceTest, ChoosesAgainIfALaneCannotBeOpened) {
  options.fabrics = {&tcp, &shm};
  EXPECT_EQ(Opened(), FabricKind::kShm);
  shm.set_connect_error(absl::UnavailableError("no memory to share"));
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  EXPECT_THAT(View().trials[1].why_not, HasSubstr("no memory to share"));
  // The choice holds as long as its lanes can be opened.
  shm.set_connect_error(absl::OkStatus());
  EXPECT_EQ(Opened(), FabricKind::kTcp);
}

TEST_F(FabricChoiceTest, DoesNotProbeASingleFabric) {
  options.fabrics = {&tcp};
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  EXPECT_TRUE(View().trials.empty());
  EXPECT_EQ(View().constants.t_probe_us, 0);
  EXPECT_EQ(fleet.session_calls(), 1);
  EXPECT_EQ(fleet.holder(0).stats().request_count, 0u);
}

TEST_F(FabricChoiceTest, SkipsFabricsThatEitherSideLacks) {
  TestFleet others({&tcp, &shm});
  others.StartHolder(0);
  DirectoryView directory(&others);
  PeerTable table_peers(&directory, &others);
  LinkTable table(&options, &table_peers);
  tcp.set_cost(seconds(100), 1e3);
  const auto published =
      std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
  HolderLink& link = *(*table.LinksFor(published))->links[0];
  ASSERT_TRUE(table.EnsureUp(link, clock.Now() + kLong).ok());
  EXPECT_EQ(link.lane().kind(), FabricKind::kShm);
  // The holder is not queried for fabrics that it did not report.
  EXPECT_EQ(others.session_calls(), 2);
  const HolderView seen = table_peers.Views().at(0);
  EXPECT_GT(seen.trials[1].exchange_us, 0);
  EXPECT_THAT(seen.trials[2].why_not, HasSubstr("the holder has none"));
}

// An answer whose list lacks the fabric that it takes is malformed.
TEST_F(FabricChoiceTest, RefusesAnAnswerThatContradictsItself) {
  options.fabrics = {&tcp};
  fleet.Unlist(FabricKind::kTcp);
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("not among the holder's fabrics"));
}

TEST_F(FabricChoiceTest, AFabricThatHangsLeavesTimeForTheOthers) {
  shm.set_connect_error(absl::DeadlineExceededError("nobody came"), std::chrono::hours(100'000));
  const Instant begin = clock.Now();
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  EXPECT_LT(clock.Now() - begin, options.connect_timeout);
  EXPECT_THAT(View().trials[0].why_not, HasSubstr("nobody came"));
}

// Forty round trips over tcp do not fit into its 3500 s. The round trips of an eighth of that time
// decide.
TEST_F(FabricChoiceTest, AFabricThatEchoesSlowlyIsNotRefused) {
  options.fabrics = {&shm, &tcp};
  options.connect_timeout = seconds(4000);
  const Instant begin = clock.Now();
  EXPECT_EQ(Opened(), FabricKind::kShm);
  EXPECT_LT(clock.Now() - begin, options.connect_timeout / 2);
  const HolderView seen = View();
  for (const FabricTrial& trial : seen.trials) EXPECT_EQ(trial.why_not, "");
  EXPECT_NEAR(seen.trials[0].constants.t_probe_us, 30'128'000, 2'000'000);
  EXPECT_NEAR(seen.trials[1].constants.t_probe_us, 100'128'000, 2'000'000);
  EXPECT_NEAR(seen.trials[1].constants.bandwidth_bytes_per_s, 1e3, 2e2);
}

// A full slot takes 4096 s over tcp both ways. Tcp has 4000 s, half of them for measuring.
TEST_F(FabricChoiceTest, AFabricWithoutBandwidthIsNotRefused) {
  tcp.set_cost(seconds(1), 2);
  options.fabrics = {&tcp, &shm};
  options.connect_timeout = seconds(8000);
  EXPECT_EQ(Opened(), FabricKind::kShm) << View().trials[1].why_not;
  const FabricTrial trial = View().trials[0];
  EXPECT_EQ(trial.why_not, "");
  EXPECT_NEAR(trial.constants.t_probe_us, 77e6, 2e6);  // two headers, 152 B
  // Less than the rate of all that was requested, 8 slots in 2000 s.
  EXPECT_GT(trial.constants.bandwidth_bytes_per_s, 0);
  EXPECT_LE(trial.constants.bandwidth_bytes_per_s, 8 * 4096 / 2000.0);
  EXPECT_GT(trial.exchange_us, 1000e6);
}

TEST_F(FabricChoiceTest, GivesTheReasonForEachFabricIfNoneWorks) {
  shm.set_dial_error(absl::ResourceExhaustedError("memory is out"));
  tcp.set_connect_error(absl::UnavailableError("refused"));
  verbs.set_invite_error(absl::UnavailableError("no port is up"));
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (const char* part : {"shm: memory is out", "tcp: tcp lane: refused", "no port is up"})
    EXPECT_THAT(status.ToString(), HasSubstr(part));
  EXPECT_EQ(fleet.holder(0).stats().session_count, 0u);
  verbs.set_invite_error(absl::OkStatus());
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
}

// A refusal of a session by the holder is not about fabrics, so its code is returned.
TEST_F(FabricChoiceTest, ARefusalThatIsNotOfAFabricIsTheAnswer) {
  TestFleet full({&shm, &tcp, &verbs});
  full.StartHolder(0, size_t{1} << 20, /*session_count_max=*/1);
  DirectoryView directory(&full);
  PeerTable table_peers(&directory, &full);
  LinkTable first(&options, &table_peers), second(&options, &table_peers);
  const auto published =
      std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
  // The holder has room for one session, the current one. None is left to try the other fabrics.
  HolderLink& link = *(*first.LinksFor(published))->links[0];
  ASSERT_TRUE(first.EnsureUp(link, clock.Now() + kLong).ok());
  EXPECT_EQ(link.lane().kind(), FabricKind::kShm);
  EXPECT_THAT(table_peers.Views().at(0).trials[1].why_not, HasSubstr("sessions"));
  HolderLink& refused = *(*second.LinksFor(published))->links[0];
  EXPECT_EQ(second.EnsureUp(refused, clock.Now() + kLong).code(),
            absl::StatusCode::kResourceExhausted);
}

// Eight contexts contact the holder at once: one of them chooses, the others wait for it.
TEST_F(FabricChoiceTest, SimultaneousCallsChooseOnce) {
  std::vector<std::unique_ptr<LinkTable>> contexts;
  std::vector<HolderLink*> links;
  const auto published =
      std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(std::make_unique<LinkTable>(&options, &peers));
    links.push_back((*contexts.back()->LinksFor(published))->links[0]);
  }
  std::vector<std::thread> threads;
  std::atomic<int> over_verbs{0};
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      contexts[i]->Claim();
      if (contexts[i]->EnsureUp(*links[i], kInstantMax).ok())
        over_verbs += links[i]->lane().kind() == FabricKind::kVerbs ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(over_verbs, 8);
  EXPECT_EQ(shm.connect_count(), 1);
  EXPECT_EQ(tcp.connect_count(), 1);
}

// Goal: a forced fabric is used or refused; no other is used.
TEST_F(FabricChoiceTest, AForcedFabricIsTakenThoughSlower) {
  options.forced = FabricKind::kTcp;
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  EXPECT_EQ(fleet.session_calls(), 1);
  EXPECT_TRUE(View().trials.empty());
}

TEST_F(FabricChoiceTest, AForcedFabricThatFailsNamesTheOthers) {
  options.forced = FabricKind::kVerbs;
  options.rdma_fallback = RdmaFallback::kTcp;  // forced is forced
  verbs.set_connect_error(absl::UnavailableError("no path"));
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("fabric verbs is forced: verbs lane: no path"));
  EXPECT_THAT(status.ToString(), HasSubstr("the holder has shm, tcp, verbs"));
  EXPECT_EQ(fleet.holder(0).stats().session_count, 0u);
  fleet.StopHolder(0);
  EXPECT_THAT(Open().ToString(), HasSubstr("fabric verbs is forced: opening a session"));
}

TEST(RequesterFabrics, AForcedOneMustBeAmongThem) {
  TestFleet fleet({});
  RequesterOptions options;
  options.fabric = FabricKind::kVerbs;
  EXPECT_EQ(Requester::Create(options, &fleet, &fleet).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.fabric = FabricKind::kTcp;
  EXPECT_TRUE(Requester::Create(options, &fleet, &fleet).ok());
}

// Goal: if RDMA is expected but fails, tcp is used only if that was requested, and the fallback is
// shown.
struct RdmaFallbackTest : FabricChoiceTest {
  RdmaFallbackTest() {
    options.fabrics = {&verbs, &tcp};
    options.counters = &counters;
  }
  CallCounters counters;
};

TEST_F(RdmaFallbackTest, RefusedByDefaultWhereverVerbsFails) {
  const absl::Status down = absl::UnavailableError("the port is down");
  const auto expect_refused = [&] {
    const absl::Status status = Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.ToString(), HasSubstr("the port is down"));
    EXPECT_THAT(status.ToString(), HasSubstr("set rdma_fallback to tcp"));
    EXPECT_EQ(fleet.holder(0).stats().session_count, 0u);
  };
  verbs.set_connect_error(down);
  expect_refused();
  verbs.set_connect_error(absl::OkStatus());
  verbs.set_dial_error(down);
  expect_refused();
  // The same after it had been chosen.
  verbs.set_dial_error(absl::OkStatus());
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  tables.clear();
  verbs.set_connect_error(down);
  expect_refused();
  EXPECT_EQ(counters.rdma_fallbacks, 0u);
  verbs.set_connect_error(absl::OkStatus());
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
}

TEST_F(RdmaFallbackTest, RefusedWhereTheHoldersEndFails) {
  verbs.set_invite_error(absl::UnavailableError("the port is down"));
  // The holder took tcp of the two, and reports that it has both.
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("set rdma_fallback to tcp"));
}

TEST_F(RdmaFallbackTest, NoFallbackWhereTheHolderHasNoVerbs) {
  TestFleet others({&tcp});
  others.StartHolder(0);
  DirectoryView directory(&others);
  PeerTable table_peers(&directory, &others);
  LinkTable table(&options, &table_peers);
  const auto published =
      std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
  HolderLink& link = *(*table.LinksFor(published))->links[0];
  EXPECT_TRUE(table.EnsureUp(link, clock.Now() + kLong).ok());
  EXPECT_EQ(table_peers.Views().at(0).fallback, "");
  EXPECT_EQ(counters.rdma_fallbacks, 0u);
}

// The tcp lane, which is measured first, has the holder's last session.
TEST_F(RdmaFallbackTest, ForWantOfASessionItIsNoFaultOfVerbs) {
  options.fabrics = {&tcp, &verbs};
  for (const RdmaFallback fallback : {RdmaFallback::kRefuse, RdmaFallback::kTcp}) {
    options.rdma_fallback = fallback;
    TestFleet full({&tcp, &verbs});
    full.StartHolder(0, size_t{1} << 20, /*session_count_max=*/1);
    DirectoryView directory(&full);
    PeerTable table_peers(&directory, &full);
    LinkTable table(&options, &table_peers);
    const auto published =
        std::make_shared<const Corpus>(corpus.Publish("c", "", {{TestFleet::Name(0)}}));
    HolderLink& link = *(*table.LinksFor(published))->links[0];
    const absl::Status status = table.EnsureUp(link, clock.Now() + kLong);
    if (fallback == RdmaFallback::kTcp) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_NE(table_peers.Views().at(0).fallback, "");
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(full.holder(0).stats().session_count, 0u);
    }
  }
}

// Using shm instead of verbs is not a fallback.
TEST_F(RdmaFallbackTest, OnlyTcpIsAFallback) {
  options.fabrics = {&verbs, &shm, &tcp};
  verbs.set_connect_error(absl::UnavailableError("the port is down"));
  EXPECT_EQ(Opened(), FabricKind::kShm);
  EXPECT_EQ(View().fallback, "");
}

TEST_F(RdmaFallbackTest, WithTcpItFallsBackAndShows) {
  options.rdma_fallback = RdmaFallback::kTcp;
  verbs.set_connect_error(absl::UnavailableError("the port is down"));
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  EXPECT_THAT(View().fallback, HasSubstr("the port is down"));
  EXPECT_EQ(counters.rdma_fallbacks, 1u);
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  EXPECT_EQ(counters.rdma_fallbacks, 2u);
  EXPECT_EQ(verbs.connect_count(), 1);
  // Verbs is tried again once the choice is old; lanes that are up stay.
  verbs.set_connect_error(absl::OkStatus());
  EXPECT_EQ(Opened(), FabricKind::kTcp);
  clock.Advance(kFallbackAgeMax);
  EXPECT_EQ(Opened(), FabricKind::kVerbs);
  EXPECT_EQ(View().fallback, "");
  EXPECT_EQ(counters.rdma_fallbacks, 3u);
}

// The choice is among the fabrics that both sides have. By default, a requester has shm and tcp.
TEST(RequesterFabrics, UsesItsOwnFabrics) {
  const auto shm = NewShmFabric(Clock::Real()), tcp = NewTcpFabric(Clock::Real());
  const auto corpus = MakeTestCorpus(TestGeometry(), {9}, 6);
  std::mt19937 rng(6);
  const auto q = test::RandomBf16(4 * 96, rng);
  const std::vector<std::vector<Fabric*>> holders_have = {{tcp.get(), shm.get()}, {tcp.get()}};
  for (const auto& fabrics : holders_have) {
    TestFleet fleet(fabrics);
    fleet.StartHolder(0);
    fleet.Load("c", corpus, {0});
    auto requester = Requester::Create({}, &fleet, &fleet);
    ASSERT_TRUE(requester.ok());
    AttendCall call;
    call.corpus = *(*requester)->Resolve("c", "", test::Soon());
    call.q = {q.data(), 4, 96};
    call.deadline = test::Soon();
    test::Answer got(4, 64);
    const absl::Status status = (*requester)->Attend(call, got.View(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const HolderView view = (*requester)->Holders()[0];
    ASSERT_EQ(view.trials.size(), 2u);
    EXPECT_EQ(view.trials[0].fabric, FabricKind::kShm);
    EXPECT_GT(view.trials[1].exchange_us, 0);
    if (fabrics.size() == 1) {
      EXPECT_EQ(view.fabric, FabricKind::kTcp);
      EXPECT_FALSE(view.trials[0].why_not.empty());
    } else {
      // The faster one is measured here and now.
      EXPECT_GT(view.trials[0].exchange_us, 0);
      EXPECT_EQ(view.fabric, view.trials[1].exchange_p50_us <
                                     view.trials[0].exchange_us * (1 - kExchangeTieShare)
                                 ? FabricKind::kTcp
                                 : FabricKind::kShm);
    }
  }
}

}  // namespace
}  // namespace ckv
