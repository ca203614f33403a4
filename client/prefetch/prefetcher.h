// Prefetches chunk ranges of contexts into the local row cache, in the background, if that saves
// time.
//
// A context counts its calls. When it has made as many calls as its next decision waits for, it
// wakes the deciding thread. The thread then
//   1  queries the cost model: what a step costs if the context is routed, what it costs if cached
//      locally, and what a prefetch costs (step_costs.h). While a constant is not measured yet, the
//      context is routed
//   2  reports to the rule (client/cost/prefetch_rule.h) how much time each range has lost, and
//      gets its verdict
//   3  queues the ranges that the rule wants in the cache (prefetch_plan.h)
//
// Copying threads take the queued ranges, at most flow_count at once and one from a holder. Each
// thread
//   1  makes room. It evicts the ranges that save the least time per byte and second, if they save
//      less than the new one promises. If that does not free enough room, it evicts none
//   2  uses rows that are already in the local row cache or at this process' holder. If the context
//      can recompute rows for less than a prefetch, it does. Else this process' holder, if there is
//      one, copies them to itself. Else they are mapped from a holder on this host (shm), for at
//      most RowCopier::kMapTimeout. The rest is fetched (row_copier.h)
//   3  gives contexts a new table of cached rows. Calls in progress continue with the old table
//
// Policy `cache` prefetches the whole context while it is opened. Policy `route` does nothing here.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/context.h"
#include "client/context/context_state.h"
#include "client/prefetch/local_row_cache.h"
#include "client/prefetch/prefetch_plan.h"
#include "client/prefetch/prefetch_waker.h"
#include "client/prefetch/prefetcher_tools.h"
#include "client/prefetch/row_copier.h"
#include "client/prefetch/step_costs.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"

namespace ckv {

// Thread-safe. Its threads start with the first context that it watches.
class Prefetcher {
 public:
  Prefetcher(const PrefetcherOptions& options, PrefetcherTools tools);
  ~Prefetcher();

  // Watches a context until it is closed. Its chunks that are cached already are used from the
  // first call. With policy `cache`, returns once the whole context is cached. Does nothing with
  // policy `route`, or if cached rows cannot be attended here.
  //   ResourceExhausted   policy `cache`: no room, given other ranges that must stay cached.
  //   DeadlineExceeded    policy `cache`: the prefetches took longer.
  //   else                policy `cache`: a prefetch failed.
  absl::Status Watch(const std::shared_ptr<ContextState>& context, const ContextSpec& spec,
                     Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the rows of a chunk are in the local row cache.
  bool IsLocal(const ChunkId& id, const Geometry& geometry) const {
    return store_.Find(id, geometry) != nullptr;
  }
  std::vector<ChunkId> LocalChunks() const { return store_.ids(); }

  PrefetcherStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no context is due and no prefetch is in progress. For tests.
  void AwaitIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Returns the record of a context that Watch is to watch.
  absl::StatusOr<std::shared_ptr<WatchedContext>> MakeWatched(
      const std::shared_ptr<ContextState>& context, const ContextSpec& spec) const;
  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The deciding thread.
  void DecideAll() ABSL_LOCKS_EXCLUDED(mu_);
  void Update(WatchedContext& watched) ABSL_LOCKS_EXCLUDED(mu_);

  // A copying thread.
  void CopyAll() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || plan_.HasNext();
  }
  // Gets the rows of a job in the way that costs least, or by a fetch if that fails.
  absl::Status Copy(PrefetchJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Recompute(PrefetchJob& job) ABSL_LOCKS_EXCLUDED(mu_);

  const PrefetcherOptions options_;
  const PrefetcherTools tools_;
  LocalRowCache store_;
  const std::shared_ptr<PrefetchWaker> waker_;
  std::atomic<bool> stopping_{false};  // copying threads also read it without the lock
  const RowCopier copier_;
  StepCosts costs_;  // the deciding thread's
  mutable absl::Mutex mu_;
  PrefetchPlan plan_ ABSL_GUARDED_BY(mu_);
  std::vector<Thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
