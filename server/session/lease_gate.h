// The holder's permission to answer: its lease, and the epoch granted with it (I4).

#pragma once

#include <atomic>
#include <cstdint>

#include "proto/base/clock.h"
#include "proto/ids.h"

namespace ckv {

// Written by the registration thread, read by the dispatcher before it touches data. Thread-safe.
class LeaseGate {
 public:
  // Call when the directory has granted or renewed a lease. Pass a conservative `until`: half the
  // lease, counted from when the request for it was sent. A holder cut off from its directory then
  // stops before the directory gives its place to another.
  void Grant(Epoch epoch, Instant until) {
    epoch_.store(epoch.value, std::memory_order_release);
    until_ns_.store(until.ns, std::memory_order_release);
  }
  void Revoke() { until_ns_.store(0, std::memory_order_release); }

  bool LiveAt(Instant now) const { return now.ns < until_ns_.load(std::memory_order_acquire); }
  Epoch epoch() const { return {epoch_.load(std::memory_order_acquire)}; }

 private:
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int64_t> until_ns_{0};
};

}  // namespace ckv
