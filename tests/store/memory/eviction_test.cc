// Goal: chunks in use stay, scanned ones pass through, and size and the cost to read again count.

#include "store/memory/eviction.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

uint32_t EvictNext(EvictionQueue& queue) {
  const auto next = queue.Next([](uint32_t) { return true; });
  EXPECT_TRUE(next.has_value());
  queue.Evicted(*next);
  return *next;
}

TEST(EvictionQueue, EvictsTheCheapestForItsSizeFirst) {
  EvictionQueue queue;
  const ReloadCost disk = {.wait_us = 100, .bytes_per_us = 1000};
  queue.Add(0, 64 << 20, disk.Of(64 << 20));
  queue.Add(1, 4 << 10, disk.Of(4 << 10));
  queue.Add(2, 1 << 20, disk.Of(1 << 20));
  EXPECT_EQ(EvictNext(queue), 0u);
  EXPECT_EQ(EvictNext(queue), 2u);
  EXPECT_EQ(EvictNext(queue), 1u);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(EvictionQueue, PinnedOnesArePassedOver) {
  EvictionQueue queue;
  for (uint32_t slot = 0; slot < 4; ++slot) queue.Add(slot, 100, 100);
  EXPECT_EQ(queue.Next([](uint32_t slot) { return slot == 2; }), 2u);
  EXPECT_EQ(queue.Next([](uint32_t) { return false; }), std::nullopt);
  queue.Remove(0);
  queue.Remove(0);
  EXPECT_EQ(EvictNext(queue), 1u);
}

// 50 chunks are used at random while 5,000 others pass once each, in a cache of 100. A use may find
// its chunk evicted at first, while a single use is all that is known of each, and hardly ever
// later. First in, first out would miss every second one for ever.
TEST(EvictionQueue, AScanDoesNotPushOutWhatIsUsed) {
  EvictionQueue queue;
  std::mt19937 random(5);
  std::vector<bool> resident(50, false);
  int early_misses = 0, late_misses = 0;
  const auto add = [&](uint32_t slot) {
    if (queue.size() == 100) {
      const uint32_t gone = EvictNext(queue);
      if (gone < 50) resident[gone] = false;
    }
    queue.Add(slot, 1000, 100);
  };
  for (uint32_t scanned = 50; scanned < 5050; ++scanned) {
    add(scanned);
    const uint32_t used = random() % 50;
    if (resident[used]) {
      queue.Use(used);
      continue;
    }
    ++(scanned < 1050 ? early_misses : late_misses);
    add(used);
    resident[used] = true;
  }
  EXPECT_LE(early_misses, 150);
  EXPECT_LE(late_misses, 40);
}

// Uses long ago age: a chunk that was used often is evicted once others have been used since.
TEST(EvictionQueue, EvictsAnOldFavourite) {
  EvictionQueue queue;
  queue.Add(0, 1000, 100);
  for (int i = 0; i < 1000; ++i) queue.Use(0);
  uint32_t slot = 1;
  bool gone = false;
  for (; slot < 1000 && !gone; ++slot) {
    queue.Add(slot, 1000, 100);
    queue.Use(slot);
    if (queue.size() > 10) gone = EvictNext(queue) == 0;
  }
  EXPECT_TRUE(gone);
  EXPECT_GT(slot, 50u);
}

}  // namespace
}  // namespace ckv
