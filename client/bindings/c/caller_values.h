// Geometries and extra keys as callers write them.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/bindings/c/ckv.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"

namespace ckv::c {

// Returns the geometry that `facts` describes, from `model` to `softmax_scale`.
//   InvalidArgument     a field is not valid; the text names it.
absl::StatusOr<Geometry> GeometryOf(const ckv_corpus_facts& facts);

// Returns the keys [count]. They are not sorted, nor compared with the tokens.
//   InvalidArgument     there are too many, or one has no digest or one that is too long; the
//                       text names it.
absl::StatusOr<ExtraKeys> ExtraKeysFrom(const ckv_extra_key* keys, uint32_t count);

}  // namespace ckv::c
