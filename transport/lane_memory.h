// The memory of one shm lane: two rings and the buffers of the slots, at fixed offsets.
//
//   0     RingMemory of requests     written by the requester
//   ...   RingMemory of replies      written by the holder
//   8192  request buffers, slot 0 first, each rounded up to 64 bytes; to a page at the end
//   ...   reply buffers, likewise
//
// The holder makes the memory and passes its descriptor. It is sealed against resizing, so a peer
// cannot make our reads fault by truncating it. The kernel provides pages when they are first
// touched, and slots are reused last-freed-first. So a lane costs as much memory as its busiest
// moment needed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/memory_region.h"
#include "transport/slot_ring.h"
#include "transport/socket.h"

namespace ckv {

struct ControlMemory {
  RingMemory requests;
  RingMemory replies;
};
inline constexpr size_t kControlBytes = 8192;
static_assert(sizeof(ControlMemory) <= kControlBytes);

// The places of the slots' buffers, from the start of the region.
struct SlotLayout {
  size_t request_stride = 0;
  size_t replies = 0;  // offset of the first reply buffer
  size_t reply_stride = 0;
  size_t total_bytes = 0;
  // Places the request buffers from offset `first` on, and the reply buffers behind them.
};
SlotLayout LayOutSlots(const LaneShape& shape, size_t first);

// Owns a mapping. The object does not change; the bytes in the mapping do.
class LaneMemory {
 public:
  // Makes a sealed region, zeroed. `shape` is valid.
  //   ResourceExhausted   no descriptor or no address space is left.
  static absl::StatusOr<LaneMemory> Create(const LaneShape& shape);
  // Maps a region that a peer made.
  //   InvalidArgument     the region has another size than the shape needs, is not sealed, or does
  //                       not consist of ordinary pages.
  static absl::StatusOr<LaneMemory> Adopt(UniqueFd fd, const LaneShape& shape);
  // Makes memory private to this process, without a descriptor: the buffers of one end of a tcp
  // lane.
  static absl::StatusOr<LaneMemory> CreatePrivate(const LaneShape& shape);

  LaneMemory(LaneMemory&& other) noexcept;
  LaneMemory& operator=(LaneMemory&& other) = delete;
  ~LaneMemory();

  // Pins the slots until this object's end; call at most once. If `pinner` is null they stay as
  // they are. Pinning touches every page: the lane then costs all its memory.
  //   Errors of MemoryPinner::Pin.
  absl::Status Pin(std::shared_ptr<MemoryPinner> pinner);

  const LaneShape& shape() const noexcept { return shape_; }
  RegionType type() const noexcept {
    return pinner_ == nullptr ? RegionType::kHost : RegionType::kPinned;
  }
  // The descriptor to pass on, if the region was made here; otherwise -1.
  int fd() const noexcept { return fd_.get(); }
  size_t total_bytes() const noexcept { return layout_.total_bytes; }

  ControlMemory* control() const noexcept { return reinterpret_cast<ControlMemory*>(base_); }
  std::span<std::byte> request(uint32_t slot) const noexcept {
    return {base_ + kControlBytes + slot * layout_.request_stride, shape_.request_bytes_max};
  }
  std::span<std::byte> reply(uint32_t slot) const noexcept {
    return {base_ + layout_.replies + slot * layout_.reply_stride, shape_.reply_bytes_max};
  }

 private:
  LaneMemory(UniqueFd fd, std::byte* base, const LaneShape& shape);
  std::span<std::byte> slots() const noexcept {
    return {base_ + kControlBytes, layout_.total_bytes - kControlBytes};
  }

  UniqueFd fd_;
  std::byte* base_;
  const LaneShape shape_;
  const SlotLayout layout_;
  std::shared_ptr<MemoryPinner> pinner_;  // null if the slots are not pinned
};

}  // namespace ckv
