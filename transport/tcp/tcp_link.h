// The byte stream of a tcp lane: frames out of slots and into slots, never blocking.
//
// A frame is {slot, bytes} and that many bytes. Sending gathers from where they lie, the slots or
// memory of the caller's; what the kernel does not take at once stays queued and goes on with the
// next Post or Poll. Receiving reads the start of a frame through a small buffer, so that a small
// message costs one system call, and the rest straight to where the owner wants it.

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "transport/fabric.h"
#include "transport/scatter_list.h"
#include "transport/silence_watch.h"
#include "transport/socket.h"

namespace ckv {

struct FrameHeader {
  uint32_t slot = 0;
  uint32_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 8);

// Belongs to the lane's thread.
class TcpLink {
 public:
  // Where a frame's bytes go, one behind the other.
  struct Landing {
    std::span<std::byte> head;
    ScatterList body;
    size_t size() const { return head.size() + body.bytes(); }
  };
  using Buffer = absl::FunctionRef<Landing(const FrameHeader& frame)>;
  using Admit = absl::FunctionRef<bool(uint32_t slot)>;
  using Runs = std::span<const std::span<const std::byte>>;

  // `socket` is connected and non-blocking; `epoll` is empty; `watch` may be null.
  TcpLink(UniqueFd socket, UniqueFd epoll, uint32_t slot_count, uint32_t in_bytes_max,
          std::shared_ptr<SilenceWatch> watch);

  const absl::Status& status() const noexcept { return status_; }
  // Once down the link stays down, with the first reason.
  void Break(absl::Status status) noexcept;

  // Readable when the socket is, and while something waits to be sent when it can be.
  int event_fd() const noexcept { return epoll_.get(); }
  // False if a frame can be had without the kernel, or the link is down.
  bool Arm() noexcept;

  // Sends `head` and then `runs`, at most kGatherRunCountMax and 4 GiB in all, as the frame of
  // `slot`. All are borrowed until !sending(slot), or until the link is down.
  void Send(uint32_t slot, std::span<const std::byte> head, Runs runs = {}) noexcept;
  // The same, but the kernel is not called before the next Send or Flush.
  void SendLater(uint32_t slot, std::span<const std::byte> head) noexcept;
  bool sending(uint32_t slot) const noexcept { return sending_[slot]; }
  // Goes on with what is queued.
  void Flush() noexcept;

  // The next whole frame. Before the first byte of a frame is written, `admit` says whether the
  // peer may fill that slot now (its number is in range); if not the link breaks. `buffer` says
  // where its bytes go, frame.bytes in
  // all, in_bytes_max at most.
  bool Receive(Admit admit, Buffer buffer, FrameHeader& frame) noexcept;
  // What is to come of a frame for `slot`, if one is coming, goes to the start of `to` instead;
  // `to` has in_bytes_max.
  void Divert(uint32_t slot, std::span<std::byte> to) noexcept;

 private:
  // One page: a one-row request or reply (1,200 bytes) and its neighbour fit, and of a large
  // message so little is copied twice that it does not show.
  static constexpr size_t kStageBytes = 4096;
  // Header, head and the runs.
  static constexpr size_t kFramePartsMax = 2 + kGatherRunCountMax;
  // A frame of the most runs behind another one, or ten plain frames: beyond eight parts the kernel
  // allocates its copy of the list, however long it is.
  static constexpr size_t kSendPartsMax = 2 * kFramePartsMax;

  struct Outgoing {
    FrameHeader header;
    uint32_t part_count = 0;                      // less the header
    std::array<iovec, kFramePartsMax - 1> parts;  // none is empty
  };

  // The event comes when the socket can take more, while something waits to be sent.
  bool WatchOut() noexcept;
  bool Parse(Admit admit, Buffer buffer) noexcept;
  bool Fill() noexcept;
  void Queue(uint32_t slot, std::span<const std::byte> head, Runs runs) noexcept;
  void TakeReceived(size_t bytes) noexcept;
  size_t GatherOut(std::span<iovec, kSendPartsMax> parts) noexcept;
  void TakeSent(size_t bytes) noexcept;

  UniqueFd socket_;
  SilenceWatch::Watched watched_;  // goes before the socket does
  UniqueFd epoll_;
  const uint32_t slot_count_;
  const uint32_t in_bytes_max_;
  absl::Status status_;
  bool wants_out_ = false;
  bool full_ = false;  // the socket took less than it was given, when last asked

  // Queue of frames: at most one a slot. The first one is sent up to out_offset_.
  std::vector<Outgoing> out_;
  std::array<bool, kSlotCountMax> sending_{};
  uint32_t out_begin_ = 0;
  uint32_t out_count_ = 0;
  size_t out_offset_ = 0;

  // Bytes read and not yet looked at: stage_[stage_begin_, stage_end_).
  std::array<std::byte, kStageBytes> stage_;
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
  // The frame being received, and where its rest goes.
  bool in_frame_ = false;
  FrameHeader frame_;
  Landing rest_;
};

}  // namespace ckv
