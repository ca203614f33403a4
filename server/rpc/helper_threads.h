// A thread pool for work that may block. Threads are started on demand.

#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

// Thread-safe.
class HelperThreads {
 public:
  using Work = absl::AnyInvocable<void()>;

  // Starts at most `count_max` threads. Further work is queued, without a limit.
  explicit HelperThreads(uint32_t count_max) : count_max_(count_max) {}
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;
  // Completes the queued work first.
  ~HelperThreads() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Work work) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    work_.push_back(std::move(work));
    if (idle_count_ < work_.size() && threads_.size() < count_max_)
      threads_.emplace_back([this] { Serve(); });
  }

 private:
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !work_.empty();
  }
  void Serve() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      Work work;
      {
        absl::MutexLock lock(&mu_);
        ++idle_count_;
        mu_.Await(absl::Condition(this, &HelperThreads::HasWorkOrStops));
        --idle_count_;
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  const uint32_t count_max_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);
  size_t idle_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;  // added to under mu_
};

}  // namespace ckv
