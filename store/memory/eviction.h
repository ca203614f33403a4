// Chooses the chunk to evict when the hot tier is full: the one that is cheapest to do without.
//
//   priority = clock + uses x cost_us / bytes
//
// GreedyDual-Size-Frequency (Cherkasova, HP Labs 98-69). `clock` is the priority of the chunk that
// went last, so chunks that were used often long ago age. Cost over size is what each byte of room
// buys. Reading a chunk again costs its transfer and one wait for the device, so small chunks are
// worth more a byte. A scan uses each chunk once, so its chunks push out one another. They rank
// behind all chunks that were used twice since the clock last passed them.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace ckv {

// How long reading a chunk again takes, from a device of this wait and bandwidth.
struct ReloadCost {
  double wait_us = 0;
  double bytes_per_us = 0;  // 0 means not known: transfers then cost nothing

  double Of(uint64_t bytes) const {
    return wait_us + (bytes_per_us > 0 ? double(bytes) / bytes_per_us : 0);
  }
};

// Chunks by their slot in the table, 56 bytes each. Not thread-safe: the table's mutex guards it.
class EvictionQueue {
 public:
  // The most uses that count, so that an old favourite can go.
  static constexpr uint32_t kUseCountMax = 16;

  // Adds a slot that is not in the queue, as used once.
  void Add(uint32_t slot, uint64_t bytes, double cost_us);
  // Does nothing if the slot is not in the queue.
  void Remove(uint32_t slot);
  bool Has(uint32_t slot) const { return slot < entries_.size() && entries_[slot].use_count > 0; }
  // Notes a use. Does nothing if the slot is not in the queue.
  void Use(uint32_t slot);
  // Returns the slot to go next among those for which `may_go` holds, if any. It stays in the queue
  // until Evicted.
  template <typename MayGo>
  std::optional<uint32_t> Next(MayGo may_go) const {
    for (const auto& [priority, slot] : order_) {
      if (may_go(slot)) return slot;
    }
    return std::nullopt;
  }
  // Removes a slot that went, and moves the clock to its priority.
  void Evicted(uint32_t slot);

  size_t size() const { return order_.size(); }

 private:
  struct Entry {
    double worth = 0;        // cost_us / bytes
    double priority = 0;     // as in order_
    uint32_t use_count = 0;  // 0 means not in the queue
  };
  void Place(uint32_t slot, Entry& entry);

  double clock_ = 0;
  std::vector<Entry> entries_;  // [slot]
  std::set<std::pair<double, uint32_t>> order_;
};

}  // namespace ckv
