// Measures on this machine the requester constants of the cost model: merge, kernel and splice.

#pragma once

#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/cost/profile.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Times the merge, the kernel and the splice of a backend on a few rows of the geometry. Takes some
// 10 ms, once per geometry. The fastest of several runs counts, because it was disturbed least.
// Memory is the backend's home memory. Runs on the calling thread.
//
// The kernel attends rows in the state in which calls find a chunk's: in memory, in huge pages, and
// in no cache. It uses the default precision for bf16 partials. One query row gives the floor, and
// 64 give the cost per query row and token. On a processor that cannot flush rows from its caches
// (client/paged/cache_flush.h), the floor is that of cached rows.
//
// The splice is Splice (client/paged/splice.h) from warm rows, as a transfer leaves them. Its
// target is scattered blocks of a paged cache that were not just written. Two lengths separate the
// cost of a layer from the cost of a row. Both costs are 0 for a geometry without a RoPE band,
// because a transfer puts those rows in place.
//   Returns errors of the backend; the processor's has none.
absl::StatusOr<RequesterConstants> CalibrateHere(const Geometry& geometry, Clock& clock,
                                                 Backend& backend = *Backend::Cpu());

}  // namespace ckv
