// JSON from outside, parsed with distrust and without exceptions.

#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

// Parses a whole JSON text.
//   InvalidArgument     it is not JSON, has NUL bytes, is not UTF-8, is nested deeper than
//                       `depth_max`, or has a key twice in one object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, int depth_max);

}  // namespace ckv
