// Decides which runs of chunks of a context come near, and pulls them, off the path of calls.
//
// A call counts itself at its context. When a context has made as many calls as a decision waits
// for, the actor's thread is woken. It then
//   1  asks the cost model what a step costs if the context is routed, and if it is near, and what
//      a pull costs. Its constants are measured; while one is unknown, the context is routed
//   2  tells the rule (client/decide/pull_rule.h) what each run has lost since, and asks it
//   3  pulls the runs that the rule wants, one after another: one flow at a time. It makes room by
//      evicting runs that have saved less time a byte and second, as far as they do
//   4  gives contexts a new table of near rows. Calls that are under way go on with theirs
//
// Policy near pulls all of a context while it is opened. Policy route does nothing here.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/act/context_runs.h"
#include "client/calls.h"
#include "client/context/context.h"
#include "client/context/context_state.h"
#include "client/decide/pull_rule.h"
#include "client/near/near_store.h"
#include "proto/base/clock.h"

namespace ckv {

// Microseconds of one step of a context: all layers, one call each.
struct StepCost {
  double route_us = 0;
  double near_us = 0;
  double pull_us = 0;  // once, of all its chunks
};

// The actor's hands. Those that may wait are called by its thread alone.
struct ActorTools {
  // The cost of attending these chunks of a corpus with `query_rows` rows a call. Each attends
  // `selected` rows, or all if it is 0.
  //   Any error           a constant is unknown yet, or a holder is away.
  std::function<absl::StatusOr<StepCost>(const std::shared_ptr<const Corpus>& corpus,
                                         const std::vector<uint32_t>& chunks, uint32_t query_rows,
                                         uint32_t selected, Instant deadline)>
      cost;
  // Whether all holders of a corpus have this process' kernel target. Does not wait; by any thread.
  std::function<bool(const Corpus& corpus)> same_target;
  // Fetches rows to the place that is given for each run of them.
  using Place = std::function<std::span<std::byte>(const RowRun&)>;
  // Gives up once `wanted` says no.
  std::function<absl::Status(const FetchCall& call, const Place& place,
                             const std::function<bool()>& wanted)>
      pull;
};

struct ActorOptions {
  Clock* clock = Clock::Real();
  uint64_t near_bytes = 0;  // room of the near store; 0 turns the actor off
  // Limits of one question and of one slice of a pull. Destruction waits for either.
  Duration cost_timeout = std::chrono::seconds(1);
  Duration slice_timeout = std::chrono::seconds(5);
};

// Thread-safe. Its thread starts with the first context that it watches.
class Actor {
 public:
  // How long a context's costs are believed before they are asked for again.
  static constexpr Duration kCostAgeMax = std::chrono::seconds(10);
  // Bytes of a slice of a pull: 0.13 s at 1 Gbit/s.
  static constexpr uint64_t kSliceBytes = uint64_t{16} << 20;
  // Runs that wait to be pulled. Others wait for their context's next calls.
  static constexpr size_t kQueuedPullsMax = 1024;

  Actor(const ActorOptions& options, ActorTools tools);
  ~Actor();

  // Watches a context until it is closed. Its
  // chunks that are near already are used from the first call.
  // With policy near it returns once all of it is near.
  //   ResourceExhausted   policy near, and the context does not fit beside others that must be
  //   near. DeadlineExceeded    policy near, and the pulls took longer. else                policy
  //   near, and a pull failed.
  absl::Status Watch(const std::shared_ptr<ContextState>& context, ContextPolicy policy,
                     const ContextExpectation& expect, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t near_bytes = 0, near_bytes_max = 0;
    uint32_t near_chunks = 0;
    uint64_t pulls = 0, pulls_failed = 0, evictions = 0;
    uint64_t pulled_bytes = 0;
    double routed_us = 0;  // time lost by routing, as the cost model has it
    double saved_us = 0;   // time saved by near rows
    double pulled_us = 0;  // prices of all pulls
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until nothing is due and nothing is being pulled. For tests.
  void AwaitIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Waker;
  struct Run;
  struct Watched;

  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  void Update(const std::shared_ptr<Watched>& watched) ABSL_LOCKS_EXCLUDED(mu_);
  static double LostUs(const Watched& watched);
  void Count(Watched& watched, uint64_t calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all chunks of a run are here already, pulled for other runs; they are held then.
  bool HoldAll(Run& run, const ContextState& context, const ContextRun& context_run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PullNext() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<NearFill>> TakeRoom(const Run& run, const ContextState& context,
                                                 const ContextRun& context_run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fill(const ContextState& context, const ContextRun& run,
                    std::vector<NearFill>& fills) const;
  void EvictFor(const Run& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseAll(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives every context of a run its new table.
  void Publish(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishTo(Watched& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ActorOptions options_;
  const ActorTools tools_;
  NearStore store_;
  const std::shared_ptr<Waker> waker_;
  mutable absl::Mutex mu_;
  PullRule rule_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Watched>> contexts_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Run>> runs_ ABSL_GUARDED_BY(mu_);
  std::deque<uint64_t> queue_ ABSL_GUARDED_BY(mu_);  // keys of runs to pull
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> stopping_{false};
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
