// Lengths of time as people write them, on a command line and in a configuration: 250ms, 5s, 30m,
// 1h30m.

#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"

namespace ckv {

inline constexpr Duration kTimeSpanMax = std::chrono::hours(24 * 365);

// Returns the length that `text` says: numbers with the units h, m (or min), s, ms, us and ns, from
// the largest to the smallest. A bare 0 is allowed.
//   InvalidArgument     it says none, or one that is negative or over kTimeSpanMax.
absl::StatusOr<Duration> ParseTimeSpan(std::string_view text);

}  // namespace ckv
