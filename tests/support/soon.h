// Bounds every wait of a test in real time, so that a bug fails it instead of hanging it.

#pragma once

#include "proto/base/clock.h"

namespace ckv::test {

// Generous: a hang reaches it, and a slow machine does not.
inline constexpr Duration kPatience = std::chrono::seconds(20);
inline Instant Soon(Duration in = kPatience) { return Clock::Real()->Now() + in; }
// For a call that waits in vain for a holder to return. Even on a slow machine it makes its first
// attempt.
inline Instant Shortly() { return Soon(std::chrono::seconds(2)); }

}  // namespace ckv::test
