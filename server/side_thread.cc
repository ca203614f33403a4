#include "server/side_thread.h"

#include <utility>

#include "proto/status.h"

namespace ckv {

SideThread::SideThread(absl::AnyInvocable<void()> tell)
    : tell_(std::move(tell)), thread_([this] { Run(); }) {}

SideThread::~SideThread() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  thread_.join();
}

void SideThread::Start(absl::AnyInvocable<void()> job) {
  CKV_CHECK(idle());
  state_.store(State::kRunning, std::memory_order_relaxed);
  absl::MutexLock lock(&mu_);
  job_ = std::move(job);
  started_ = true;
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
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return started_ || ending_; };
      mu_.Await(absl::Condition(&due));
      if (ending_) return;
      started_ = false;
      job = std::move(job_);
    }
    job();
    state_.store(State::kFinished, std::memory_order_release);
    tell_();
  }
}

}  // namespace ckv
