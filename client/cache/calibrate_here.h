// Measures on this machine the requester constants of the cost model: merge, kernel and splice.

#pragma once

#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/decide/profile.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Times the merge, the kernel and the splice of a backend on a few rows of the geometry. It takes
// some 10 ms, once per geometry. The fastest of several runs counts, because it was disturbed
// least. Rows, partials and blocks lie in the backend's home memory.
//
// The kernel attends rows as calls find a chunk's: in memory, in huge pages, and in no cache. It
// computes in the grade of calls that ask for none and take bf16 partials. One query row gives the
// floor, and 64 give the cost of a query row and token. On a processor that cannot take rows out of
// its caches (client/cache/cold_rows.h), the floor is that of a cache.
//
// The splice is Splice (client/cache/splice.h) from warm rows, as a transfer leaves them. It goes
// into blocks of a paged cache that lie apart and were not just written. Two lengths separate the
// cost of a layer from the cost of a row. Both are 0 for a geometry without a band, whose rows a
// transfer puts in place.
//   Errors of the backend; the processor's has none.
absl::StatusOr<RequesterConstants> CalibrateHere(const Geometry& geometry, Clock& clock,
                                                 Backend& backend = *Backend::Cpu());

}  // namespace ckv
