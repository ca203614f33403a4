#include "store/memory/chunk_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

class ChunkTableTest : public testing::Test {
 protected:
  ChunkId Put(const SmallChunk& small, const Geometry& geometry) {
    auto writer = table_.Begin(small.info, geometry);
    EXPECT_TRUE(writer.ok()) << writer.status();
    auto chunk = WriteSmallChunk(*std::move(writer), small);
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    const absl::Status inserted = table_.Insert(*std::move(chunk));
    EXPECT_TRUE(inserted.ok()) << inserted;
    return small.info.id;
  }
  ChunkId Put(uint32_t tokens, uint32_t seed) {
    return Put(MakeSmallChunk(geometry_, tokens, seed), geometry_);
  }

  const Geometry geometry_ = SmallGeometry();
  const std::unique_ptr<Arena> arena_ = *Arena::Create(1 << 22);
  ChunkTable table_{arena_.get(), /*chunk_count_max=*/64};
};

TEST_F(ChunkTableTest, FindsAndReadsWhatWasPut) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  const ChunkId id = Put(small, geometry_);
  const auto locator = table_.Find(id, geometry_);
  ASSERT_TRUE(locator.ok()) << locator.status();
  const auto by_locator = table_.Pin(*locator);
  const auto by_id = table_.Pin(id, geometry_);
  ASSERT_TRUE(by_locator.ok() && by_id.ok());
  EXPECT_EQ(&by_locator->chunk(), &by_id->chunk());
  const auto rows = by_id->chunk().layer(1);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), small.layers[1].begin()));
  EXPECT_EQ(table_.stats().pin_count, 2u);
}

TEST_F(ChunkTableTest, RefusalsNameTheNextStep) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  EXPECT_EQ(table_.Find(small.info.id, geometry_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Pin(small.info.id, geometry_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Drop(small.info.id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.ledger().Keep(small.info.id, true).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Pin(ChunkLocator{9, 0}).status().code(), absl::StatusCode::kNotFound);
  Put(small, geometry_);
  Geometry other = geometry_;
  other.rope.theta = 5e4;
  const absl::Status refused = table_.Pin(small.info.id, other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("rope_theta"), std::string::npos) << refused;
  EXPECT_EQ(table_.Begin(small.info, geometry_).status().code(), absl::StatusCode::kAlreadyExists);
}

// Goal: a session that opens while the only chunk of its geometry is exchanged for its file finds
// the geometry. Method: one thread exchanges chunk after chunk, and puts the next one before it
// drops the last; another lists the geometries in use, which must never be none.
TEST_F(ChunkTableTest, AGeometryStaysInUseWhileItsOnlyChunkIsChilled) {
  const auto put = [&](uint32_t seed) {
    const ChunkId id = Put(1, seed);
    table_.MarkDurable(id);
    return id;
  };
  ChunkId last = put(0);
  std::atomic<bool> done{false};
  std::thread chills([&] {
    for (uint32_t seed = 1; seed <= 2000; ++seed) {
      const auto locator = table_.Locate(last);
      EXPECT_TRUE(locator.ok() && table_.Chill(*locator).ok());
      const ChunkId next = put(seed);
      EXPECT_TRUE(table_.Drop(last).ok());
      last = next;
    }
    done.store(true, std::memory_order_release);
  });
  uint64_t without = 0;
  while (!done.load(std::memory_order_acquire)) without += table_.geometries().InUse().empty();
  chills.join();
  EXPECT_EQ(without, 0u);
}

// Goal: garbage collection takes nothing that was put, put again or queried since it listed chunks.
TEST(ChunkTableIdle, KeepsTouchedChunks) {
  constexpr Duration kIdleMin = std::chrono::hours(1);
  ManualClock clock;
  const Geometry geometry = SmallGeometry();
  const auto arena = *Arena::Create(1 << 22);
  ChunkTable table(arena.get(), /*chunk_count_max=*/8, &clock);
  const SmallChunk small = MakeSmallChunk(geometry, 5, 1);
  const ChunkId id = small.info.id;
  EXPECT_FALSE(table.ledger().Touch(id));
  EXPECT_TRUE(absl::IsNotFound(table.Drop(id, {.not_kept = true, .idle_min = kIdleMin})));
  auto chunk = WriteSmallChunk(*table.Begin(small.info, geometry), small);
  clock.Advance(kIdleMin);  // the time of a put is not idle time
  ASSERT_TRUE(table.Insert(*std::move(chunk)).ok());
  const auto idle = [&] { return table.List(std::nullopt, 1).at(0).idle; };
  EXPECT_EQ(idle(), Duration(0));
  EXPECT_FALSE(table.List(std::nullopt, 1).at(0).durable);
  const auto expect_touched_by = [&](auto touch) {
    clock.Advance(kIdleMin);
    EXPECT_GE(idle(), kIdleMin);
    touch();
    EXPECT_EQ(idle(), Duration(0));
    clock.Advance(kIdleMin - Duration(1));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(table.Drop(id, {.not_kept = true, .idle_min = kIdleMin})));
  };
  expect_touched_by([&] { EXPECT_TRUE(table.ledger().Touch(id)); });
  expect_touched_by(
      [&] { EXPECT_TRUE(absl::IsAlreadyExists(table.Begin(small.info, geometry).status())); });
  table.MarkDurable(id);
  EXPECT_TRUE(table.List(std::nullopt, 1).at(0).durable);
  ASSERT_TRUE(table.ledger().Keep(id, true).ok());
  clock.Advance(kIdleMin);
  EXPECT_TRUE(absl::IsFailedPrecondition(table.Drop(id, {.not_kept = true, .idle_min = kIdleMin})));
  ASSERT_TRUE(table.ledger().Keep(id, false).ok());
  EXPECT_TRUE(table.Drop(id, {.not_kept = true, .idle_min = kIdleMin}).ok());
  EXPECT_FALSE(table.Contains(id));
}

// Goal: knowing a chunk's id does not permit reading it; knowing its rows does.
TEST_F(ChunkTableTest, AChunkIsReadByWhomItWasPutFor) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  auto chunk = WriteSmallChunk(*table_.Begin(small.info, geometry_, "a"), small);
  ASSERT_TRUE(table_.Insert(*std::move(chunk), "a").ok());
  const absl::Status denied = table_.Find(small.info.id, geometry_, "b").status();
  EXPECT_TRUE(table_.Find(small.info.id, geometry_, "a").ok());
  EXPECT_TRUE(absl::IsNotFound(table_.Find(small.info.id, geometry_).status()));
  EXPECT_TRUE(absl::IsNotFound(table_.Pin(small.info.id, geometry_, "b").status()));
  // A mismatch of the geometry is not revealed either.
  Geometry other = geometry_;
  other.revision = "2";
  EXPECT_EQ(table_.Find(small.info.id, other, "b").status(), denied);

  SmallChunk guessed = small;
  guessed.info.tensor_checksums[1] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(table_.Begin(guessed.info, geometry_, "b").status()));
  EXPECT_FALSE(table_.Find(small.info.id, geometry_, "b").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(table_.Begin(small.info, geometry_, "b").status()));
  EXPECT_TRUE(table_.Pin(small.info.id, geometry_, "b").ok());
  EXPECT_FALSE(table_.Find(small.info.id, geometry_, "c").ok());

  ASSERT_TRUE(table_.Drop(small.info.id).ok());
  EXPECT_EQ(table_.Find(small.info.id, geometry_, "b").status(), denied) << "they look the same";
  auto again = WriteSmallChunk(*table_.Begin(small.info, geometry_, "c"), small);
  ASSERT_TRUE(table_.Insert(*std::move(again), "c").ok());
  EXPECT_FALSE(table_.Find(small.info.id, geometry_, "a").ok()) << "a new life, new readers";
}

TEST_F(ChunkTableTest, ReadersAreLimitedUntilEveryoneIsOne) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  auto chunk = WriteSmallChunk(*table_.Begin(small.info, geometry_, "t0"), small);
  ASSERT_TRUE(table_.Insert(*std::move(chunk), "t0").ok());
  const auto put = [&](const std::string& tenant) {
    return table_.Begin(small.info, geometry_, tenant).status().code();
  };
  for (size_t i = 1; i < ChunkLedger::kReaderCountMax; ++i) {
    EXPECT_EQ(put("t" + std::to_string(i)), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(put("one too many"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(put("t7"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(put(""), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(table_.Find(small.info.id, geometry_, "one too many").ok());
}

// Goal: the second of two tenants that put a chunk at once may read it as well.
TEST_F(ChunkTableTest, TwoTenantsReadAtOnce) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  auto first = WriteSmallChunk(*table_.Begin(small.info, geometry_, "a"), small);
  auto second = WriteSmallChunk(*table_.Begin(small.info, geometry_, "b"), small);
  ASSERT_TRUE(table_.Insert(*std::move(first), "a").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(table_.Insert(*std::move(second), "b")));
  EXPECT_TRUE(table_.Find(small.info.id, geometry_, "b").ok());
}

TEST_F(ChunkTableTest, RefusesTheSecondOfTwoSimultaneousPuts) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  auto first = WriteSmallChunk(*table_.Begin(small.info, geometry_), small);
  auto second = WriteSmallChunk(*table_.Begin(small.info, geometry_), small);
  ASSERT_TRUE(first.ok() && second.ok());
  const uint64_t both_bytes = arena_->used_bytes();
  EXPECT_TRUE(table_.Insert(*std::move(first)).ok());
  EXPECT_EQ(table_.Insert(*std::move(second)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(arena_->used_bytes(), both_bytes / 2);
  EXPECT_EQ(table_.stats().chunk_count, 1u);
}

TEST_F(ChunkTableTest, ADroppedChunkIsReadableUntilItsLastPinEnds) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  const ChunkId id = Put(small, geometry_);
  const ChunkLocator locator = *table_.Find(id, geometry_);
  auto pin = *table_.Pin(locator);
  auto second = *table_.Pin(locator);
  ASSERT_TRUE(table_.Drop(id).ok());
  EXPECT_EQ(table_.Pin(locator).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Pin(id, geometry_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.stats().chunk_count, 0u);
  EXPECT_GT(arena_->used_bytes(), 0u);
  pin = ChunkPin();
  EXPECT_GT(arena_->used_bytes(), 0u);
  EXPECT_TRUE(
      std::equal(small.layers[2].begin(), small.layers[2].end(), second.chunk().layer(2).begin()));
  second = ChunkPin();
  EXPECT_EQ(arena_->used_bytes(), 0u);
}

TEST_F(ChunkTableTest, AChunkMayReturnWhileItsOldSelfIsPinned) {
  const SmallChunk small = MakeSmallChunk(geometry_, 5, 1);
  const ChunkId id = Put(small, geometry_);
  const ChunkLocator old_locator = *table_.Find(id, geometry_);
  const ChunkPin old_pin = *table_.Pin(old_locator);
  ASSERT_TRUE(table_.Drop(id).ok());
  Put(small, geometry_);
  const ChunkPin new_pin = *table_.Pin(id, geometry_);
  EXPECT_NE(&old_pin.chunk(), &new_pin.chunk());
  EXPECT_EQ(table_.Pin(old_locator).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ChunkTableTest, AReusedSlotDoesNotAnswerAnOldLocator) {
  const ChunkId first = Put(5, 1);
  const ChunkLocator stale = *table_.Find(first, geometry_);
  ASSERT_TRUE(table_.Drop(first).ok());
  const ChunkId second = Put(5, 2);
  const ChunkLocator fresh = *table_.Find(second, geometry_);
  EXPECT_EQ(stale.slot, fresh.slot);
  EXPECT_NE(stale.generation, fresh.generation);
  EXPECT_EQ(table_.Pin(stale).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(table_.Pin(fresh).ok());
}

TEST_F(ChunkTableTest, PinsMoveWithoutCountingTwice) {
  const ChunkId id = Put(5, 1);
  ChunkPin a = *table_.Pin(id, geometry_);
  ChunkPin b = std::move(a);
  EXPECT_TRUE(b.held());
  EXPECT_EQ(table_.stats().pin_count, 1u);
  ChunkPin c = *table_.Pin(id, geometry_);
  c = std::move(b);
  EXPECT_EQ(table_.stats().pin_count, 1u);
  ChunkPin& same = c;
  c = std::move(same);
  EXPECT_TRUE(c.held());
  c = ChunkPin();
  EXPECT_EQ(table_.stats().pin_count, 0u);
}

TEST_F(ChunkTableTest, SlotsInUseAreLimitedDrainingOnesIncluded) {
  ChunkTable table(arena_.get(), 1);
  const SmallChunk small = MakeSmallChunk(geometry_, 2, 1);
  const SmallChunk other = MakeSmallChunk(geometry_, 2, 2);
  auto one = WriteSmallChunk(*table.Begin(small.info, geometry_), small);
  auto two = WriteSmallChunk(*table.Begin(other.info, geometry_), other);
  ASSERT_TRUE(table.Insert(*std::move(one)).ok());
  EXPECT_EQ(table.Insert(*std::move(two)).code(), absl::StatusCode::kResourceExhausted);
  ChunkPin pin = *table.Pin(small.info.id, geometry_);
  ASSERT_TRUE(table.Drop(small.info.id).ok());
  EXPECT_EQ(table.Begin(other.info, geometry_).status().code(),
            absl::StatusCode::kResourceExhausted);
  pin = ChunkPin();
  EXPECT_TRUE(table.Begin(other.info, geometry_).ok());
}

TEST_F(ChunkTableTest, GeometriesAreInternedOnceAndLimited) {
  const Geometry* one = *table_.geometries().Intern(geometry_);
  EXPECT_EQ(*table_.geometries().Intern(SmallGeometry()), one);
  EXPECT_EQ(table_.geometries().Intern(Geometry{}).status().code(),
            absl::StatusCode::kInvalidArgument);
  Geometry other = geometry_;
  for (size_t i = 1; i < GeometrySet::kCountMax; ++i) {
    other.revision = "r" + std::to_string(i);
    EXPECT_TRUE(table_.geometries().Intern(other).ok());
  }
  other.revision = "one too many";
  EXPECT_EQ(table_.geometries().Intern(other).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*table_.geometries().Intern(geometry_), one);
}

// A malformed chunk must not use up a geometry for good.
TEST_F(ChunkTableTest, ARefusedChunkInternsNothing) {
  SmallChunk small = MakeSmallChunk(geometry_, 2, 1);
  small.info.id.bytes[0] ^= 1;
  Geometry other = geometry_;
  for (size_t i = 0; i < 2 * GeometrySet::kCountMax; ++i) {
    other.revision = "r" + std::to_string(i);
    EXPECT_EQ(table_.Begin(small.info, other).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(table_.geometries().Intern(geometry_).ok());
}

TEST_F(ChunkTableTest, ListsInTheOrderOfIdsPageByPage) {
  std::vector<ChunkId> ids;
  for (uint32_t i = 0; i < 10; ++i) ids.push_back(Put(i, i));
  std::sort(ids.begin(), ids.end());
  ASSERT_TRUE(table_.ledger().Keep(ids[3], true).ok());
  const ChunkPin pin = *table_.Pin(ids[4], geometry_);
  std::vector<ChunkListing> all;
  std::optional<ChunkId> after;
  for (;;) {
    const auto page = table_.List(after, 3);
    if (page.empty()) break;
    EXPECT_LE(page.size(), 3u);
    all.insert(all.end(), page.begin(), page.end());
    after = page.back().id;
  }
  ASSERT_EQ(all.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(all[i].id, ids[i]);
    EXPECT_EQ(all[i].kept, i == 3);
    EXPECT_EQ(all[i].pin_count, i == 4 ? 1u : 0u);
    EXPECT_EQ(all[i].bytes, ChunkLayout(geometry_, all[i].token_count).total_bytes());
  }
}

TEST_F(ChunkTableTest, StatsAndGeometriesFollowWhatIsResident) {
  EXPECT_TRUE(table_.geometries().InUse().empty());
  Geometry other = geometry_;
  other.revision = "2";
  const ChunkId id = Put(5, 1);
  Put(MakeSmallChunk(other, 7, 2), other);
  EXPECT_EQ(table_.geometries().InUse().size(), 2u);
  EXPECT_EQ(table_.stats().chunk_count, 2u);
  EXPECT_EQ(table_.stats().token_count, 12u);
  EXPECT_EQ(table_.stats().used_bytes, arena_->used_bytes());
  ASSERT_TRUE(table_.Drop(id).ok());
  ASSERT_EQ(table_.geometries().InUse().size(), 1u);
  EXPECT_EQ(table_.geometries().InUse()[0], other);
  EXPECT_EQ(table_.stats().token_count, 7u);
}

// Goal: readers never see a chunk's rows change under a pin, and nothing leaks. Method: two threads
// drop and put chunks while three pin them, by id and by remembered locators, and check every byte
// of a layer against the checksum in the chunk's own description.
TEST_F(ChunkTableTest, PinsHoldAgainstDropsFromOtherThreads) {
  std::vector<SmallChunk> chunks;
  for (uint32_t i = 0; i < 8; ++i) chunks.push_back(MakeSmallChunk(geometry_, 16, i));
  std::atomic<bool> done = false;
  std::atomic<uint64_t> read_count = 0;
  std::vector<std::thread> readers;
  for (uint32_t reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937 rng(reader);
      std::vector<ChunkLocator> locators(chunks.size());
      while (!done) {
        const size_t i = rng() % chunks.size();
        auto pin =
            rng() % 2 == 0 ? table_.Pin(locators[i]) : table_.Pin(chunks[i].info.id, geometry_);
        if (!pin.ok()) {
          const auto found = table_.Find(chunks[i].info.id, geometry_);
          if (found.ok()) locators[i] = *found;
          continue;
        }
        const ChunkInfo& info = pin->chunk().info();
        ASSERT_EQ(ChecksumOf(pin->chunk().layer(1)), info.tensor_checksums[1]);
        read_count += 1;
      }
    });
  }
  std::vector<std::thread> writers;
  for (uint32_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      std::mt19937 rng(100 + writer);
      // At least 2000 changes, and until the readers have had their turns too.
      for (int step = 0; step < 2000 || read_count < 100; ++step) {
        const SmallChunk& small = chunks[rng() % chunks.size()];
        if (table_.Drop(small.info.id).ok()) continue;
        auto begun = table_.Begin(small.info, geometry_);
        if (!begun.ok()) continue;
        auto chunk = WriteSmallChunk(*std::move(begun), small);
        ASSERT_TRUE(chunk.ok()) << chunk.status();
        const absl::Status inserted = table_.Insert(*std::move(chunk));
        ASSERT_TRUE(inserted.ok() || absl::IsAlreadyExists(inserted)) << inserted;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  for (std::thread& reader : readers) reader.join();
  for (const SmallChunk& small : chunks) table_.Drop(small.info.id).IgnoreError();
  EXPECT_EQ(arena_->used_bytes(), 0u);
  EXPECT_EQ(table_.stats().pin_count, 0u);
}

}  // namespace
}  // namespace ckv
