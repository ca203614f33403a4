// How long requests wait at a holder, as its replies report it.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "proto/base/clock.h"

namespace ckv {

// The queueing time of the last reply. Thread-safe: every thread that gets a reply writes it, and
// all accesses are relaxed, because a lost race loses one report.
class LiveQueue {
 public:
  // An older report is out of date, because a holder without requests reports no new one.
  static constexpr Duration kAgeMax = std::chrono::seconds(1);

  // Records the queueing time that a reply reported.
  void Take(uint32_t ns, Instant now) {
    ns_.store(ns, std::memory_order_relaxed);
    taken_ns_.store(now.ns, std::memory_order_relaxed);
  }
  // Returns the queueing time in microseconds that the last reply reported, or 0 after kAgeMax.
  double Us(Instant now) const {
    return SilentFor(now) > kAgeMax ? 0 : ns_.load(std::memory_order_relaxed) / 1e3;
  }
  // Returns the time since the last reply, or since the clock's zero if there was none.
  Duration SilentFor(Instant now) const {
    return now - Instant{taken_ns_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<uint32_t> ns_{0};
  std::atomic<int64_t> taken_ns_{0};
};

}  // namespace ckv
