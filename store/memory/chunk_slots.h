// The array of a chunk table's slots. It grows, but its slots never move, so a pin needs no lock.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace ckv {

struct ChunkSlot;  // store/memory/chunk_table_slot.h, which also defines the functions

// At is thread-safe; calls of Add need the table's lock.
class ChunkSlots {
 public:
  // Has room for `count_max` slots, and for those that are retired.
  explicit ChunkSlots(uint32_t count_max);
  ~ChunkSlots();
  ChunkSlots(const ChunkSlots&) = delete;
  ChunkSlots& operator=(const ChunkSlots&) = delete;

  // Returns a slot, or null if no Add has reached it.
  ChunkSlot* At(uint32_t index) const;
  // Makes the slot `index` exist. A segment is allocated with its first slot.
  void Add(uint32_t index);

 private:
  static constexpr uint32_t kSegmentSlots = 1024;

  std::unique_ptr<std::atomic<ChunkSlot*>[]> segments_;
  const uint32_t segment_count_;
};

}  // namespace ckv
