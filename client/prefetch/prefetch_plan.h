// Decides which chunk ranges of the watched contexts are worth a copy in the local row cache, and
// which cached ranges make room for them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/context/context_usage.h"
#include "client/cost/prefetch_rule.h"
#include "client/prefetch/local_ranges.h"
#include "client/prefetch/prefetch_prices.h"
#include "client/prefetch/prefetch_queue.h"
#include "client/prefetch/prefetch_reason.h"
#include "client/prefetch/prefetch_records.h"
#include "client/prefetch/prefetcher_tools.h"
#include "client/prefetch/step_costs.h"
#include "proto/base/clock.h"
#include "proto/base/latency_histogram.h"

namespace ckv {

// Counters since the prefetcher was created.
struct PrefetcherStats {
  uint64_t local_cache_bytes = 0, local_cache_bytes_max = 0;
  uint32_t local_cache_chunks = 0;
  uint64_t prefetches = 0, prefetches_failed = 0, evictions = 0;
  uint64_t prefetched_bytes = 0;
  uint64_t mapped_bytes = 0;  // in copies made by holders on this host
  uint64_t recomputed_tokens = 0;
  LatencyCounts recompute;  // one sample for each recompute
  DecisionCounts decisions{};
  double routed_us = 0;      // estimated time lost by routing
  double saved_us = 0;       // estimated time saved by cached rows
  double prefetched_us = 0;  // estimated costs of all prefetches
};

// The usage of a context when the deciding thread read it.
struct SeenCalls {
  uint64_t count = 0;
  CallShape last;
  bool closed = false;
};

// Copies nothing itself: it queues ranges, and copying threads begin and end their jobs. The
// prefetcher's lock guards it. No method waits.
class PrefetchPlan {
 public:
  // All must outlive it.
  PrefetchPlan(const PrefetcherOptions* options, const PrefetcherTools* tools,
               LocalRowCache* store);

  // Watches a context: gives it an id, and sets `watcher` as its watcher. Its chunks that are
  // cached already are used from the first call. With policy `cache`, queues all of its ranges that
  // are not cached.
  void Add(const std::shared_ptr<WatchedContext>& watched, std::shared_ptr<ContextWatcher> watcher);
  size_t context_count() const { return contexts_.size(); }
  // Returns a watched context, or null.
  std::shared_ptr<WatchedContext> Find(uint64_t id) const;
  // Returns true if the whole context is cached, or if a prefetch failed. `status` is then its
  // error.
  bool Settled(const WatchedContext& watched, absl::Status& status) const;
  // Takes the calls that a context has made, and the cost of its steps if it is known. Decides on
  // each of its ranges, queues those that should be cached, and sets when the context is due again.
  // Ends the watch of a closed context.
  void Update(WatchedContext& watched, const SeenCalls& calls,
              const absl::StatusOr<ContextCost>& cost);
  // Ends the watch of a context, if it is watched.
  void Unwatch(WatchedContext& watched);

  // Returns whether a queued range may be prefetched now.
  bool HasNext() const;
  // Takes the next range off the queue and fills `job`. Returns false if there is none, or if it
  // needs no copy any more.
  bool BeginNext(PrefetchJob& job);
  // Holds the chunks that are here, and reserves space for the others. May evict other ranges.
  //   ResourceExhausted   there is no room.
  absl::Status ReserveSpace(PrefetchJob& job);
  // Reserves space again for rows that were not recomputed and are fetched instead.
  absl::Status ReserveSpaceToFetch(PrefetchJob& job);
  // Replaces reserved space by mapped rows, as LocalRanges::Adopt.
  absl::Status Adopt(PrefetchJob& job, std::vector<std::shared_ptr<const LocalRows>> mapped);
  // Takes the outcome of recomputing the missing rows of a job. After a failure, the context
  // recomputes no more.
  void EndRecompute(PrefetchJob& job, const absl::Status& status, uint64_t tokens, Duration took);
  // Ends a job. Contexts use its rows from now on. If it failed while a context came to need it in
  // the cache, queues it again, if `may_repeat`.
  void End(PrefetchJob& job, const absl::Status& status, bool may_repeat);

  // Returns true if no range is queued, and no job is in progress.
  bool idle() const { return queue_.idle(); }
  PrefetcherStats stats() const;

 private:
  void TakeCost(WatchedContext& watched, const CallShape& shape, const ContextCost& cost);
  // Opens the uses of a context in the rule, or updates their prices.
  void Price(WatchedContext& watched, Instant now);
  void Count(WatchedContext& watched, uint64_t calls);
  // Queues the range of a use if the rule wants it, and records the decision.
  void Decide(WatchedContext& watched, size_t use, PrefetchVerdict verdict);
  void Record(WatchedContext& watched, size_t use, Primitive primitive, PrefetchReason reason);
  // Returns the source of a range's rows: a holder, or the context that recomputes them.
  const void* SourceOf(const PrefetchRange& range) const;
  // As LocalRanges::HoldAll. Also updates where the range would be prefetched from.
  bool HoldAll(PrefetchRange& range, const WatchedContext& watched,
               const ContextRange& context_range);

  void UnwatchClosed();
  void EvictFor(const PrefetchRange& wanted, uint64_t bytes);
  void Evict(PrefetchRange& range);
  // Gives every context of a range its new table.
  void Publish(PrefetchRange& range);
  void PublishTo(WatchedContext& watched);

  Clock* const clock_;
  const PrefetcherTools* const tools_;
  LocalRanges local_;
  PrefetchRule rule_;
  PrefetchPrices prices_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<WatchedContext>> contexts_;
  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<PrefetchRange>> ranges_;
  PrefetchQueue queue_;
  PrefetcherStats stats_;
};

}  // namespace ckv
