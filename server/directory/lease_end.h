// Facts that go with the errors of leases. A refused registration learns how long the lease in its
// way lasts. A refused renewal learns which incarnation of the directory does not know its lease.

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

// Puts the incarnation of the directory into the error that it knows no such lease.
absl::Status WithDirectoryIncarnation(absl::Status status, uint64_t incarnation);
// Returns that incarnation, or nothing if `status` carries none.
std::optional<uint64_t> DirectoryIncarnationOf(const absl::Status& status);

}  // namespace ckv
