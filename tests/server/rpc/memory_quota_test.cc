// Goal: calls that share a quota never hold more than it has, and what they give back is there
// again.

#include "server/rpc/memory_quota.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(MemoryQuota, TakesAllOrNothing) {
  MemoryQuota quota(100);
  EXPECT_FALSE(quota.Take(101));
  EXPECT_TRUE(quota.Take(60));
  EXPECT_FALSE(quota.Take(41));
  EXPECT_FALSE(quota.Take(~uint64_t{0}));  // and does not run over
  EXPECT_TRUE(quota.Take(40));
  EXPECT_TRUE(quota.Take(0));
  EXPECT_FALSE(quota.Take(1));
  quota.Give(60);
  EXPECT_TRUE(quota.Take(60));
}

TEST(MemoryQuota, ThreadsNeverHoldMore) {
  MemoryQuota quota(10);
  std::atomic<uint64_t> held = 0, most = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20'000; ++i) {
          if (!quota.Take(4)) continue;
          const uint64_t now = held += 4;
          uint64_t before = most;
          while (now > before && !most.compare_exchange_weak(before, now)) {
          }
          held -= 4;
          quota.Give(4);
        }
      });
    }
  }
  EXPECT_GE(most, 4u);
  EXPECT_LE(most, 8u);
  EXPECT_TRUE(quota.Take(10));
}

}  // namespace
}  // namespace ckv
