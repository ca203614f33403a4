// A thread for work that would block the polling thread: runs one job at a time and calls back when
// it is done.

#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "proto/host/thread.h"

namespace ckv {

// All functions belong to the owner's thread. A job's effects are visible to it once finished() has
// returned true:
//
//   idle -- Start --> running -- the job returns, calls `notify` --> finished -- Collect --> idle
class SideThread {
 public:
  // `notify` is called on the side thread after each job, to wake the owner.
  explicit SideThread(absl::AnyInvocable<void()> notify);
  // Waits for the job in progress.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  bool idle() const { return state_.load(std::memory_order_acquire) == State::kIdle; }
  bool finished() const { return state_.load(std::memory_order_acquire) == State::kFinished; }

  // Call while idle. Runs `job` on the side thread at once. A job that AnyInvocable stores in place
  // (two pointers, e.g. a lambda over `this`) needs no allocation.
  void Start(absl::AnyInvocable<void()> job) ABSL_LOCKS_EXCLUDED(mu_);
  // Call when finished() is true. The thread is then idle again.
  void Collect();

 private:
  enum class State : uint8_t { kIdle, kRunning, kFinished };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::AnyInvocable<void()> notify_;
  std::atomic<State> state_{State::kIdle};
  absl::Mutex mu_;
  bool due_ ABSL_GUARDED_BY(mu_) = false;  // a job was given, or the thread must end
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::AnyInvocable<void()> job_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace ckv
