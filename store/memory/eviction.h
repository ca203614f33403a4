// Which resident chunk goes when the hot tier is full: the one that is cheapest to do without.
//
//   priority = clock + uses x cost_us / bytes
//
// GreedyDual-Size-Frequency (Cherkasova, HP Labs 98-69): `clock` is the priority of the chunk that
// went last, so that what was used often long ago ages, and cost over size is what each byte of
// room buys: reading a chunk again costs its transfer and one wait for the device, so small chunks
// are worth more a byte. A scan touches each chunk once, so its chunks stand behind all that were
// used twice since the clock last passed them, and push out one another.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace ckv {

// What it takes to read a chunk again, of `bytes`, from a device of this bandwidth and wait.
struct ReloadCost {
  double wait_us = 0;
  double bytes_per_us = 0;

  double Of(uint64_t bytes) const {
    return wait_us + (bytes_per_us > 0 ? double(bytes) / bytes_per_us : 0);
  }
};

// Chunks by their slot in the table. Not thread-safe: guarded by the table's mutex. 56 bytes a
// chunk.
class EvictionQueue {
 public:
  // A use beyond these counts no more: an old favourite must be able to go.
  static constexpr uint32_t kUseCountMax = 16;

  // `slot` became resident; it has been used once.
  void Add(uint32_t slot, uint64_t bytes, double cost_us);
  void Remove(uint32_t slot);
  void Use(uint32_t slot);
  // The slot to go next of those for which `may_go` holds; absent: none. It is not removed: Evicted
  // tells that it went, which is what moves the clock.
  template <typename MayGo>
  std::optional<uint32_t> Next(MayGo may_go) const {
    for (const auto& [priority, slot] : order_) {
      if (may_go(slot)) return slot;
    }
    return std::nullopt;
  }
  void Evicted(uint32_t slot);

  size_t size() const { return order_.size(); }

 private:
  struct Entry {
    double worth = 0;        // cost_us / bytes
    double priority = 0;     // as in order_
    uint32_t use_count = 0;  // 0: not resident
  };
  void Place(uint32_t slot, Entry& entry);

  double clock_ = 0;
  std::vector<Entry> entries_;  // [slot]
  std::set<std::pair<double, uint32_t>> order_;
};

}  // namespace ckv
