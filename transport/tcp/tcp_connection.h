// The byte stream of a tcp lane: moves frames out of slots and into slots, and never blocks.
//
// A frame is {slot, bytes} and then that many bytes. Sending reads the bytes where they lie, in
// slots or in the caller's memory. Bytes that the kernel does not take at once stay queued and go
// out with the next Post or Poll. Receiving reads the start of a frame through a small buffer, so
// that a small message costs one system call. The rest of a frame goes straight to where the owner
// wants it.

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
#include "transport/socket.h"
#include "transport/tcp/silence_watch.h"

namespace ckv {

struct FrameHeader {
  uint32_t slot = 0;
  uint32_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 8);

// Belongs to the lane's thread.
class TcpConnection {
 public:
  // The place for a frame's bytes: first `head`, then `body`.
  struct Landing {
    std::span<std::byte> head;
    ScatterList body;
    size_t size() const { return head.size() + body.bytes(); }
  };
  using Buffer = absl::FunctionRef<Landing(const FrameHeader& frame)>;
  using Admit = absl::FunctionRef<bool(uint32_t slot)>;
  using Runs = std::span<const std::span<const std::byte>>;

  // `socket` is connected and non-blocking; `epoll` is empty; `watch` may be null.
  TcpConnection(UniqueFd socket, UniqueFd epoll, uint32_t slot_count, uint32_t in_bytes_max,
                std::shared_ptr<SilenceWatch> watch);

  const absl::Status& status() const noexcept { return status_; }
  // Takes the connection down. It stays down, with the first reason.
  void Break(absl::Status status) noexcept;

  // Readable when the socket is readable, and while bytes wait to be sent, when it is writable.
  int event_fd() const noexcept { return epoll_.get(); }
  // Returns false if a frame can be had without the kernel, or the connection is down.
  bool Arm() noexcept;

  // Sends `head` and then `runs` as the frame of `slot`: at most kGatherRunCountMax runs, and 4 GiB
  // in all. All stay borrowed until !sending(slot), or until the connection is down.
  void Send(uint32_t slot, std::span<const std::byte> head, Runs runs = {}) noexcept;
  // Like Send, but the kernel is not called before the next Send or Flush.
  void SendLater(uint32_t slot, std::span<const std::byte> head) noexcept;
  bool sending(uint32_t slot) const noexcept { return sending_[slot]; }
  // Sends as much of the queue as the kernel takes.
  void Flush() noexcept;

  // Receives the next whole frame. Before it writes the first byte of a frame, it asks `admit`
  // whether the peer may fill that slot now (the number is in range). If not, the connection
  // breaks. `buffer` returns the place for the frame's bytes: frame.bytes of them, at most
  // in_bytes_max.
  bool Receive(Admit admit, Buffer buffer, FrameHeader& frame) noexcept;
  // Sends the rest of a frame that is arriving for `slot` to the start of `to` instead. `to` has
  // in_bytes_max bytes. Does nothing if no frame for `slot` is arriving.
  void Divert(uint32_t slot, std::span<std::byte> to) noexcept;

 private:
  // One page: a one-row request or reply (1,200 bytes) and its neighbour fit. The page's worth of a
  // large message that is copied twice does not show.
  static constexpr size_t kStageBytes = 4096;
  // Header, head and the runs.
  static constexpr size_t kFramePartsMax = 2 + kGatherRunCountMax;
  // Enough for one frame with the most runs behind another, or for ten plain frames. Beyond eight
  // parts the kernel allocates its copy of the list in any case.
  static constexpr size_t kSendPartsMax = 2 * kFramePartsMax;

  struct Outgoing {
    FrameHeader header;
    uint32_t part_count = 0;                      // without the header
    std::array<iovec, kFramePartsMax - 1> parts;  // none is empty
  };

  // Has the event come when the socket can take more, for as long as bytes wait to be sent.
  bool WatchOut() noexcept;
  bool Parse(Admit admit, Buffer buffer) noexcept;
  bool Fill() noexcept;
  void Queue(uint32_t slot, std::span<const std::byte> head, Runs runs) noexcept;
  void TakeReceived(size_t bytes) noexcept;
  size_t GatherOut(std::span<iovec, kSendPartsMax> parts) noexcept;
  void TakeSent(size_t bytes) noexcept;

  UniqueFd socket_;
  SilenceWatch::Watched watched_;  // destroyed before the socket
  UniqueFd epoll_;
  const uint32_t slot_count_;
  const uint32_t in_bytes_max_;
  absl::Status status_;
  bool wants_out_ = false;
  bool full_ = false;  // the socket took less than it was given at the last attempt

  // The queue of frames, at most one per slot. The first one is sent up to out_offset_.
  std::vector<Outgoing> out_;
  std::array<bool, kSlotCountMax> sending_{};
  uint32_t out_begin_ = 0;
  uint32_t out_count_ = 0;
  size_t out_offset_ = 0;

  // Bytes that were read and not yet looked at: stage_[stage_begin_, stage_end_).
  std::array<std::byte, kStageBytes> stage_;
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
  // The frame that is arriving, and the place for its rest.
  bool in_frame_ = false;
  FrameHeader frame_;
  Landing rest_;
};

}  // namespace ckv
