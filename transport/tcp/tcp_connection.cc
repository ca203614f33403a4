// Frames over one socket, without blocking. Send queues a frame and flushes; what the kernel does
// not take is sent when the socket is writable again (full_). Receive alternates between Parse,
// which takes frames from the stage, and Fill, which reads the rest of the current body to its slot
// and what follows to the stage. Divert sends a body to other memory. Break is final: it keeps the
// first error, and shuts the socket down.

#include "transport/tcp/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

TcpConnection::TcpConnection(UniqueFd socket, UniqueFd epoll, uint32_t slot_count,
                             uint32_t in_bytes_max, std::shared_ptr<SilenceWatch> watch)
    : socket_(std::move(socket)),
      watched_(std::move(watch), socket_.get()),
      epoll_(std::move(epoll)),
      slot_count_(slot_count),
      in_bytes_max_(in_bytes_max),
      out_(slot_count) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket_.get(), &event) != 0) {
    Break(ErrnoStatus("epoll_ctl"));
  }
}

void TcpConnection::Break(absl::Status status) noexcept {
  if (!status_.ok()) return;
  status_ = std::move(status);
  // If so, this end shut the socket down, and the socket's error is not the cause.
  if (watched_.found_silent()) {
    status_ = absl::UnavailableError(
        absl::StrFormat("the peer's host has been silent for %d ms", SilenceWatch::kSilentMsMax));
  }
  // Notifies the peer now, not when the owner destroys this end.
  shutdown(socket_.get(), SHUT_RDWR);
}

bool TcpConnection::Arm() noexcept {
  if (!status_.ok()) return false;
  const size_t staged = stage_end_ - stage_begin_;
  if (in_frame_ ? staged > 0 || rest_.size() == 0 : staged >= sizeof(FrameHeader)) return false;
  return WatchOut();
}

bool TcpConnection::WatchOut() noexcept {
  const bool want_out = out_count_ > 0;
  if (want_out == wants_out_) return true;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP | (want_out ? EPOLLOUT : 0u);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event) != 0) {
    Break(ErrnoStatus("epoll_ctl"));
    return false;
  }
  wants_out_ = want_out;
  return true;
}

void TcpConnection::Send(uint32_t slot, std::span<const std::byte> head, Runs runs) noexcept {
  Queue(slot, head, runs);
  // A full socket refuses until its event. Poll then continues; a call here would fail.
  if (!full_) Flush();
  // The posting thread may already sleep on the event, for other lanes too. The event sends the
  // rest when the kernel can take it.
  if (out_count_ > 0 && status_.ok()) (void)WatchOut();
}

void TcpConnection::SendLater(uint32_t slot, std::span<const std::byte> head) noexcept {
  Queue(slot, head, {});
}

void TcpConnection::Queue(uint32_t slot, std::span<const std::byte> head, Runs runs) noexcept {
  CKV_CHECK(out_count_ < slot_count_ && !sending_[slot] && runs.size() <= kGatherRunCountMax);
  Outgoing& frame = out_[(out_begin_ + out_count_) % slot_count_];
  frame.part_count = 0;
  size_t bytes = 0;
  const auto add = [&](std::span<const std::byte> part) {
    if (part.empty()) return;
    frame.parts[frame.part_count++] = {const_cast<std::byte*>(part.data()), part.size()};
    bytes += part.size();
  };
  add(head);
  for (const std::span<const std::byte> run : runs) add(run);
  frame.header = {slot, static_cast<uint32_t>(bytes)};
  sending_[slot] = true;
  ++out_count_;
}

// Fills `parts` with the queued bytes that are not yet sent, as far as they fit. Returns how many
// were filled.
size_t TcpConnection::GatherOut(std::span<iovec, kSendPartsMax> parts) noexcept {
  size_t count = 0;
  size_t skip = out_offset_;
  const auto add = [&](void* data, size_t bytes) {
    const size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes > skipped)
      parts[count++] = {static_cast<std::byte*>(data) + skipped, bytes - skipped};
  };
  for (uint32_t i = 0; i < out_count_ && count + kFramePartsMax <= kSendPartsMax; ++i) {
    Outgoing& frame = out_[(out_begin_ + i) % slot_count_];
    add(&frame.header, sizeof(FrameHeader));
    for (uint32_t p = 0; p < frame.part_count; ++p) {
      add(frame.parts[p].iov_base, frame.parts[p].iov_len);
    }
  }
  return count;
}

void TcpConnection::Flush() noexcept {
  full_ = false;
  while (out_count_ > 0 && status_.ok()) {
    std::array<iovec, kSendPartsMax> parts;
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = GatherOut(parts);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      TakeSent(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      full_ = true;
      return;
    } else if (errno != EINTR) {
      Break(absl::UnavailableError(ErrnoText("tcp send")));
    }
  }
}

void TcpConnection::TakeSent(size_t bytes) noexcept {
  out_offset_ += bytes;
  while (out_count_ > 0) {
    const FrameHeader& header = out_[out_begin_].header;
    const size_t frame_bytes = sizeof(FrameHeader) + header.bytes;
    if (out_offset_ < frame_bytes) return;
    out_offset_ -= frame_bytes;
    sending_[header.slot] = false;
    out_begin_ = (out_begin_ + 1) % slot_count_;
    --out_count_;
  }
}

bool TcpConnection::Receive(Admit admit, Buffer buffer, FrameHeader& frame) noexcept {
  while (status_.ok()) {
    if (Parse(admit, buffer)) {
      frame = frame_;
      in_frame_ = false;
      return true;
    }
    if (!status_.ok() || !Fill()) return false;
  }
  return false;
}

bool TcpConnection::Parse(Admit admit, Buffer buffer) noexcept {
  if (!in_frame_) {
    if (stage_end_ - stage_begin_ < sizeof(FrameHeader)) return false;
    std::memcpy(&frame_, stage_.data() + stage_begin_, sizeof(frame_));
    stage_begin_ += sizeof(frame_);
    if (frame_.slot >= slot_count_ || frame_.bytes > in_bytes_max_) {
      Break(absl::InvalidArgumentError(
          absl::StrFormat("the peer sent slot %d of %d, %d bytes of %d", frame_.slot, slot_count_,
                          frame_.bytes, in_bytes_max_)));
      return false;
    }
    if (!admit(frame_.slot)) {
      Break(absl::InvalidArgumentError(
          absl::StrFormat("the peer sent slot %d out of turn", frame_.slot)));
      return false;
    }
    in_frame_ = true;
    rest_ = buffer(frame_);
    CKV_CHECK(rest_.size() == frame_.bytes);
  }
  const auto unstage = [this](std::span<std::byte> to) {
    const size_t bytes = std::min(to.size(), stage_end_ - stage_begin_);
    if (bytes > 0) std::memcpy(to.data(), stage_.data() + stage_begin_, bytes);
    stage_begin_ += bytes;
    TakeReceived(bytes);
  };
  unstage(rest_.head);
  while (!rest_.body.empty() && stage_begin_ < stage_end_) unstage(rest_.body.spans().front());
  return rest_.size() == 0;
}

void TcpConnection::TakeReceived(size_t bytes) noexcept {
  const size_t of_head = std::min(bytes, rest_.head.size());
  rest_.head = rest_.head.subspan(of_head);
  rest_.body.TakeFront(bytes - of_head);
}

void TcpConnection::Divert(uint32_t slot, std::span<std::byte> to) noexcept {
  if (in_frame_ && frame_.slot == slot) rest_ = {to.first(rest_.size()), {}};
}

// Reads once: the rest of the current frame into its slot, and the bytes after it into the stage.
// After Parse the stage holds at most the start of a header.
bool TcpConnection::Fill() noexcept {
  const size_t staged = stage_end_ - stage_begin_;
  if (stage_begin_ > 0 && staged > 0) {
    std::memmove(stage_.data(), stage_.data() + stage_begin_, staged);
  }
  stage_begin_ = 0;
  stage_end_ = staged;
  const size_t direct = in_frame_ ? rest_.size() : 0;
  std::array<iovec, 2 + ScatterList::kSpanCountMax> parts;
  size_t part_count = 0;
  if (in_frame_) {
    if (!rest_.head.empty()) parts[part_count++] = {rest_.head.data(), rest_.head.size()};
    for (const std::span<std::byte> to : rest_.body.spans())
      parts[part_count++] = {to.data(), to.size()};
  }
  parts[part_count++] = {stage_.data() + stage_end_, kStageBytes - stage_end_};
  ssize_t got = 0;
  do {
    got = readv(socket_.get(), parts.data(), static_cast<int>(part_count));
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    Break(absl::UnavailableError(got == 0 ? "the peer has closed its end of the lane"
                                          : ErrnoText("tcp receive")));
    return false;
  }
  const size_t received = std::min(direct, static_cast<size_t>(got));
  if (received > 0) TakeReceived(received);
  stage_end_ += static_cast<size_t>(got) - received;
  return true;
}

}  // namespace ckv
