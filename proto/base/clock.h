// The only way to read time. Everything that waits or expires takes a Clock. So a test advances
// time instead of sleeping (I8).

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

  // Returns the time of CLOCK_MONOTONIC: a wall clock that jumps by an hour changes no lease.
  virtual Instant Now() const noexcept = 0;

  // Blocks until `condition` holds or `deadline` has come. The caller holds `mu`. Returns whether
  // the condition holds.
  virtual bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;

  // Blocks until `instant` has come.
  void WaitUntil(Instant instant);

  // The system's clock; lives forever.
  static Clock* Real();
};

// "Deadline minus now" as the wire carries it: microseconds, at least 1, saturating.
uint32_t RemainingUs(Instant deadline, Instant now);
// Returns the microseconds that have passed since `begin`.
inline double UsSince(Instant begin, const Clock& clock) {
  return static_cast<double>((clock.Now() - begin).count()) / 1e3;
}

// Returns milliseconds since 1970 by the wall clock. A directory's epochs begin there, so a later
// life's epochs are above all earlier ones without anything on disk. Do not order anything else by
// it, because it may jump.
uint64_t WallClockMilliseconds();

// Returns how many nanoseconds the wall clock, since 1970, is ahead of `clock` now: to show people
// an Instant. It changes when the wall clock is set.
int64_t WallClockAheadNs(const Clock& clock);

// A clock that stands still until Advance. Await returns once the condition holds or the time has
// passed the deadline.
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
