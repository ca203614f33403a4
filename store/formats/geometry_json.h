// A geometry as JSON: in manifests and in chunk files.

#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/geometry.h"

namespace ckv {

// One object, keys in order, so that equal geometries give equal bytes. Numbers survive exactly.
nlohmann::json EncodeGeometry(const Geometry& geometry);
// Does not check what ValidateGeometry does.
//   InvalidArgument     begins with `where`, "manifest: geometry.", and names the field: missing,
//                       unknown, of another type, or of a value that is not known.
absl::StatusOr<Geometry> DecodeGeometry(const nlohmann::json& object, std::string_view where);

}  // namespace ckv
