// The only way to read time. Everything that waits or expires takes a Clock, so that a test
// advances time instead of sleeping (I8).

#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

using Duration = std::chrono::nanoseconds;

// A point of monotonic time: nanoseconds since an arbitrary start. Never compare it across
// machines.
struct Instant {
  int64_t ns = 0;

  friend auto operator<=>(const Instant&, const Instant&) = default;
  friend Instant operator+(Instant t, Duration d) { return {t.ns + d.count()}; }
  friend Instant operator-(Instant t, Duration d) { return {t.ns - d.count()}; }
  friend Duration operator-(Instant a, Instant b) { return Duration(a.ns - b.ns); }
};

inline constexpr Instant kInstantMax = {INT64_MAX};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Returns the time of CLOCK_MONOTONIC, so that a jump of the wall clock changes no lease.
  virtual Instant Now() const noexcept = 0;

  // Blocks until `condition` holds or `deadline` has passed. The caller holds `mu`. Returns whether
  // the condition holds.
  virtual bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;

  // Blocks until `instant`.
  void WaitUntil(Instant instant);

  // Returns the system's clock, which is never destroyed.
  static Clock* Real();
};

// Returns `deadline - now` as sent on the wire: microseconds, at least 1, saturating.
uint32_t RemainingUs(Instant deadline, Instant now);
// Returns the microseconds that have passed since `begin`.
inline double UsSince(Instant begin, const Clock& clock) {
  return static_cast<double>((clock.Now() - begin).count()) / 1e3;
}

// Returns milliseconds since 1970 by the wall clock. A directory's epochs begin at this value, so
// the epochs of a later incarnation exceed all earlier ones without any state on disk. Do not order
// anything else by the wall clock, because it may jump.
uint64_t WallClockMilliseconds();

// Returns the wall clock (nanoseconds since 1970) minus `clock`, both now. Use it to display an
// Instant. The result changes when the wall clock is set.
int64_t WallClockAheadNs(const Clock& clock);

// A clock that moves only by Advance. Await returns once the condition holds or the deadline has
// passed.
class ManualClock final : public Clock {
 public:
  Instant Now() const noexcept override;
  bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Advance(Duration by);

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};  // not 0, so that "never" and "at the start" differ
};

}  // namespace ckv
