// The only way to read time. Everything that waits or expires takes a Clock, so that a test
// advances time instead of sleeping and a simulation replays from one seed (I8).

#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

using Duration = std::chrono::nanoseconds;

// A point of monotonic time: nanoseconds since an arbitrary start. Never compared across machines.
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

  // CLOCK_MONOTONIC: a wall clock that jumps by an hour changes no lease.
  virtual Instant Now() const noexcept = 0;

  // Blocks until `condition` holds or `deadline` has come; the caller holds `mu`. Returns whether
  // the condition holds.
  virtual bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;

  // The system's clock; lives forever.
  static Clock* Real();
};

// Milliseconds since 1970 by the wall clock: where a directory's epochs begin, so that those of a
// later life are above all earlier ones without anything on disk. Orders nothing else: it may jump.
uint64_t WallClockMilliseconds();

// A clock that stands still until told. Await returns when the condition holds or the time has been
// advanced past the deadline.
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
