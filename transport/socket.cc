// Calls on sockets with a deadline and a status. WaitFor polls in slices of 50 ms, because the
// deadline is the Clock's, which a test may advance. SendAll and ReceiveAll repeat until everything
// is done. The functions with a descriptor pass exactly one, and close any other that a peer adds.

#include "transport/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// poll() counts real time and a deadline counts the Clock's. A test may advance the Clock
// meanwhile.
constexpr Duration kWaitSliceMax = std::chrono::milliseconds(50);
constexpr size_t kPassedFdCountMax = 4;  // more are cut off and closed by the kernel

void TakeFds(const msghdr& message, UniqueFd& first, size_t& count) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t fd_count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fd_count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(c) + i * sizeof(int), sizeof(raw));
      UniqueFd fd(raw);
      if (count++ == 0) first = std::move(fd);
    }
  }
}

}  // namespace

void UniqueFd::Close() noexcept {
  close(fd_);
  fd_ = -1;
}

std::string ErrnoText(const char* what) {
  return absl::StrFormat("%s: %s", what, std::generic_category().message(errno));
}

absl::Status ErrnoStatus(const char* what) {
  const int error = errno;
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC ||
      error == ENOBUFS) {
    return absl::ResourceExhaustedError(ErrnoText(what));
  }
  return absl::UnavailableError(ErrnoText(what));
}

absl::Status WaitFor(int fd, short events, const Clock& clock, Instant deadline) {
  while (true) {
    const Instant now = clock.Now();
    const Duration left = deadline > now ? deadline - now : Duration(0);
    const Duration slice = std::min(left, kWaitSliceMax);
    const auto slice_ms = std::chrono::ceil<std::chrono::milliseconds>(slice).count();
    pollfd entry = {fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(slice_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll");
    if (clock.Now() >= deadline) return absl::DeadlineExceededError("the peer did not answer");
  }
}

absl::Status SendAll(int fd, std::span<const std::byte> bytes, const Clock& clock,
                     Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      CKV_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, clock, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(ErrnoText("send"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, const Clock& clock, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return absl::UnavailableError("the peer hung up");
    } else if (errno == EAGAIN) {
      CKV_RETURN_IF_ERROR(WaitFor(fd, POLLIN, clock, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(ErrnoText("receive"));
    }
  }
  return absl::OkStatus();
}

Received ReceiveSome(int fd, std::span<std::byte> bytes, bool takes_fd) noexcept {
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedFdCountMax * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = takes_fd ? control : nullptr;
  message.msg_controllen = takes_fd ? sizeof(control) : 0;
  Received got;
  got.bytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got.bytes > 0 && takes_fd) {
    TakeFds(message, got.fd, got.fd_count);
    got.cut = (message.msg_flags & MSG_CTRUNC) != 0;
  }
  return got;
}

absl::StatusOr<UniqueFd> ReceiveAllWithFd(int fd, std::span<std::byte> bytes, const Clock& clock,
                                          Instant deadline) {
  UniqueFd passed;
  size_t passed_count = 0;
  while (!bytes.empty()) {
    Received got = ReceiveSome(fd, bytes, true);
    if (got.bytes > 0) {
      if (got.fd_count > 0 && passed_count == 0) passed = std::move(got.fd);
      passed_count += got.fd_count;
      bytes = bytes.subspan(static_cast<size_t>(got.bytes));
    } else if (got.bytes == 0) {
      return absl::UnavailableError("the peer hung up");
    } else if (errno == EAGAIN) {
      CKV_RETURN_IF_ERROR(WaitFor(fd, POLLIN, clock, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(ErrnoText("receive"));
    }
  }
  if (passed_count != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("received %d descriptors, expected one", passed_count));
  }
  return passed;
}

bool SendWithFd(int fd, std::span<const std::byte> bytes, int passed_fd) noexcept {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &passed_fd, sizeof(passed_fd));
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace ckv
