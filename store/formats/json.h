// JSON from outside, parsed with distrust and without exceptions.

#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

// A whole JSON text as a document.
//   InvalidArgument     not JSON (NUL bytes and bytes that are not UTF-8 included), nested deeper
//                       than `depth_max`, or a key twice in one object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, int depth_max);

}  // namespace ckv
