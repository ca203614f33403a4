// Checks of what the command line gives an option: an error says what would be right, and the help
// shows no tables of the implementation's.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace ckv::ctl {

// One of these words and nothing else. The option's type_name lists them: JoinNames.
CLI::Validator OneOf(std::vector<std::string> names);
std::string JoinNames(const std::vector<std::string>& names);  // "bf16|f32"

// host:port of somebody, so a port from 1 to 65535.
CLI::Validator HostPort();

// Digits: '-1' is refused as a number and not as a conversion.
CLI::Validator WholeNumber();

// Digits of a number from `min` to `max`.
CLI::Validator InRange(uint64_t min, uint64_t max);

// For a filter whose absence means all: an empty one is a script's mistake, and not all.
CLI::Validator NotEmpty();

}  // namespace ckv::ctl
