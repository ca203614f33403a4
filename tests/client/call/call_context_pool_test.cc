// Goal: engines are lent to as many calls as there are engines, in the order of coming, and nobody
// waits past its deadline.

#include "client/session_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "client/route.h"
#include "gtest/gtest.h"
#include "tests/client/shifted_clock.h"
#include "tests/client/test_fleet.h"

namespace ckv {
namespace {

struct Pool : testing::Test {
  EnginePool Make(uint32_t engines) {
    return EnginePool(&clock, engines, [this] {
      ++made;
      return std::make_unique<CallEngine>(&options, nullptr, Duration(0), &counters);
    });
  }
  ManualClock clock;
  LinkOptions options{.requester = "",
                      .host_identity = "",
                      .clock = &clock,
                      .fabrics = {},
                      .forced = {},
                      .rdma_fallback = RdmaFallback::kRefuse,
                      .shape = {},
                      .connect_timeout = Duration(1)};
  RouteCounters counters;
  int made = 0;
};

TEST_F(Pool, MadeAsNeededAndTheWarmestFirst) {
  EnginePool pool = Make(3);
  CallEngine* first = nullptr;
  {
    const auto lease = pool.Take(kInstantMax);
    ASSERT_TRUE(lease.ok());
    first = &**lease;
    const auto second = pool.Take(kInstantMax);
    ASSERT_TRUE(second.ok());
    EXPECT_NE(first, &**second);
    EXPECT_EQ(made, 2);
  }
  // `first` was given back last.
  const auto again = pool.Take(kInstantMax);
  EXPECT_EQ(&**again, first);
  EXPECT_EQ(made, 2);
}

TEST_F(Pool, NobodyWaitsPastTheDeadline) {
  EnginePool pool = Make(1);
  const auto lease = pool.Take(kInstantMax);
  const Instant deadline = clock.Now() + std::chrono::seconds(1);
  absl::Status status;
  std::thread waiter([&] { status = pool.Take(deadline).status(); });
  clock.Advance(std::chrono::seconds(3));  // before it waits or while it does
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pool.Take(deadline).status().code(), absl::StatusCode::kDeadlineExceeded);
}

// Eight threads, two engines, 100 turns each: never more than two at once, and all come through.
TEST_F(Pool, NeverMoreThanThereAre) {
  EnginePool pool = Make(2);
  std::atomic<int> inside{0}, most{0}, turns{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 100; ++turn) {
        const auto lease = pool.Take(kInstantMax);
        ASSERT_TRUE(lease.ok());
        const int now = ++inside;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) continue;
        std::this_thread::yield();
        --inside;
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, 800);
  EXPECT_LE(most, 2);
  EXPECT_LE(made, 2);
}

// Goal: what an engine that is not used any more keeps open is closed by the calls of others.
struct IdleEngines : testing::Test {
  IdleEngines() {
    fleet.StartHolder(0);
    options.requester = "r";
    options.clock = &clock;
    options.fabrics = {fabric.get()};
    options.shape = test::SmallShape();
    options.connect_timeout = std::chrono::hours(1);
  }
  absl::StatusOr<EnginePool::Lease> Take() { return pool.Take(kInstantMax); }
  // As a call on behalf of the tenant does.
  void Use(EnginePool::Lease& engine, const std::shared_ptr<const Corpus>& published) {
    LinkTable& links = engine->router.links();
    const absl::Status status = links.EnsureUp(*(*links.RouteOf(published))->links[0], kInstantMax);
    EXPECT_TRUE(status.ok()) << status;
  }
  std::shared_ptr<const Corpus> CorpusOf(std::string tenant) {
    return std::make_shared<const Corpus>(
        corpus.Publish("c", std::move(tenant), {{test::TestFleet::Name(0)}}));
  }
  uint32_t SessionCount() { return fleet.holder(0).stats().session_count; }

  test::ShiftedClock clock;
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  test::TestFleet fleet{{fabric.get()}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  RouteCounters counters;
  test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {3}, 1);
  EnginePool pool{&clock, 3, [this] {
                    return std::make_unique<CallEngine>(&options, &peers, Duration(0), &counters);
                  }};
};

TEST_F(IdleEngines, LinksOfEnginesNeverUsedAgainAreClosed) {
  const auto of_a = CorpusOf("a"), of_b = CorpusOf("b");
  {
    auto first = Take(), second = Take(), third = Take();
    Use(*first, of_a);
    Use(*second, of_a);
    Use(*third, of_a);
    Use(*third, of_b);
  }
  EXPECT_EQ(SessionCount(), 4u);
  const auto call = [&] {
    auto engine = Take();
    Use(*engine, of_a);
  };
  // Half of it, so that the time the test itself takes does not count.
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  call();
  EXPECT_EQ(SessionCount(), 4u);
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  // One a call: a link of the second engine, and both of the third's.
  for (const uint32_t left : {3u, 2u, 1u, 1u}) {
    call();
    EXPECT_EQ(SessionCount(), left);
  }
  // They work all the same when they are needed again.
  auto first = Take(), second = Take(), third = Take();
  Use(*second, of_a);
  Use(*third, of_b);
  EXPECT_EQ(SessionCount(), 3u);
}

}  // namespace
}  // namespace ckv
