// Waits under an absl::Mutex that end by CLOCK_MONOTONIC, whatever happens to the wall clock.
//
// Abseil before 2023-08 hands a timed wait to a futex on CLOCK_REALTIME with an absolute end. After
// the wall clock was set back by an hour, the wait ends an hour late. So nothing here waits that
// way (deploy/adr/0045-waits-by-the-monotonic-clock.md):
//
// * Waits of ours are untimed ones, which one thread of the process ends when their time has come.
//   That holds in every process, a Python interpreter with libraries of its own included.
// * Waits of others, gRPC's timers above all, are turned into monotonic ones in programs that link
//   this. They come from abseil itself, so this file takes the place of one function of abseil.

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

// Returns whether timed waits of abseil are monotonic in this process, gRPC's among them.
bool AbseilWaitsAreMonotonic();

}  // namespace ckv
