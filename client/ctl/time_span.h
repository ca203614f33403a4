// Spans of time on the command line: 250ms, 30m, 1h30m.

#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "proto/base/clock.h"

namespace ckv::ctl {

inline constexpr Duration kTimeSpanMax = std::chrono::hours(24 * 365);

// A length of time with its unit, at most kTimeSpanMax.
CLI::Validator TimeSpan();

// Returns the time that `text` says if TimeSpan let it through, else 0.
Duration ParseTimeSpan(const std::string& text);

}  // namespace ckv::ctl
