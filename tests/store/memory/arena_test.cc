#include "store/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace ckv {
namespace {

std::unique_ptr<Arena> Make(size_t capacity_bytes) {
  auto arena = Arena::Create(capacity_bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

Extent Take(Arena& arena, size_t bytes) {
  auto extent = arena.Allocate(bytes);
  EXPECT_TRUE(extent.ok()) << extent.status();
  return extent.ok() ? *std::move(extent) : Extent();
}

TEST(Arena, RefusesWhatItCannotMap) {
  EXPECT_EQ(Arena::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  for (const size_t huge : {SIZE_MAX, SIZE_MAX - 64, SIZE_MAX / 2}) {
    EXPECT_EQ(Arena::Create(huge).status().code(), absl::StatusCode::kResourceExhausted) << huge;
  }
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
constexpr size_t kHuge = size_t{1} << 30;  // its shadow is real memory, an eighth of what is used
#else
constexpr size_t kHuge = size_t{256} << 30;
#endif

// Goal: capacity is address space, not memory. Method: reserve 256 GiB, more than a test machine
// has, and use both ends of it.
TEST(Arena, ReservesWithoutCommitting) {
  constexpr size_t kCapacity = kHuge;
  const auto arena = Make(kCapacity);
  const Extent middle = Take(*arena, kCapacity - 4096);
  const Extent end = Take(*arena, 4096);
  end.bytes().back() = std::byte{1};
  middle.bytes().front() = std::byte{2};
  EXPECT_EQ(end.bytes().back(), std::byte{1});
}

TEST(Arena, ExtentsAreAlignedAndCountedRounded) {
  const auto arena = Make(1000);
  EXPECT_EQ(arena->capacity_bytes(), 1024u);
  const Extent one = Take(*arena, 1);
  const Extent more = Take(*arena, 65);
  EXPECT_EQ(arena->used_bytes(), 64u + 128u);
  for (const Extent* extent : {&one, &more}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(extent->bytes().data()) % Arena::kAlignment, 0u);
  }
  EXPECT_EQ(more.bytes().size(), 65u);
}

TEST(Arena, ZeroBytesAreAnEmptyExtent) {
  const auto arena = Make(64);
  const Extent full = Take(*arena, 64);
  const Extent empty = Take(*arena, 0);
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(arena->used_bytes(), 64u);
}

TEST(Arena, RefusesIfNothingFitsAndReportsTheFreeBytes) {
  const auto arena = Make(256);
  const Extent taken = Take(*arena, 128);
  for (const size_t bytes : {size_t{129}, SIZE_MAX, SIZE_MAX - 63}) {
    const auto refused = arena->Allocate(bytes).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_NE(std::string(refused.message()).find("128 of 256 bytes are free"), std::string::npos)
        << refused;
  }
  EXPECT_EQ(arena->used_bytes(), 128u);
}

TEST(Arena, PicksTheSmallestRangeThatFits) {
  const auto arena = Make(64 * 16);
  Extent wide = Take(*arena, 64 * 4);
  const Extent wall = Take(*arena, 64);
  Extent narrow = Take(*arena, 64 * 2);
  const Extent wall_two = Take(*arena, 64);
  std::byte* const wide_at = wide.bytes().data();
  std::byte* const narrow_at = narrow.bytes().data();
  wide = {};
  narrow = {};
  EXPECT_EQ(Take(*arena, 64 * 2).bytes().data(), narrow_at);
  EXPECT_EQ(Take(*arena, 64 * 3).bytes().data(), wide_at);
}

TEST(Arena, MovingAnExtentFreesWhatItReplacesOnce) {
  const auto arena = Make(1024);
  Extent a = Take(*arena, 64);
  Extent b = Take(*arena, 128);
  a = std::move(b);
  EXPECT_EQ(arena->used_bytes(), 128u);
  Extent& same = a;
  a = std::move(same);
  EXPECT_EQ(a.bytes().size(), 128u);
  {
    const Extent c = std::move(a);
    EXPECT_EQ(arena->used_bytes(), 128u);
  }
  EXPECT_EQ(arena->used_bytes(), 0u);
}

// Goal: no two extents overlap, and ranges are joined so that all that was freed can be had as one.
// Method: random allocation and freeing against a byte pattern in each extent; at the end the whole
// capacity must be available as one extent.
TEST(Arena, RandomUseNeitherOverlapsNorFragmentsForGood) {
  constexpr size_t kCapacity = 1 << 16;
  for (uint32_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const auto arena = Make(kCapacity);
    std::vector<std::pair<Extent, std::byte>> live;
    for (int step = 0; step < 2000; ++step) {
      if (rng() % 2 == 0) {
        auto extent = arena->Allocate(1 + rng() % 3000);
        if (!extent.ok()) continue;
        const std::byte mark = static_cast<std::byte>(rng());
        std::fill(extent->bytes().begin(), extent->bytes().end(), mark);
        live.emplace_back(*std::move(extent), mark);
      } else if (!live.empty()) {
        std::swap(live[rng() % live.size()], live.back());
        const auto& [extent, mark] = live.back();
        for (const std::byte byte : extent.bytes()) ASSERT_EQ(byte, mark);
        live.pop_back();
      }
    }
    live.clear();
    EXPECT_EQ(arena->used_bytes(), 0u);
    EXPECT_EQ(Take(*arena, kCapacity).bytes().data(), arena->base());
  }
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
TEST(ArenaDeathTest, FreedRowsArePoisoned) {
  const auto arena = Make(4096);
  Extent extent = Take(*arena, 100);
  volatile std::byte* const stale = extent.bytes().data();
  extent = {};
  EXPECT_DEATH(stale[5] = std::byte{1}, "use-after-poison");
}
#endif

TEST(ArenaDeathTest, AnExtentMayNotOutliveItsArena) {
  EXPECT_DEATH(
      {
        auto arena = Arena::Create(4096);
        auto extent = (*arena)->Allocate(64);
        arena->reset();
      },
      "used_bytes");
}

}  // namespace
}  // namespace ckv
