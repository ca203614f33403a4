// A thread of the product: the system's, or one that a simulation runs.

#pragma once

#include <cstdint>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "proto/host/platform.h"

namespace ckv {

// Used as a std::thread, whose rules and errors it has: join a joinable thread before it is
// destroyed. Parts of a fleet that run in a simulation (tests/sim) start no thread any other way.
class Thread {
 public:
  Thread() = default;
  // Throws std::system_error if the process can have no more threads.
  explicit Thread(absl::AnyInvocable<void()> run) {
    if (Platform* const simulated = Platform::Simulated()) {
      simulated_ = simulated->StartThread(std::move(run));
    } else {
      thread_ = std::thread(std::move(run));
    }
  }
  Thread(Thread&& other) noexcept
      : thread_(std::move(other.thread_)), simulated_(std::exchange(other.simulated_, 0)) {}
  Thread& operator=(Thread&& other) noexcept {
    thread_ = std::move(other.thread_);
    simulated_ = std::exchange(other.simulated_, 0);
    return *this;
  }
  void swap(Thread& other) noexcept { std::swap(*this, other); }

  bool joinable() const noexcept { return simulated_ != 0 || thread_.joinable(); }
  // Blocks until the thread has ended.
  void join() {
    if (simulated_ == 0) return thread_.join();
    Platform::Simulated()->JoinThread(std::exchange(simulated_, 0));
  }

 private:
  std::thread thread_;
  uint64_t simulated_ = 0;  // the platform's number of it; 0 if it is the system's
};

}  // namespace ckv
