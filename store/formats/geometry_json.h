// A geometry as JSON, as chunk files and `corpus load` have it.

#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/geometry.h"

namespace ckv {

// Returns one object with its keys in order, so that equal geometries give equal bytes. Numbers
// survive exactly.
nlohmann::json EncodeGeometry(const Geometry& geometry);
// Reads that object back. The result is still to be checked by ValidateGeometry.
//   InvalidArgument     a field is missing, unknown, of another type, or has a value that is not
//                       known. The message is `where` ("geometry.") and the field's name.
absl::StatusOr<Geometry> DecodeGeometry(const nlohmann::json& object, std::string_view where);

// The same for an index alone, as files of rows have it.
nlohmann::json EncodeIndex(const IndexShape& index);
absl::StatusOr<IndexShape> DecodeIndex(const nlohmann::json& object, std::string_view where);

}  // namespace ckv
