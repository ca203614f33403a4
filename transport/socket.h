// Descriptors, and the few socket calls that every fabric shares, with deadlines and statuses.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"

namespace ckv {

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

// "what: Connection refused", from errno.
std::string ErrnoText(const char* what);

// ResourceExhausted for what runs out (descriptors, memory), else Unavailable; from errno.
absl::Status ErrnoStatus(const char* what);

// Waits until `fd` has one of `events` (POLLIN, POLLOUT), an error or a hang-up.
//   DeadlineExceeded
absl::Status WaitFor(int fd, short events, const Clock& clock, Instant deadline);

// Both move all bytes of a non-blocking socket or fail.
//   Unavailable         the peer hung up or the link broke.
//   DeadlineExceeded
absl::Status SendAll(int fd, std::span<const std::byte> bytes, const Clock& clock,
                     Instant deadline);
absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, const Clock& clock, Instant deadline);

// As ReceiveAll, and takes the one descriptor that came along.
//   InvalidArgument     none came, or several.
absl::StatusOr<UniqueFd> ReceiveAllWithFd(int fd, std::span<std::byte> bytes, const Clock& clock,
                                          Instant deadline);

// Sends `bytes` with a descriptor in one call, without blocking; false if not, errno says why.
bool SendWithFd(int fd, std::span<const std::byte> bytes, int passed_fd) noexcept;

// What one ReceiveSome took off a Unix stream.
struct Received {
  ssize_t bytes = 0;    // as recv returns it; errno says why not
  size_t fd_count = 0;  // how many descriptors came with the last of the bytes
  UniqueFd fd;          // the first of them; the others are closed
  bool cut = false;  // descriptors came that were too many, or for which this process has no room
};
// Never blocks. Bytes that came with descriptors are the last ones of a call, so of a single such
// byte the descriptor is certain. With `takes_fd` false all descriptors are closed unseen.
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
