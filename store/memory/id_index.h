// An index that finds slots by the hashes of chunk ids, without a lock, with 4 bytes per entry.
// 100,000 chunks take 1 MB, which stays in a core's cache.
//
// Linear probing over a power of two of entries, at most half full. An entry is the slot and eight
// bits of the hash. An entry is only a hint: the caller checks whether the slot has the chunk, so
// an outdated entry does no harm.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace ckv {

// Any thread may call Find at any time. One thread at a time may call Insert and Erase.
class IdIndex {
 public:
  IdIndex();
  IdIndex(const IdIndex&) = delete;
  IdIndex& operator=(const IdIndex&) = delete;

  // All slot numbers are below this.
  static constexpr uint32_t kSlotEnd = (1u << 24) - 2;

  // Returns the slot of this hash for which `is(slot)` is true, if there is one. Finds every slot
  // that was inserted before the call and not erased since.
  template <typename Is>
  std::optional<uint32_t> Find(uint64_t hash, Is is) const {
    while (true) {
      const uint64_t version = version_.load(std::memory_order_acquire);
      const Array& array = *array_.load(std::memory_order_acquire);
      for (uint32_t i = hash & array.mask;; i = (i + 1) & array.mask) {
        const uint32_t entry = array.entries[i].load(std::memory_order_acquire);
        if (entry == kEmpty) break;
        if (entry >> 24 == TagOf(hash) && !Erased(entry) && is(SlotOf(entry))) return SlotOf(entry);
      }
      // Entries move only when the version changes.
      if (version_.load(std::memory_order_acquire) == version) return std::nullopt;
    }
  }

  // Adds a slot that is not in the index. `hash_of(slot)` returns the hash of any slot that is in
  // the index.
  template <typename HashOf>
  void Insert(uint64_t hash, uint32_t slot, HashOf hash_of) {
    if (used_count_ >= (array_.load(std::memory_order_relaxed)->mask + 1) / 2) {
      Array& from = *array_.load(std::memory_order_relaxed);
      Array& array = TakeArray();
      for (uint32_t i = 0; i <= from.mask; ++i) {
        const uint32_t entry = from.entries[i].load(std::memory_order_relaxed);
        if (entry != kEmpty && !Erased(entry)) Put(array, hash_of(SlotOf(entry)), SlotOf(entry));
      }
      Use(array);
    }
    Put(*array_.load(std::memory_order_relaxed), hash, slot);
    ++live_count_;
    ++used_count_;
  }
  // Removes a slot that is in the index with this hash.
  void Erase(uint64_t hash, uint32_t slot);

 private:
  struct Array {
    explicit Array(uint32_t size)
        : mask(size - 1), entries(std::make_unique<std::atomic<uint32_t>[]>(size)) {}
    uint32_t mask;
    std::unique_ptr<std::atomic<uint32_t>[]> entries;
  };
  // Tag << 24 | slot + 1.
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kErased = 0xffffff;
  static constexpr uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 56); }
  static constexpr uint32_t EntryOf(uint64_t hash, uint32_t slot) {
    return TagOf(hash) << 24 | (slot + 1);
  }
  static constexpr uint32_t SlotOf(uint32_t entry) { return (entry & 0xffffff) - 1; }
  static constexpr bool Erased(uint32_t entry) { return (entry & 0xffffff) == kErased; }
  static void Put(Array& array, uint64_t hash, uint32_t slot);

  // Returns an empty array of twice the size, or of the same size if erased entries fill the
  // current one.
  Array& TakeArray();
  void Use(Array& array);

  std::atomic<uint64_t> version_{0};
  std::atomic<Array*> array_;
  // All arrays ever used, because a reader may still be in one. Sizes double and each occurs at
  // most twice, so all arrays together have at most four times the size of the last.
  std::vector<std::unique_ptr<Array>> arrays_;
  uint32_t live_count_ = 0;
  uint32_t used_count_ = 0;  // live or erased
};

}  // namespace ckv
