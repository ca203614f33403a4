// The price of caching the rows of a context locally, and the time that routing it loses.

#pragma once

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "client/cost/predicate.h"
#include "client/prefetch/prefetch_records.h"
#include "proto/geometry.h"

namespace ckv {

// Returns how much longer a routed step takes than one over cached rows. Uses the measured times of
// routed calls if there are any, because the model omits that both ends sleep between calls. That
// costs up to half of a short call. Own rows are attended while holders compute, but after or
// before cached rows, on the same thread.
double LostUs(const WatchedContext& watched);

// The prices of prefetches. Learns how long recomputing takes. Not thread-safe.
class PrefetchPrices {
 public:
  // Returns the lowest price of caching the context, and whether to fetch or to recompute (kLocal).
  std::pair<double, Primitive> Of(const WatchedContext& watched) const;
  // Takes the time that one recomputed token took.
  void TakeRecomputed(const Geometry& geometry, double us_per_token);

 private:
  // Microseconds that recomputing a token took, by model and revision.
  absl::flat_hash_map<std::string, double> recompute_us_;
};

}  // namespace ckv
