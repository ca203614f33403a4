// One thread for what takes too long for the polling one: a job at a time, told when it is done.

#pragma once

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

// Start, finished and Collect belong to the owner's thread. A job's effects are seen by the owner
// once finished() was true.
class SideThread {
 public:
  // `tell` is called on the side thread after each job, to wake the owner.
  explicit SideThread(absl::AnyInvocable<void()> tell);
  // Waits for the job in progress.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  bool idle() const { return state_.load(std::memory_order_acquire) == State::kIdle; }
  bool finished() const { return state_.load(std::memory_order_acquire) == State::kFinished; }

  // While idle. The job runs at once; it is not copied or moved again, and Start allocates nothing
  // for one that AnyInvocable keeps in place.
  void Start(absl::AnyInvocable<void()> job) ABSL_LOCKS_EXCLUDED(mu_);
  // After finished: idle again.
  void Collect();

 private:
  enum class State : uint8_t { kIdle, kRunning, kFinished };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::AnyInvocable<void()> tell_;
  std::atomic<State> state_{State::kIdle};
  absl::Mutex mu_;
  bool due_ ABSL_GUARDED_BY(mu_) = false;  // a job, or the end
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::AnyInvocable<void()> job_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
