// The states of a lane's slots: each end records for itself which end owns a slot, and does not
// trust the peer.
//
//   requester   free -Acquire-> held -Post-> posted -reply-> done -Release-> free
//                                            posted -Abandon-> abandoned -reply-> free
//   holder      idle -request-> arrived -Post-> idle

#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "proto/base/status.h"
#include "transport/fabric.h"

namespace ckv {

// Used by the lane's thread only. A wrong transition that only a bug of the caller can cause ends
// the process. The return value reports one that the peer can cause.
class RequesterSlots {
 public:
  explicit RequesterSlots(uint32_t slot_count) : slot_count_(slot_count), free_count_(slot_count) {
    CKV_CHECK(slot_count <= kSlotCountMax);
    for (uint32_t i = 0; i < slot_count; ++i) free_[i] = static_cast<uint16_t>(slot_count - 1 - i);
  }

  // Takes the slot that was freed last, because its buffers are in the cache. Pages of slots that
  // are not needed stay untouched. Returns nothing if no slot is free.
  std::optional<uint32_t> Acquire() noexcept {
    if (free_count_ == 0) return std::nullopt;
    const uint32_t slot = free_[--free_count_];
    state_[slot] = State::kHeld;
    return slot;
  }

  void CheckHeld(uint32_t slot) const noexcept {
    CKV_CHECK(slot < slot_count_ && state_[slot] == State::kHeld);
  }
  void CheckDone(uint32_t slot) const noexcept {
    CKV_CHECK(slot < slot_count_ && state_[slot] == State::kDone);
  }

  void Post(uint32_t slot) noexcept {
    CheckHeld(slot);
    state_[slot] = State::kPosted;
    ++in_flight_;
  }

  // Returns how to treat a reply for `slot`, which may be any number that a peer can send.
  enum class Reply { kDeliver, kSwallow, kBogus };
  Reply Complete(uint32_t slot) noexcept {
    if (!awaits(slot)) return Reply::kBogus;
    --in_flight_;
    if (state_[slot] == State::kAbandoned) {
      Free(slot);
      return Reply::kSwallow;
    }
    state_[slot] = State::kDone;
    return Reply::kDeliver;
  }

  void Release(uint32_t slot) noexcept {
    CKV_CHECK(slot < slot_count_ && (state_[slot] == State::kHeld || state_[slot] == State::kDone));
    Free(slot);
  }

  void Abandon(uint32_t slot) noexcept {
    CKV_CHECK(slot < slot_count_ && state_[slot] == State::kPosted);
    state_[slot] = State::kAbandoned;
  }

  bool awaits(uint32_t slot) const noexcept {
    return slot < slot_count_ &&
           (state_[slot] == State::kPosted || state_[slot] == State::kAbandoned);
  }
  bool abandoned(uint32_t slot) const noexcept { return state_[slot] == State::kAbandoned; }
  bool done(uint32_t slot) const noexcept { return state_[slot] == State::kDone; }
  uint32_t in_flight() const noexcept { return in_flight_; }

 private:
  enum class State : uint8_t { kFree, kHeld, kPosted, kAbandoned, kDone };

  void Free(uint32_t slot) noexcept {
    state_[slot] = State::kFree;
    free_[free_count_++] = static_cast<uint16_t>(slot);
  }

  const uint32_t slot_count_;
  uint32_t free_count_;
  uint32_t in_flight_ = 0;
  std::array<State, kSlotCountMax> state_{};
  std::array<uint16_t, kSlotCountMax> free_{};
};

// Used by the lane's thread only.
class HolderSlots {
 public:
  explicit HolderSlots(uint32_t slot_count) : slot_count_(slot_count) {
    CKV_CHECK(slot_count <= kSlotCountMax);
  }

  // Returns false if the peer posted a slot that it does not own.
  bool Arrive(uint32_t slot) noexcept {
    if (!idle(slot)) return false;
    arrived_[slot] = true;
    return true;
  }

  void CheckArrived(uint32_t slot) const noexcept {
    CKV_CHECK(slot < slot_count_ && arrived_[slot]);
  }

  void Post(uint32_t slot) noexcept {
    CheckArrived(slot);
    arrived_[slot] = false;
  }

  bool idle(uint32_t slot) const noexcept { return slot < slot_count_ && !arrived_[slot]; }

 private:
  const uint32_t slot_count_;
  std::array<bool, kSlotCountMax> arrived_{};
};

}  // namespace ckv
