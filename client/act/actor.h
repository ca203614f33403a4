// Prefetches chunk ranges of contexts into the local row cache, in the background, if that saves
// time.
//
// A context counts its calls. When it has made as many calls as its next decision waits for, it
// wakes the actor's thread. The thread then
//   1  queries the cost model: what a step costs if the context is routed, what it costs if cached
//      locally, and what a prefetch costs. While a constant is not measured yet, the context is
//      routed
//   2  reports to the rule (client/decide/pull_rule.h) how much time each range has lost, and gets
//      its verdict
//   3  queues the ranges that the rule wants in the cache
//
// Separate threads (client/act/actor_pull.cc) take the queued ranges, at most kFlowsMax at once and
// kHolderFlowsMax from one holder. Each thread
//   1  makes room. It evicts the ranges that save the least time per byte and second, if they save
//      less than the new one promises. If that does not free enough room, it evicts none
//   2  uses rows that are already in the local row cache or at this process' holder. If the context
//      can recompute rows for less than a prefetch, it does. Else this process' holder, if there is
//      one, copies them to itself. Else they are mapped from a holder on this host (shm), for at
//      most kMapTimeout. The rest is fetched
//   3  gives contexts a new table of cached rows. Calls in progress continue with the old table
//
// Policy `near` prefetches the whole context while it is opened. Policy `route` does nothing here.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/act/act_reason.h"
#include "client/act/context_runs.h"
#include "client/calls.h"
#include "client/context/context.h"
#include "client/context/context_state.h"
#include "client/decide/pull_rule.h"
#include "client/near/near_store.h"
#include "proto/base/clock.h"
#include "proto/base/latency_histogram.h"

namespace ckv {

// Microseconds of one step of a context: one call for each layer.
struct StepCost {
  double route_us = 0;
  double near_us = 0;
  double pull_us = 0;  // once, for all its chunks
  // To recompute one token, all layers, according to a profile. Unset if no profile has it.
  std::optional<double> prefill_token_us;
};

// Counters since the actor was created.
struct ActorStats {
  uint64_t near_bytes = 0, near_bytes_max = 0;
  uint32_t near_chunks = 0;
  uint64_t pulls = 0, pulls_failed = 0, evictions = 0;
  uint64_t pulled_bytes = 0;
  uint64_t mapped_bytes = 0;  // in copies made by holders on this host
  uint64_t recomputed_tokens = 0;
  LatencyCounts recompute;  // one sample for each recompute
  DecisionCounts decisions{};
  double routed_us = 0;  // estimated time lost by routing
  double saved_us = 0;   // estimated time saved by cached rows
  double pulled_us = 0;  // estimated costs of all prefetches
};

// The functions that the actor uses. Only its own threads call those that may wait.
struct ActorTools {
  // Chunks of a corpus that a context attends with `query_rows` rows per call. Each row attends
  // `selected` rows, or all if `selected` is 0.
  struct Work {
    std::shared_ptr<const Corpus> corpus;
    std::vector<uint32_t> chunks;
    uint32_t query_rows = 0;
    uint32_t selected = 0;
  };
  // Returns the cost from the known constants. Does not wait.
  //   Any error           a constant is not known yet.
  std::function<absl::StatusOr<StepCost>(const Work& work)> cost;
  // Measures constants that are unknown or were not measured lately. Waits for holders.
  std::function<absl::Status(const Work& work, Instant deadline)> measure;
  // Whether all holders of a corpus have this process' kernel target. Does not wait; for any
  // thread.
  std::function<bool(const std::shared_ptr<const Corpus>& corpus)> same_target;
  // Identifies the holder that a chunk would be fetched from. Does not wait.
  std::function<const void*(const std::shared_ptr<const Corpus>& corpus, uint32_t chunk)> source;
  // Returns the memory for a run of rows.
  using Place = std::function<std::span<std::byte>(const RowRun&)>;
  // Fetches rows to where `place` puts them. Stops early once `wanted` returns false.
  std::function<absl::Status(const FetchCall& call, const Place& place,
                             const std::function<bool()>& wanted)>
      pull;
  // Maps the copy of a chunk that a holder on this host made for all requesters of the host.
  //   Any error           no holder on this host has it, or none has room; the rows are fetched.
  std::function<absl::StatusOr<std::shared_ptr<const NearRows>>(const MapCall& call)> map;
  // Makes the cache of this host store chunks of a corpus, by ordinal. Returns the corpus with
  // these chunks placed only there. Empty if the host has no cache.
  //   Any error           rows are fetched from their holders instead.
  std::function<absl::StatusOr<std::shared_ptr<const Corpus>>(
      const std::shared_ptr<const Corpus>& corpus, std::span<const uint32_t> chunks,
      Instant deadline)>
      keep;
  // Rows of this process' holder; null if there is none.
  NearSource* here = nullptr;
};

struct ActorOptions {
  Clock* clock = Clock::Real();
  uint64_t near_bytes = 0;  // capacity of the local row cache; 0 turns the actor off
  // Whether cached rows can be attended here. If not, no policy prefetches any.
  bool reached = true;
  // Limits of one measurement and of one slice of a prefetch. The destructor waits for either.
  Duration measure_timeout = std::chrono::seconds(1);
  Duration slice_timeout = std::chrono::seconds(5);
};

// Thread-safe. Its threads start with the first context that it watches.
class Actor {
 public:
  // How long constants stay valid if no call renews them. Then they are measured again.
  static constexpr Duration kMeasuredAgeMax = std::chrono::seconds(60);
  // After a failed measurement, none begins for this many times its duration. So a holder that
  // hangs delays other contexts only a little.
  static constexpr int kMeasureShare = 10;
  // A link carries two flows as fast as one, and a third slows all (arXiv:2606.01502 section 6.3).
  static constexpr uint32_t kFlowsMax = 2;
  // A holder also serves other requesters, and each of them may prefetch from it.
  static constexpr uint32_t kHolderFlowsMax = 1;
  // Bytes of a slice of a prefetch: 0.13 s at 1 Gbit/s.
  static constexpr uint64_t kSliceBytes = uint64_t{16} << 20;
  // The limit for mapping all chunks of a range. A holder copies 64 MiB in tens of milliseconds,
  // but only after large queries in its queue; it serves fetches before them.
  static constexpr Duration kMapTimeout = std::chrono::seconds(1);
  // The most ranges that may be queued. Others wait for their context's next calls.
  static constexpr size_t kQueuedPullsMax = 1024;

  Actor(const ActorOptions& options, ActorTools tools);
  ~Actor();

  // Watches a context until it is closed. Its chunks that are cached already are used from the
  // first call. With policy `near`, returns once the whole context is cached. Does nothing with
  // policy `route`, or if cached rows cannot be attended here.
  //   ResourceExhausted   policy `near`: no room, given other ranges that must stay cached.
  //   DeadlineExceeded    policy `near`: the prefetches took longer.
  //   else                policy `near`: a prefetch failed.
  absl::Status Watch(const std::shared_ptr<ContextState>& context, const ContextSpec& spec,
                     Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the rows of a chunk are in the local row cache.
  bool IsNear(const ChunkId& id, const Geometry& geometry) const {
    return store_.Find(id, geometry) != nullptr;
  }

  using Stats = ActorStats;
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no context is due and no prefetch is in progress. For tests.
  void AwaitIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Waker;
  struct Run;
  struct Watched;
  // A range that is being prefetched. Belongs to one thread.
  struct Job;

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  void Update(const std::shared_ptr<Watched>& watched) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the cost of a step of a context. Measures if necessary and permitted.
  absl::StatusOr<StepCost> CostOf(Watched& watched, const CallShape& shape, bool* same_bits);
  absl::Status Measure(Watched& watched, const ActorTools::Work& work);
  static double LostUs(const Watched& watched);
  // Returns what the time of a prefill depends on: the model and its revision.
  static std::string ModelOf(const Geometry& geometry);
  void Open(Watched& watched, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(Watched& watched, uint64_t calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the lowest price of caching the context, and whether to fetch or to recompute (kLocal).
  std::pair<double, Primitive> PriceOf(const Watched& watched) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues the range of a use if the rule wants it, and records the decision.
  void Act(Watched& watched, size_t use, PullVerdict verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Decided(Watched& watched, size_t use, Primitive primitive, ActReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all chunks of a range are here: prefetched for other ranges, or stored by this process'
  // holder. If so, holds them.
  bool HoldAll(Run& run, const Watched& watched, const ContextRun& context_run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds a chunk of a context if it is here. Returns its key in the local row cache, or zero.
  ChunkId HoldOne(const Watched& watched, uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pull() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the index of the first queued range whose source is below its flow limit; queue_.size()
  // if there is none.
  size_t NextPull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasPullOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || NextPull() < queue_.size();
  }
  // Takes a range off the queue and fills `job`. Returns false if no work is left for the range.
  bool Begin(size_t at, Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the source of a range's rows: a holder, or the context that recomputes them.
  const void* SourceOf(const Run& run) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeRoom(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeFills(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fill(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  void CopyHere(const Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  void KeepAtCache(Job& job) const;
  Instant CopiedBy(uint64_t bytes) const;
  absl::Status MapRows(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Adopt(Job& job, std::vector<std::shared_ptr<const NearRows>> mapped)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakeAnew(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status PullRows(Job& job, size_t begin, size_t end) const;
  void End(Job& job, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool wanted() const { return !stopping_.load(std::memory_order_relaxed); }

  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictFor(const Run& wanted, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseAll(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives every context of a range its new table.
  void Publish(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishTo(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ActorOptions options_;
  const ActorTools tools_;
  NearStore store_;
  const std::shared_ptr<Waker> waker_;
  Instant measure_again_{};  // the actor's thread's: no measurement begins before
  mutable absl::Mutex mu_;
  PullRule rule_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Watched>> contexts_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Run>> runs_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> queue_ ABSL_GUARDED_BY(mu_);        // keys of ranges to prefetch
  std::vector<const void*> sources_ ABSL_GUARDED_BY(mu_);  // sources of the prefetches in progress
  uint32_t job_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Microseconds that recomputing a token took, by model and revision.
  absl::flat_hash_map<std::string, double> made_us_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> stopping_{false};
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
