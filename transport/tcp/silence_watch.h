// Detects tcp connections whose peer's host disappeared silently, sooner than the kernel can.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv {

// The kernel counts keep-alive in whole seconds. Its timers are late by up to 64 ms at HZ=1000 and
// 32 ms at HZ=250. It sends probes 1 and 2 s after the last packet from the peer. It ends the
// connection when its timer fires for the third time, after 3.0 to 3.2 s. A limit of one probe
// would end the connection after 2.1 s, but also after each lost packet. So the kernel sends the
// probes, and this class checks their result. It ends a connection that has been silent for 2.5 s
// with two probes, or two retransmissions, unanswered.
//
//   second probe sent   2.0 to 2.13 s, so its answer has 0.37 s
//   retransmitted       at 0.2, 0.6 and 1.4 s if the round trip is short; if it is too long for
//                       two, the kernel's user timeout ends the connection (tcp_fabric.cc)
//   found               2.5 s + one interval = 2.7 s at most; 0.3 s are left for a busy machine
//
// A check is one system call per connection, below 1 us: 1,000 lanes take 0.5 % of a core.
// Thread-safe. The first connection starts a thread, which sleeps while there is no connection.
class SilenceWatch {
 public:
  static constexpr Duration kLookInterval = std::chrono::milliseconds(200);
  static constexpr uint32_t kSilentMsMax = 2500;
  static constexpr uint32_t kUnansweredMax = 2;  // probes or retransmissions

  SilenceWatch() = default;
  ~SilenceWatch();
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

  // Watches one connection while this object exists.
  class Watched {
   public:
    // `fd` is a connected TCP socket with keep-alive and must stay open while this object exists.
    // If `watch` is null, the connection is not watched.
    Watched(std::shared_ptr<SilenceWatch> watch, int fd);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

    // Returns whether SilenceWatch shut the connection down because its peer was silent. From then
    // on the connection reads as closed.
    bool found_silent() const noexcept { return found_silent_.load(std::memory_order_acquire); }

   private:
    friend class SilenceWatch;
    void Look() noexcept;

    const std::shared_ptr<SilenceWatch> watch_;
    const int fd_;
    std::atomic<bool> found_silent_{false};
  };

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !watched_.empty(); }

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Watched*> watched_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
