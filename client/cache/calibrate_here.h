// Measures on this machine the requester constants of the cost model: merge, kernel and splice.

#pragma once

#include "client/decide/profile.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Times the merge, the kernel and the splice here on a few rows of the geometry. It takes a few
// milliseconds, once per geometry. The fastest of several runs counts, because it was disturbed
// least.
//
// The splice is Splice (client/cache/splice.h) from warm rows, as a transfer leaves them. It goes
// into blocks of a paged cache that lie apart and were not just written. Two lengths separate the
// cost of a layer from the cost of a row. Both are 0 for a geometry without a band, whose rows a
// transfer puts in place.
RequesterConstants CalibrateHere(const Geometry& geometry, Clock& clock);

}  // namespace ckv
