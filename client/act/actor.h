// Decides which runs of chunks of a context come near, and pulls them, off the path of calls.
//
// A call counts itself at its context. When a context has made as many calls as a decision waits
// for, the actor's thread is woken. It then
//   1  asks the cost model what a step costs if the context is routed, and if it is near, and what
//      a pull costs. Its constants are measured; while one is unknown, the context is routed
//   2  tells the rule (client/decide/pull_rule.h) what each run has lost since, and asks it
//   3  queues the runs that the rule wants near
//
// Threads of their own (client/act/actor_pull.cc) take the queued runs, at most kFlowsMax at once
// and kHolderFlowsMax from one holder. Each
//   1  makes room. It evicts the runs that save least time per byte and second, as long as they
//      save less than this one promises. If that is not room enough, it evicts none
//   2  takes the rows that are here already, in the near store or at this process' holder. If the
//      context can make rows anew for less than a pull, it does. Else this process' holder, if
//      there is one, copies them to itself. Else they are mapped from a holder on this host (shm),
//      for kMapTimeout at most. The rest is pulled
//   3  gives contexts a new table of near rows. Calls that are under way go on with theirs
//
// Policy near pulls all of a context while it is opened. Policy route does nothing here.

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

// Microseconds of one step of a context: all layers, one call each.
struct StepCost {
  double route_us = 0;
  double near_us = 0;
  double pull_us = 0;  // once, of all its chunks
  // To make a token of it anew, all layers, as a profile has it. Unset if none does.
  std::optional<double> prefill_token_us;
};

// Counters since the actor was made.
struct ActorStats {
  uint64_t near_bytes = 0, near_bytes_max = 0;
  uint32_t near_chunks = 0;
  uint64_t pulls = 0, pulls_failed = 0, evictions = 0;
  uint64_t pulled_bytes = 0;
  uint64_t mapped_bytes = 0;  // in copies made by holders on this host
  uint64_t recomputed_tokens = 0;
  LatencyCounts recompute;  // each time that rows were made anew
  DecisionCounts decisions{};
  double routed_us = 0;  // time lost by routing, as the cost model has it
  double saved_us = 0;   // time saved by near rows
  double pulled_us = 0;  // prices of all pulls
};

// The actor's hands. Those that may wait are called by its threads alone.
struct ActorTools {
  // Chunks of a corpus that a context attends with `query_rows` rows a call. Each attends
  // `selected` rows, or all if it is 0.
  struct Work {
    std::shared_ptr<const Corpus> corpus;
    std::vector<uint32_t> chunks;
    uint32_t query_rows = 0;
    uint32_t selected = 0;
  };
  // The cost by constants that are known. Does not wait.
  //   Any error           a constant is unknown yet.
  std::function<absl::StatusOr<StepCost>(const Work& work)> cost;
  // Measures what is not known, or not lately. Waits for holders.
  std::function<absl::Status(const Work& work, Instant deadline)> measure;
  // Whether all holders of a corpus have this process' kernel target. Does not wait; by any thread.
  std::function<bool(const std::shared_ptr<const Corpus>& corpus)> same_target;
  // Names the holder that a chunk would be pulled from. Does not wait.
  std::function<const void*(const std::shared_ptr<const Corpus>& corpus, uint32_t chunk)> source;
  // Fetches rows to the place that is given for each run of them.
  using Place = std::function<std::span<std::byte>(const RowRun&)>;
  // Gives up once `wanted` says no.
  std::function<absl::Status(const FetchCall& call, const Place& place,
                             const std::function<bool()>& wanted)>
      pull;
  // Maps the copy of a chunk that a holder on this host made for all requesters of the host.
  //   Any error           it is not on this host, or has no room; the rows are pulled instead.
  std::function<absl::StatusOr<std::shared_ptr<const NearRows>>(const MapCall& call)> map;
  // Has the cache of this host keep chunks of a corpus, by their ordinals, and returns the corpus
  // with these there alone. Empty if the host has none.
  //   Any error           rows come from their holders instead.
  std::function<absl::StatusOr<std::shared_ptr<const Corpus>>(
      const std::shared_ptr<const Corpus>& corpus, std::span<const uint32_t> chunks,
      Instant deadline)>
      keep;
  // Rows of this process' holder; null if there is none.
  NearSource* here = nullptr;
};

struct ActorOptions {
  Clock* clock = Clock::Real();
  uint64_t near_bytes = 0;  // room of the near store; 0 turns the actor off
  // Whether rows that are near can be attended. If not, no policy brings any.
  bool reached = true;
  // Limits of one measurement and of one slice of a pull. Destruction waits for either.
  Duration measure_timeout = std::chrono::seconds(1);
  Duration slice_timeout = std::chrono::seconds(5);
};

// Thread-safe. Its threads start with the first context that it watches.
class Actor {
 public:
  // How long constants are believed that no call renews, before they are measured again.
  static constexpr Duration kMeasuredAgeMax = std::chrono::seconds(60);
  // Measuring takes at most this share of the thread's time, so a holder that hangs delays others
  // by little.
  static constexpr int kMeasureShare = 10;
  // A link carries two flows as fast as one, and a third slows all (arXiv:2606.01502 section 6.3).
  static constexpr uint32_t kFlowsMax = 2;
  // A holder has other requesters, too, and each may pull from it.
  static constexpr uint32_t kHolderFlowsMax = 1;
  // Bytes of a slice of a pull: 0.13 s at 1 Gbit/s.
  static constexpr uint64_t kSliceBytes = uint64_t{16} << 20;
  // How long the maps of a run may take together. A holder copies 64 MiB in tens of milliseconds,
  // but behind large queries; a pull goes ahead of those.
  static constexpr Duration kMapTimeout = std::chrono::seconds(1);
  // Runs that wait to be pulled. Others wait for their context's next calls.
  static constexpr size_t kQueuedPullsMax = 1024;

  Actor(const ActorOptions& options, ActorTools tools);
  ~Actor();

  // Watches a context until it is closed. Its chunks that are near already are used from the first
  // call. With policy near it returns once all of it is near. Does nothing if near rows are not
  // reached.
  //   ResourceExhausted   policy near, and it does not fit beside others that must be near.
  //   DeadlineExceeded    policy near, and the pulls took longer.
  //   else                policy near, and a pull failed.
  absl::Status Watch(const std::shared_ptr<ContextState>& context, const ContextSpec& spec,
                     Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the rows of a chunk are near.
  bool IsNear(const ChunkId& id, const Geometry& geometry) const {
    return store_.Find(id, geometry) != nullptr;
  }

  using Stats = ActorStats;
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until nothing is due and nothing is being pulled. For tests.
  void AwaitIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Waker;
  struct Run;
  struct Watched;
  // A run that is being brought near. It belongs to one thread.
  struct Job;

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  void Update(const std::shared_ptr<Watched>& watched) ABSL_LOCKS_EXCLUDED(mu_);
  // The cost of a step of a context. Measures, if it must and may.
  absl::StatusOr<StepCost> CostOf(Watched& watched, const CallShape& shape, bool* same_bits);
  absl::Status Measure(Watched& watched, const ActorTools::Work& work);
  static double LostUs(const Watched& watched);
  // Names what the time of a prefill depends on.
  static std::string ModelOf(const Geometry& geometry);
  void Open(Watched& watched, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(Watched& watched, uint64_t calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // To bring the context near by what costs least, and whether that is to make it anew.
  std::pair<double, Primitive> PriceOf(const Watched& watched) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues the run of a use if the rule wants it, and notes what was decided.
  void Act(Watched& watched, size_t use, PullVerdict verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Decided(Watched& watched, size_t use, Primitive primitive, ActReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all chunks of a run are here already, pulled for other runs or held by this process'
  // holder. They are held then.
  bool HoldAll(Run& run, const Watched& watched, const ContextRun& context_run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds the chunk of a context if it is here. Returns its key in the near store, or zero.
  ChunkId HoldOne(const Watched& watched, uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pull() ABSL_LOCKS_EXCLUDED(mu_);
  // The first queued run whose holder may be asked, as an index; queue_.size() if there is none.
  size_t NextPull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasPullOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || NextPull() < queue_.size();
  }
  // Takes a run off the queue, and room for it. Returns false if there is nothing more to do.
  bool Begin(size_t at, Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whom a run's rows come from: a holder, or the context that makes them anew.
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
  // Gives every context of a run its new table.
  void Publish(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishTo(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ActorOptions options_;
  const ActorTools tools_;
  NearStore store_;
  const std::shared_ptr<Waker> waker_;
  Instant measure_again_{};  // its thread's: nothing is measured before
  mutable absl::Mutex mu_;
  PullRule rule_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Watched>> contexts_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Run>> runs_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> queue_ ABSL_GUARDED_BY(mu_);        // keys of runs to bring near
  std::vector<const void*> sources_ ABSL_GUARDED_BY(mu_);  // holders that are being pulled from
  uint32_t job_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Microseconds that a token took to be made anew, by model and revision.
  absl::flat_hash_map<std::string, double> made_us_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> stopping_{false};
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
