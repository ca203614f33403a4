#include "proto/host/platform.h"

#include <sched.h>
#include <sys/random.h>

#include <cstdlib>

namespace ckv {

int PollFds(std::span<pollfd> fds, const timespec& at_most) {
  if (Platform* const simulated = Platform::Simulated()) return simulated->Poll(fds, at_most);
  return ppoll(fds.data(), fds.size(), &at_most, nullptr);
}

int EpollWait(int epoll_fd, std::span<epoll_event> events, int timeout_ms) {
  if (Platform* const simulated = Platform::Simulated()) {
    return simulated->EpollWait(epoll_fd, events, timeout_ms);
  }
  return epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), timeout_ms);
}

void YieldProcessor() {
  if (Platform* const simulated = Platform::Simulated()) return simulated->Yield();
  sched_yield();
}

void RandomBytes(std::span<std::byte> bytes) {
  if (Platform* const simulated = Platform::Simulated()) return simulated->Random(bytes);
  // Up to 256 bytes are returned at once, and no signal interrupts the call (getrandom(2)).
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
}

uint64_t RandomWord() {
  uint64_t word = 0;
  RandomBytes(std::as_writable_bytes(std::span(&word, 1)));
  return word;
}

}  // namespace ckv
