#include "server/dispatch/side_thread.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv {

SideThread::SideThread(absl::AnyInvocable<void()> notify)
    : notify_(std::move(notify)), thread_([this] { Run(); }) {}

SideThread::~SideThread() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = due_ = true;
  }
  thread_.join();
}

void SideThread::Start(absl::AnyInvocable<void()> job) {
  CKV_CHECK(idle());
  state_.store(State::kRunning, std::memory_order_relaxed);
  absl::MutexLock lock(&mu_);
  job_ = std::move(job);
  due_ = true;
}

void SideThread::Collect() {
  CKV_CHECK(finished());
  state_.store(State::kIdle, std::memory_order_relaxed);
}

void SideThread::Run() {
  while (true) {
    absl::AnyInvocable<void()> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&due_));
      if (ending_) return;
      due_ = false;
      job = std::move(job_);
    }
    job();
    state_.store(State::kFinished, std::memory_order_release);
    notify_();
  }
}

}  // namespace ckv
