// The prefetcher's records: watched contexts, their chunk ranges, and prefetches in progress. Only
// the prefetcher's own files include this one.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/context.h"
#include "client/context/context_state.h"
#include "client/cost/prefetch_rule.h"
#include "client/prefetch/context_ranges.h"
#include "client/prefetch/local_row_cache.h"
#include "client/prefetch/prefetch_reason.h"
#include "client/prefetch/prefetcher_tools.h"

namespace ckv {

// A chunk range that some watched context attends, or that is cached locally. The prefetcher's lock
// guards it.
struct PrefetchRange {
  enum class State : uint8_t { kNotCached, kQueued, kCopying, kCached };
  uint64_t key = 0;
  uint64_t bytes = 0;
  State state = State::kNotCached;
  uint32_t held = 0;             // contexts that need it to stay cached
  uint64_t requested_by = 0;     // the context that requested the prefetch
  const void* source = nullptr;  // the holder to prefetch from
  bool borrowed = false;         // cached only through chunks of other ranges, or of this process'
                                 // holder
  std::vector<uint64_t> users;   // ids of contexts
  std::vector<ChunkId> ids;      // keys in the local row cache, while it is cached
  absl::Status last_error;       // the last prefetch's
  double price_us = 0;
  double saved_us = 0;  // since it was cached
  Instant cached_since{};
  void BecomeLocal(Instant now, bool by_others) {
    state = State::kCached;
    borrowed = by_others;
    cached_since = now;
    saved_us = 0;
  }
  // Time saved per byte and microsecond since it was cached. Both times start at the price: a
  // prefetch promises to save that much in that time.
  double Worth(Instant now) const {
    const double us = static_cast<double>((now - cached_since).count()) / 1e3;
    return (price_us + saved_us) / (us + price_us + 1) / static_cast<double>(bytes + 1);
  }
};

// A context that the prefetcher watches.
struct WatchedContext {
  struct Use {
    ContextRange range;
    PrefetchRule::UseId use = 0;
    double share = 0;  // the range's part of the context's tokens
    std::optional<std::pair<Primitive, PrefetchReason>> decided;
  };
  // Any thread may read these, because they are set before the context is watched.
  uint64_t id = 0;
  ContextPolicy policy = ContextPolicy::kRoute;
  ContextExpectation expect;
  Recompute recompute;
  std::shared_ptr<ContextState> context;
  // The prefetcher's lock guards the rest, except for the last one.
  std::vector<Use> uses;
  bool same_bits = false;  // rows give the holders' bits here, or the policy is `cache`
  bool opened = false;     // the rule has its uses; only after `known`
  bool known = false;      // costs are known
  uint64_t counted = 0;
  CallShape shape;
  double own_count = 0;  // own rows per call, on average since the last update
  uint64_t own_sum = 0;
  StepCost cost;
  bool cached_pays = true;  // according to the cost model; if false, its cached rows are not used
  double call_us = 0;       // time lost by a call that is routed
  bool recompute_failed = false;  // rows are not recomputed again
  // When measuring its constants last began. Only the deciding thread uses it.
  Instant measured_at{};

  bool can_recompute() const { return recompute.make != nullptr; }
};

// A range that is being prefetched. Belongs to one copying thread.
struct PrefetchJob {
  std::shared_ptr<WatchedContext> watched;
  ContextRange context_range;
  PrefetchRange* range = nullptr;
  Primitive primitive = Primitive::kFetch;
  const void* source = nullptr;
  std::vector<ChunkId> held;        // keys of chunks that are here already, or were copied here
  std::vector<uint32_t> missing;    // chunks that are not
  std::vector<LocalRowFill> fills;  // their memory, in the same order
  bool recomputes = false;          // rows are recomputed: the fills have keys of RecomputedId
  size_t mapped_count = 0;          // how many of `held` were mapped for this job
  uint64_t mapped_bytes = 0;
  uint32_t range_held = 0;             // PrefetchRange::held when it began
  std::shared_ptr<const Corpus> kept;  // with `missing` at the cache of this host; or null

  const ContextState& context() const { return *watched->context; }
};

}  // namespace ckv
