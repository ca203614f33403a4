// Waits under an absl::Mutex with deadlines by CLOCK_MONOTONIC, unaffected by the wall clock.
//
// Abseil before 2023-08 waits on a futex with an absolute CLOCK_REALTIME deadline. If the wall
// clock is set back by an hour, the wait ends an hour late. ckv avoids this in two ways
// (deploy/adr/0045-waits-by-the-monotonic-clock.md):
//
// * ckv's own waits are untimed for abseil. One thread of the process wakes them at their
// deadlines.
//   This works in every process, including a Python interpreter that loads other libraries.
// * In programs that link this, abseil's own timed waits become monotonic too, gRPC's timers above
//   all. For this the program replaces one function of abseil.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

// Returns CLOCK_MONOTONIC in nanoseconds.
int64_t MonotonicNs() noexcept;

// Blocks until `condition` holds or CLOCK_MONOTONIC has reached `deadline_ns`. INT64_MAX is no
// deadline. Returns whether the condition holds. Other threads may evaluate the condition, as with
// absl::Mutex::Await.
bool AwaitMonotonic(absl::Mutex& mu, const absl::Condition& condition, int64_t deadline_ns)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

// Blocks until CLOCK_MONOTONIC has reached `deadline_ns`.
void SleepMonotonic(int64_t deadline_ns);

// Returns whether abseil's timed waits, including gRPC's, are monotonic in this process.
bool AbseilWaitsAreMonotonic();

}  // namespace ckv
