// Geometries as callers write them.

#pragma once

#include "absl/status/statusor.h"
#include "client/c/ckv.h"
#include "proto/geometry.h"

namespace ckv::c {

// Returns the geometry that `facts` describes, from `model` to `softmax_scale`.
//   InvalidArgument     a field is not valid; says which.
absl::StatusOr<Geometry> GeometryOf(const ckv_corpus_facts& facts);

}  // namespace ckv::c
