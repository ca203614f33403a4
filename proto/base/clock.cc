#include "proto/base/clock.h"

#include <algorithm>
#include <ctime>
#include <limits>

#include "absl/time/time.h"
#include "proto/host/monotonic_wait.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

class RealClock final : public Clock {
 public:
  Instant Now() const noexcept override { return {MonotonicNs()}; }

  bool Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return AwaitMonotonic(mu, condition, deadline.ns);
  }
};

int64_t WallClockNs() {
  if (Platform* const simulated = Platform::Simulated()) return simulated->WallClockNs();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// How often a waiter on a ManualClock looks at it. The clock has no list of waiters to wake,
// because each waits on a mutex of its own.
constexpr absl::Duration kManualClockPoll = absl::Milliseconds(1);

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;  // threads may outlive the static objects
  return clock;
}

void Clock::WaitUntil(Instant instant) {
  if (this == Real()) return SleepMonotonic(instant.ns);
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  const bool never = false;
  Await(mu, absl::Condition(&never), instant);
}

uint32_t RemainingUs(Instant deadline, Instant now) {
  const int64_t us = (deadline.ns - now.ns) / 1000;
  return static_cast<uint32_t>(std::clamp<int64_t>(us, 1, std::numeric_limits<uint32_t>::max()));
}

uint64_t WallClockMilliseconds() { return static_cast<uint64_t>(WallClockNs()) / 1'000'000; }

int64_t WallClockAheadNs(const Clock& clock) {
  // A thread may be put off between two readings. The closest pair of some is taken.
  constexpr int kReadingCount = 8;
  int64_t ahead_ns = 0;
  Duration closest = Duration::max();
  for (int i = 0; i < kReadingCount; ++i) {
    const Instant before = clock.Now();
    const int64_t wall_ns = WallClockNs();
    const Duration apart = clock.Now() - before;
    if (apart >= closest) continue;
    closest = apart;
    ahead_ns = wall_ns - before.ns - apart.count() / 2;
  }
  return ahead_ns;
}

Instant ManualClock::Now() const noexcept { return {now_ns_.load(std::memory_order_acquire)}; }

bool ManualClock::Await(absl::Mutex& mu, const absl::Condition& condition, Instant deadline) {
  while (!mu.AwaitWithTimeout(condition, kManualClockPoll)) {
    if (Now() >= deadline) return condition.Eval();
  }
  return true;
}

void ManualClock::Advance(Duration by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

}  // namespace ckv
