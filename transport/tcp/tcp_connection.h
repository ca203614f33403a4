// The byte stream of a tcp lane: moves frames out of slots and into slots, and never blocks.
//
// A frame is {slot, bytes} and then that many bytes. Sending reads the bytes in place, from slots
// or from the caller's memory. Bytes that the kernel does not accept at once stay queued, and the
// next Post or Poll sends them. Receiving reads the start of a frame through a small buffer, so
// that a small message costs one system call. The rest of a frame is read directly into the place
// that the owner chooses.

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

// Used by the lane's thread only.
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
  // Shuts the connection down for good. Only the first call's reason is kept.
  void Break(absl::Status status) noexcept;

  // Readable when the socket is readable and, while bytes wait to be sent, when it is writable.
  int event_fd() const noexcept { return epoll_.get(); }
  // Prepares for a wait on event_fd(). Returns false if a frame may be available without a system
  // call, or the connection is down.
  bool Arm() noexcept;

  // Sends `head` and then `runs` as the frame of `slot`: at most kGatherRunCountMax runs, and less
  // than 4 GiB in all. The memory stays borrowed until !sending(slot), or until the connection is
  // down.
  void Send(uint32_t slot, std::span<const std::byte> head, Runs runs = {}) noexcept;
  // Like Send, but makes no system call before the next Send or Flush.
  void SendLater(uint32_t slot, std::span<const std::byte> head) noexcept;
  bool sending(uint32_t slot) const noexcept { return sending_[slot]; }
  // Sends as much of the queue as the kernel accepts.
  void Flush() noexcept;

  // Receives the next whole frame. Returns false if none is complete or the connection is down.
  // Before the first byte of a frame is written, `admit` returns whether the peer may fill that
  // slot now (the number is in range). If not, the connection breaks. `buffer` returns the place
  // for frame.bytes bytes, at most in_bytes_max.
  bool Receive(Admit admit, Buffer buffer, FrameHeader& frame) noexcept;
  // Writes the rest of a frame that is arriving for `slot` to the start of `to` instead. `to` has
  // in_bytes_max bytes. Does nothing if no frame for `slot` is arriving.
  void Divert(uint32_t slot, std::span<std::byte> to) noexcept;

 private:
  // One page: fits a one-row request or reply (1,200 bytes) and the next one. At most this page of
  // a large message is copied twice, at no noticeable cost.
  static constexpr size_t kStageBytes = 4096;
  // Header, head and the runs.
  static constexpr size_t kFramePartsMax = 2 + kGatherRunCountMax;
  // Enough for two frames with the most runs, or for ten plain frames. Beyond eight parts the
  // kernel allocates its copy of the list in any case.
  static constexpr size_t kSendPartsMax = 2 * kFramePartsMax;

  struct Outgoing {
    FrameHeader header;
    uint32_t part_count = 0;                      // without the header
    std::array<iovec, kFramePartsMax - 1> parts;  // none is empty
  };

  // Makes event_fd() report a writable socket while bytes wait to be sent. Returns false if that
  // fails.
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
  bool full_ = false;  // the socket accepted less than it was given at the last attempt

  // The queue of frames, at most one per slot. The first out_offset_ bytes of the first frame are
  // sent.
  std::vector<Outgoing> out_;
  std::array<bool, kSlotCountMax> sending_{};
  uint32_t out_begin_ = 0;
  uint32_t out_count_ = 0;
  size_t out_offset_ = 0;

  // Bytes that were read and not yet parsed: stage_[stage_begin_, stage_end_).
  std::array<std::byte, kStageBytes> stage_;
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
  // The frame that is arriving, and the place for its rest.
  bool in_frame_ = false;
  FrameHeader frame_;
  Landing rest_;
};

}  // namespace ckv
