// Goal: everything that a store keeps is checked over and over at the rate that was set, and
// nothing else waits for it. Method: a store with damage put into its files and its memory. Where
// time matters, only the test advances the clock.

#include "server/upkeep/scrubber.h"

#include <filesystem>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "tests/store/store_fixture.h"

namespace ckv {
namespace {

constexpr uint32_t kChunkCount = 24;

struct ScrubberTest : StoreFixture {
  ScrubberTest() : StoreFixture(kChunkCount, 8) {
    for (const SmallChunk& chunk : chunks) EXPECT_TRUE(Put(chunk).ok());
    scrub.bytes_per_second = 1 << 30;
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const Instant give_up = Clock::Real()->Now() + std::chrono::seconds(20);
    while (!condition()) {
      if (Clock::Real()->Now() >= give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void OnePass() {
    const Scrubber scrubber(scrub, store.get(), &counters);
    EXPECT_TRUE(Eventually([&] { return counters.pass_count > 0; }));
  }

  ScrubberOptions scrub;
  ScrubCounters counters;
};

TEST_F(ScrubberTest, APassChecksEverythingInBothPlaces) {
  OnePass();
  uint64_t bytes = 0;
  for (const SmallChunk& chunk : chunks) {
    const uint64_t rows = 3 * 2800;
    bytes += std::filesystem::file_size(FileOf(chunk)) - kSmallChunkBytes + rows;
    bytes += IsHot(chunk) ? rows : 0;
  }
  // A whole pass, and the part of one before it that began at some chunk.
  EXPECT_GE(counters.checked_bytes, bytes);
  EXPECT_LE(counters.checked_bytes, 2 * bytes);
  EXPECT_EQ(store->stats().table.cold_count, kChunkCount - 8) << "nothing became hot or cold";
  EXPECT_EQ(store->stats().damaged_count + store->stats().healed_count, 0u);
}

TEST_F(ScrubberTest, FindsDamageInFilesAndInMemory) {
  std::mt19937 random(7);
  uint64_t healed = 0, lost = 0;
  for (uint32_t i = 0; i < kChunkCount; i += 2) {
    FlipFile(chunks[i], random() % std::filesystem::file_size(FileOf(chunks[i])));
    IsHot(chunks[i]) ? ++healed : ++lost;
  }
  const uint32_t hot = kChunkCount - 1;  // an odd one: its file is whole
  {
    const ChunkPin pin = *store->table().Pin(*store->table().Locate(chunks[hot].info.id));
    const_cast<std::byte&>(pin.chunk().layer(1)[777]) ^= std::byte{1};
  }
  OnePass();
  EXPECT_EQ(store->stats().healed_count, healed + 1);
  EXPECT_EQ(store->stats().damaged_count, lost);
  EXPECT_EQ(store->TakeLost().size(), lost);
  for (const SmallChunk& chunk : chunks) {
    const auto locator = store->table().Find(chunk.info.id, geometry);
    if (!locator.ok()) continue;
    const ChunkPin pin = *store->Load(*locator);
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      const auto rows = pin.chunk().layer(l);
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), chunk.layers[l].begin()));
    }
  }
}

// The rate holds: a number of bytes takes its time, and at most one step more.
TEST_F(ScrubberTest, KeepsTheRate) {
  ManualClock clock;
  const uint64_t chunk_bytes =
      std::filesystem::file_size(FileOf(chunks[0])) - kSmallChunkBytes + 8400;
  options.clock = &clock;
  store.reset();
  store = *ChunkStore::Open(options);  // all cold
  scrub.clock = &clock;
  scrub.bytes_per_second = chunk_bytes;  // a chunk a second
  const Instant begin = clock.Now();
  const Scrubber scrubber(scrub, store.get(), &counters);
  const auto until = [&](uint64_t chunk_count) {
    return Eventually([&] {
      clock.Advance(std::chrono::milliseconds(1));
      return counters.checked_bytes >= chunk_count * chunk_bytes;
    });
  };
  ASSERT_TRUE(until(10));
  // A chunk takes four steps, of which the last is read before its time is over.
  const uint64_t passed = static_cast<uint64_t>((clock.Now() - begin) / std::chrono::seconds(1));
  EXPECT_LE(counters.checked_bytes, (passed + 2) * chunk_bytes);
  // Time without reads, because the device or the thread was busy, is not caught up with.
  const uint64_t before = counters.checked_bytes / chunk_bytes;
  clock.Advance(std::chrono::hours(1));
  ASSERT_TRUE(until(before + 1));
  EXPECT_LE(counters.checked_bytes, (before + 3) * chunk_bytes);
}

TEST_F(ScrubberTest, ADeviceThatFailsIsCountedAndCostsNothing) {
  files.set_hook([](FaultFileSystem::Call call, const std::string&) {
    return call == FaultFileSystem::Call::kRead ? absl::UnavailableError("input/output error")
                                                : absl::OkStatus();
  });
  OnePass();
  EXPECT_GE(counters.unreadable_count, kChunkCount);
  EXPECT_EQ(store->stats().table.chunk_count, kChunkCount);
  EXPECT_EQ(store->stats().damaged_count, 0u);
}

TEST_F(ScrubberTest, OffReadsNothingAndEndsAtOnce) {
  scrub.bytes_per_second = 0;
  { const Scrubber off(scrub, store.get(), &counters); }
  EXPECT_EQ(counters.checked_bytes, 0u);
  // The clock never advances, so anything that waited would wait for ever.
  ManualClock clock;
  scrub.clock = &clock;
  scrub.bytes_per_second = 1;
  { const Scrubber waiting(scrub, store.get(), &counters); }
}

// After each pass, and a pause of pass_period_min, another one begins.
TEST_F(ScrubberTest, PassesRepeat) {
  ManualClock clock;
  scrub.clock = &clock;
  const Scrubber scrubber(scrub, store.get(), &counters);
  for (uint64_t pass = 1; pass <= 3; ++pass) {
    ASSERT_TRUE(Eventually([&] {
      clock.Advance(std::chrono::milliseconds(10));
      return counters.pass_count == pass;
    }));
    clock.Advance(scrub.pass_period_min);
  }
}

}  // namespace
}  // namespace ckv
