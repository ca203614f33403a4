#include "server/dispatch/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace ckv {

Doorbell::~Doorbell() {
  if (fd_ >= 0) close(fd_);
}

bool Doorbell::Open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd_ >= 0;
}

void Doorbell::Ring() const {
  const uint64_t one = 1;
  // Fails only when 2^64 rings are pending, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

void Doorbell::Clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
}

}  // namespace ckv
