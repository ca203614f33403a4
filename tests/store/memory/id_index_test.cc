// Goal: what is in the index is found, by any number of readers, while one thread inserts and
// erases; what is not in it is not found, however often it was inserted and erased.

#include "store/memory/id_index.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/sanitized.h"

namespace ckv {
namespace {

constexpr auto kAny = [](uint32_t) { return true; };
constexpr uint64_t kFive = uint64_t{5} << 56 | 5;

TEST(IdIndex, FindsWhatIsThereAmongEqualHashes) {
  IdIndex index;
  EXPECT_EQ(index.Find(kFive, kAny), std::nullopt);
  for (uint32_t slot = 0; slot < 100; ++slot)
    index.Insert(kFive, slot, [](uint32_t) { return kFive; });
  for (uint32_t slot = 0; slot < 100; ++slot)
    EXPECT_EQ(index.Find(kFive, [slot](uint32_t s) { return s == slot; }), slot);
  EXPECT_EQ(index.Find(kFive, [](uint32_t) { return false; }), std::nullopt);
  EXPECT_EQ(index.Find(5, kAny), std::nullopt);  // another hash that begins where they do
  for (uint32_t slot = 0; slot < 100; slot += 2) index.Erase(kFive, slot);
  for (uint32_t slot = 0; slot < 100; ++slot)
    EXPECT_EQ(index.Find(kFive, [slot](uint32_t s) { return s == slot; }).has_value(),
              slot % 2 == 1);
}

// Against a map, with hashes that collide in runs and at the array's end.
TEST(IdIndex, AMillionChangesAreThoseOfAMap) {
  constexpr int kChanges = kSanitized ? 100'000 : 1'000'000;
  IdIndex index;
  std::map<uint32_t, uint64_t> there;  // slot to hash
  std::mt19937_64 rng(1);
  for (int i = 0; i < kChanges; ++i) {
    const auto slot = static_cast<uint32_t>(rng() % 3000);
    const auto found = there.find(slot);
    if (found != there.end()) {
      index.Erase(found->second, slot);
      there.erase(found);
    } else {
      const uint64_t hash = rng() % 2 == 0 ? rng() : 0xffffffe0 + rng() % 32;
      index.Insert(hash, slot, [&there](uint32_t other) { return there.at(other); });
      there[slot] = hash;
    }
    if (i % 50'000 != 0) continue;
    for (uint32_t s = 0; s < 3000; ++s) {
      const auto is = [s](uint32_t other) { return other == s; };
      const auto at = there.find(s);
      const uint64_t hash = at == there.end() ? s : at->second;
      ASSERT_EQ(index.Find(hash, is).has_value(), at != there.end()) << i << " " << s;
    }
  }
}

TEST(IdIndex, ReadersNeverMissWhatStays) {
  IdIndex index;
  constexpr uint32_t kStays = 500;
  const auto hash_of = [](uint64_t slot) { return slot * 0x9e3779b97f4a7c15u; };
  for (uint32_t slot = 0; slot < kStays; ++slot) index.Insert(hash_of(slot), slot, hash_of);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> missed{0}, looked{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      for (uint32_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        const uint32_t slot = i % kStays;
        const auto found = index.Find(hash_of(slot), [slot](uint32_t s) { return s == slot; });
        missed += found == slot ? 0 : 1;
        ++looked;
      }
    });
  }
  // Others are inserted and erased: the array doubles, and is swept many times.
  std::mt19937 rng(2);
  std::vector<uint32_t> others;
  uint32_t next = kStays;
  while (looked.load() < 200'000 || next < 200'000) {
    if (others.size() < 400 || rng() % 2 == 0) {
      index.Insert(hash_of(next), next, hash_of);
      others.push_back(next++);
    }
    if (others.size() > 300) {
      const size_t at = rng() % others.size();
      index.Erase(hash_of(others[at]), others[at]);
      others[at] = others.back();
      others.pop_back();
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(missed.load(), 0u);
}

}  // namespace
}  // namespace ckv
