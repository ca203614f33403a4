#include "transport/tcp/silence_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace ckv {

SilenceWatch::~SilenceWatch() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void SilenceWatch::Run() {
  // The kernel's timers count in real time, so this loop does too.
  Clock& clock = *Clock::Real();
  absl::MutexLock lock(&mu_);
  while (true) {
    clock.Await(mu_, absl::Condition(this, &SilenceWatch::HasWork), kInstantMax);
    clock.Await(mu_, absl::Condition(&stop_), clock.Now() + kLookInterval);
    if (stop_) return;
    for (Watched* connection : watched_) connection->Look();
  }
}

SilenceWatch::Watched::Watched(std::shared_ptr<SilenceWatch> watch, int fd)
    : watch_(std::move(watch)), fd_(fd) {
  if (watch_ == nullptr) return;
  absl::MutexLock lock(&watch_->mu_);
  watch_->watched_.push_back(this);
  if (!watch_->thread_.joinable()) {
    watch_->thread_ = std::thread([watch = watch_.get()] { watch->Run(); });
  }
}

SilenceWatch::Watched::~Watched() {
  if (watch_ == nullptr) return;
  absl::MutexLock lock(&watch_->mu_);
  std::erase(watch_->watched_, this);
}

void SilenceWatch::Watched::Look() noexcept {
  if (found_silent()) return;
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;
  const uint32_t silent_ms = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  const uint32_t unanswered = std::max(info.tcpi_probes, info.tcpi_retransmits);
  if (unanswered < kUnansweredMax || silent_ms < kSilentMsMax) return;
  // Pairs with found_silent: a thread that reads the end of the stream knows why it ended.
  found_silent_.store(true, std::memory_order_release);
  shutdown(fd_, SHUT_RDWR);
}

}  // namespace ckv
