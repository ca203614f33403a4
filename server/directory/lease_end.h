// How long a refused registration waits: the time that is left of the lease in its way.

#pragma once

#include <optional>

#include "absl/status/status.h"
#include "proto/base/clock.h"

namespace ckv {

// No lease is shorter: it is renewed at a third of it, and a renewal may take as long again.
inline constexpr Duration kLeaseTtlMin = std::chrono::milliseconds(500);
// No lease is longer, so a name is held at most this long after its process was killed.
inline constexpr Duration kLeaseTtlMax = std::chrono::seconds(60);

// Puts the time that is left of a lease into the error that another address holds the name.
absl::Status WithLeaseEnd(absl::Status status, Duration left);
// Returns that time, at most kLeaseTtlMax, or nothing if `status` carries none.
std::optional<Duration> LeaseEndOf(const absl::Status& status);

}  // namespace ckv
