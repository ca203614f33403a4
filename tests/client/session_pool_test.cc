// Goal: engines are lent to as many calls as there are engines, in the order of coming, and nobody
// waits past its deadline.

#include "client/session_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "client/route.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace ckv
