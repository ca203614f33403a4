// One direction of a lane in shared memory: a ring of {slot, bytes} entries. One thread writes it
// and one thread reads it, in two processes that do not trust each other.
//
// There is no shared head or tail. Each side counts its own messages, and the lap in an entry shows
// whether the entry is new. So a message is one 8-byte store and costs the reader one cache miss.
// There is no index that a peer could set beyond the ring. The ring cannot overflow: a lane has at
// most kSlotCountMax slots, and each travels in one direction at a time. A peer that breaks this
// rule overwrites its own messages, and the laps show it.

#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "transport/fabric.h"

namespace ckv {

inline constexpr uint32_t kRingEntryCount = kSlotCountMax;
static_assert(std::has_single_bit(kRingEntryCount));

// An entry: written by one store, read by one load. Lap 0 is the zeroed memory of a new lane, and
// the first lap is 1. Laps wrap; a lap only has to differ from the previous one.
struct RingEntry {
  uint32_t bytes = 0;
  uint16_t slot = 0;
  uint16_t lap = 0;
};
static_assert(sizeof(RingEntry) == 8);
// A flag in RingEntry::slot: a descriptor was sent over the lane's socket before this entry.
inline constexpr uint16_t kRingDescriptorFlag = 0x8000;
static_assert(kSlotCountMax <= kRingDescriptorFlag);

// The ring's layout in shared memory. Zeroed memory is an empty ring.
struct RingMemory {
  // 1 while the reader sleeps or is about to sleep.
  alignas(64) std::atomic<uint32_t> armed;
  alignas(64) std::array<std::atomic<uint64_t>, kRingEntryCount> entries;
};
static_assert(sizeof(RingMemory) == 64 + 8 * kRingEntryCount);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Makes the slot's bytes, written before, visible to a reader that sees the entry. It also makes
// the entry visible before this thread loads `armed`. Pairs with ObserveEntry for the bytes. Pairs
// with ArmSleeper + ObserveEntry for the wake-up: both sides store, then load, all sequentially
// consistent. So at least one side sees the other's store. (A fence would do as well, but the
// sanitizer cannot see fences. On x86 either is one locked instruction.)
inline void PublishEntry(std::atomic<uint64_t>& cell, RingEntry entry) noexcept {
  cell.store(std::bit_cast<uint64_t>(entry), std::memory_order_seq_cst);
}

// A load that sees an entry also sees the slot's bytes. Pairs with PublishEntry.
inline RingEntry ObserveEntry(const std::atomic<uint64_t>& cell) noexcept {
  return std::bit_cast<RingEntry>(cell.load(std::memory_order_seq_cst));
}

// Announces sleep. Call it before the last check of the ring. Pairs with TakeSleeper.
inline void ArmSleeper(std::atomic<uint32_t>& armed) noexcept {
  armed.store(1, std::memory_order_seq_cst);
}

// Withdraws the announcement; a wake-up may already be on its way. Pairs with nothing, because an
// extra doorbell is harmless.
inline void DisarmSleeper(std::atomic<uint32_t>& armed) noexcept {
  armed.store(0, std::memory_order_relaxed);
}

// Returns true, once per sleep, if the reader has to be woken. Call after PublishEntry. Pairs with
// ArmSleeper. The load before the exchange keeps the cache line shared while the reader is awake.
inline bool TakeSleeper(std::atomic<uint32_t>& armed) noexcept {
  return armed.load(std::memory_order_seq_cst) != 0 &&
         armed.exchange(0, std::memory_order_seq_cst) != 0;
}

// The writing end. Its position is private, so the peer cannot move it.
class RingWriter {
 public:
  explicit RingWriter(RingMemory* ring) : ring_(ring) {}

  // Writes an entry and returns whether the reader has to be woken. `slot` may carry
  // kRingDescriptorFlag.
  bool Write(uint32_t slot, uint32_t bytes) noexcept {
    const auto lap = static_cast<uint16_t>(count_ / kRingEntryCount + 1);
    PublishEntry(ring_->entries[count_ % kRingEntryCount],
                 {bytes, static_cast<uint16_t>(slot), lap});
    ++count_;
    return TakeSleeper(ring_->armed);
  }

 private:
  RingMemory* ring_;
  uint64_t count_ = 0;
};

// The reading end.
class RingReader {
 public:
  explicit RingReader(RingMemory* ring) : ring_(ring) {}

  enum class Look { kEmpty, kEntry, kBroken };

  // Takes the next entry. kBroken means a lap that no correct writer writes. The caller checks slot
  // and bytes, which the peer wrote.
  Look Read(RingEntry& entry) noexcept {
    const Look look = Peek(entry);
    if (look == Look::kEntry) ++count_;
    return look;
  }

  Look Peek(RingEntry& entry) const noexcept {
    const auto lap = static_cast<uint16_t>(count_ / kRingEntryCount + 1);
    entry = ObserveEntry(ring_->entries[count_ % kRingEntryCount]);
    if (entry.lap == lap) return Look::kEntry;
    return entry.lap == static_cast<uint16_t>(lap - 1) ? Look::kEmpty : Look::kBroken;
  }

  // Arms the doorbell. Returns false, and arms nothing, if the ring already has an entry.
  bool Arm() noexcept {
    ArmSleeper(ring_->armed);
    RingEntry entry;
    if (Peek(entry) == Look::kEmpty) return true;
    DisarmSleeper(ring_->armed);
    return false;
  }
  void Disarm() noexcept { DisarmSleeper(ring_->armed); }

 private:
  RingMemory* ring_;
  uint64_t count_ = 0;
};

}  // namespace ckv
