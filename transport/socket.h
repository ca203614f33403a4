// Owned file descriptors, and the few socket calls that all fabrics share, with deadlines and
// statuses.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"

namespace ckv {

// The most connections that may wait to be accepted.
inline constexpr int kListenBacklog = 128;

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  void Reset() noexcept {
    if (fd_ >= 0) Close();
  }

 private:
  void Close() noexcept;

  int fd_ = -1;
};

// Returns the text of errno, as in "what: Connection refused".
std::string ErrnoText(const char* what);

// Returns an error from errno: ResourceExhausted if descriptors or memory ran out, else
// Unavailable.
absl::Status ErrnoStatus(const char* what);

// Waits until `fd` has one of `events` (POLLIN, POLLOUT), an error or a hang-up.
//   DeadlineExceeded    none occurred in time.
absl::Status WaitFor(int fd, short events, const Clock& clock, Instant deadline);

// SendAll and ReceiveAll transfer all bytes over a non-blocking socket, or fail.
//   Unavailable         the peer hung up or the connection broke.
//   DeadlineExceeded    the bytes were not transferred in time.
absl::Status SendAll(int fd, std::span<const std::byte> bytes, const Clock& clock,
                     Instant deadline);
absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, const Clock& clock, Instant deadline);

// Like ReceiveAll, and returns the one descriptor that arrived with the bytes.
//   InvalidArgument     no descriptor arrived, or several.
absl::StatusOr<UniqueFd> ReceiveAllWithFd(int fd, std::span<std::byte> bytes, const Clock& clock,
                                          Instant deadline);

// Sends `bytes` with a descriptor in one call, without blocking. Returns false on failure; errno
// has the reason, unless only a part was sent.
bool SendWithFd(int fd, std::span<const std::byte> bytes, int passed_fd) noexcept;

// The result of one ReceiveSome on a Unix stream.
struct Received {
  ssize_t bytes = 0;    // the return value of recv; if negative, errno has the reason
  size_t fd_count = 0;  // descriptors that arrived with the last of the bytes
  UniqueFd fd;          // the first of them; the others are closed
  // Too many descriptors arrived, or this process can open no more.
  bool cut = false;
};
// Reads without blocking. Bytes that arrive with descriptors are the last ones of a call, so a
// descriptor that arrives with a single byte belongs to that byte. If `takes_fd` is false, all
// descriptors are discarded.
Received ReceiveSome(int fd, std::span<std::byte> bytes, bool takes_fd) noexcept;

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}
template <typename T>
std::span<std::byte> WritableBytesOf(T& value) {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

}  // namespace ckv
