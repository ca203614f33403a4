// Validators for values of command-line options. An error describes the valid values; the help text
// shows no internal tables.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace ckv::ctl {

// Accepts exactly one of these words. List them in the option's type_name with JoinNames.
CLI::Validator OneOf(std::vector<std::string> names);
std::string JoinNames(const std::vector<std::string>& names);  // "bf16|f32"

// Accepts host:port of a peer, with a port from 1 to 65535.
CLI::Validator HostPort();
// Accepts one of these or a list host:port,host:port,..., of kDirectoryCountMax at most.
CLI::Validator HostPorts();

// Accepts digits only. '-1' is reported as not a whole number, not as a failed conversion.
CLI::Validator WholeNumber();

// Accepts digits of a number from `min` to `max`.
CLI::Validator InRange(uint64_t min, uint64_t max);

// A finite number above 0, and one from 0 on.
CLI::Validator Positive();
CLI::Validator NotNegative();

// Refuses an empty value. For a filter whose absence means "all": an empty one is a script's
// mistake.
CLI::Validator NotEmpty();

// The largest first seed, so that the seeds that follow it are numbers, too.
inline constexpr uint64_t kSeedMax = uint64_t{1} << 62;

}  // namespace ckv::ctl
