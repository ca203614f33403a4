// The parts of the operating system that a cluster simulation replaces (I8): threads, the sleeps
// that no Clock makes, random bytes, and the wall clock.
//
// Product code uses the functions below and ckv::Thread (proto/host/thread.h) instead of the
// system's. In every process of the product they are the system's, at the cost of one load of a
// pointer. A simulation installs a Platform of its own, whose answers follow from a seed
// (tests/sim/README.md).

#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>

#include "absl/functional/any_invocable.h"

namespace ckv {

// Every function is called by threads that StartThread started, or by the thread that installed it.
class Platform {
 public:
  virtual ~Platform() = default;

  // Starts `run` on a new thread and returns the thread's number, which is never 0.
  virtual uint64_t StartThread(absl::AnyInvocable<void()> run) = 0;
  // Blocks until the thread has ended. Call it once per thread.
  virtual void JoinThread(uint64_t thread) = 0;

  // A thread blocks on a mutex or a condition of abseil. Returns true once it has taken one from
  // `count`, or false if the wait's time is over. Abseil's own time limits do not count here.
  virtual bool WaitForPost(std::atomic<int32_t>& count) = 0;

  // As ppoll, epoll_wait, sched_yield and getrandom of the system.
  virtual int Poll(std::span<pollfd> fds, const timespec& at_most) = 0;
  virtual int EpollWait(int epoll_fd, std::span<epoll_event> events, int timeout_ms) = 0;
  virtual void Yield() = 0;
  virtual void Random(std::span<std::byte> bytes) = 0;
  // Nanoseconds since 1970.
  virtual int64_t WallClockNs() = 0;

  // Returns the simulation that this process runs in, or null.
  static Platform* Simulated() noexcept { return installed.load(std::memory_order_relaxed); }
  // Makes this process a simulation until the end of the process. For tests/sim only. Call it
  // before any of the functions below is used. `platform` must outlive the process's last thread.
  static void Simulate(Platform* platform) noexcept {
    installed.store(platform, std::memory_order_relaxed);
  }

 private:
  static inline std::atomic<Platform*> installed{nullptr};
};

// Waits until one of `fds` is ready, at most for `at_most`. Returns as ppoll.
int PollFds(std::span<pollfd> fds, const timespec& at_most);
// Waits for events of `epoll_fd`. Returns as epoll_wait.
int EpollWait(int epoll_fd, std::span<epoll_event> events, int timeout_ms);
// Lets another thread run on this processor.
void YieldProcessor();
// Fills at most 256 bytes with random ones from the kernel's generator. Ends the process if the
// kernel has none.
void RandomBytes(std::span<std::byte> bytes);
// Returns 64 bits of them.
uint64_t RandomWord();

}  // namespace ckv
