// Runs the dispatcher's long jobs on a second thread, one at a time. They are long requests, scores
// of index keys, and copies of chunks for requesters to map.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/batch/batch.h"
#include "server/batch/ready_request.h"
#include "server/dispatch/lane_set.h"
#include "server/dispatch/score_work.h"
#include "server/dispatch/side_thread.h"
#include "server/score/candidate_table.h"
#include "server/session/chunk_exports.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "store/memory/chunk_table.h"
#include "transport/thread_role.h"

namespace ckv {

struct SideWorkOptions {
  uint64_t map_bytes_max;      // bytes of all copies of chunks (ChunkExports)
  const ShadowTable* shadows;  // as BatchOptions
  StripeCache* stripes;        // as BatchOptions
  MemoryKind chunk_memory;     // as BatchOptions
  uint32_t compute_threads;    // for scores
  CandidateTable* candidates;  // receives the candidates of score requests
  SpanSink* spans;             // as BatchOptions
};

// Used by the dispatcher's thread only (debug builds check that), which checks and answers the
// requests. Only the kernel and the copying run on the side thread. The lane of the job in progress
// is marked busy until Finish or End, so it is not destroyed.
class SideWork {
 public:
  // Everything borrowed must outlive this object. `notify` is called on the side thread when a job
  // is done, and should wake the dispatcher.
  SideWork(const SideWorkOptions& options, BatchTools tools, Clock* clock, const ChunkTable* table,
           const LeaseGate* lease, ServeCounters* counters, absl::AnyInvocable<void()> notify);

  bool idle() const { return thread_->idle(); }
  bool finished() const { return thread_->finished(); }

  enum class Outcome {
    kServed,   // the request was answered, or its job was started
    kNotMade,  // nothing was done: the chunk has no copy yet, so Start must make one
    kCold,     // nothing was done: the request needs rows that are on disk
  };
  // Answers a map request immediately if a copy of the chunk exists or the chunk cannot be handed
  // over.
  //   InvalidArgument     the frame is malformed and not answered: close its lane.
  absl::StatusOr<Outcome> TryMap(const ReadyRequest& ready);

  // Replies to a request for candidates.
  //   InvalidArgument     the frame is malformed and not answered: close its lane.
  absl::Status AnswerCandidates(const ReadyRequest& ready) { return score_.Answer(ready); }

  // Call while idle. Starts the job of a long attend, a score or a map request, or answers
  // immediately if no work is needed. Never returns kNotMade.
  //   InvalidArgument     the frame is malformed and not answered: close its lane.
  absl::StatusOr<Outcome> Start(const ReadyRequest& ready, HolderLane& lane);
  // Call when finished() is true. Answers the job's request; `waiting_count` is the number of
  // requests that wait behind it. A cancelled job is not answered.
  void Finish(uint32_t waiting_count);
  // The last job's multiply-adds; zero for a score, a map or a cancelled job.
  uint64_t last_work() const { return last_work_; }
  // The last job's cost, which is charged to its session's share of the thread. An attend or a
  // score costs its multiply-adds; a map costs as many multiply-adds as take the time of the
  // copying.
  uint64_t last_cost() const { return last_cost_; }
  Duration last_elapsed() const { return batch_.elapsed(); }

  // Call when a lane breaks. If the job in progress is for it, the job ends early.
  void Cancel(const HolderLane& lane) {
    role_.ClaimOrAssertHeld();
    if (lane_ == &lane) cancel_.store(true, std::memory_order_relaxed);
  }

  // Ends the job in progress early, waits for it, and does not answer it. Call last.
  void End();

 private:
  struct Mapping {
    ReadyRequest ready;
    ChunkLocator chunk;
    ChunkPin pin;
    absl::StatusOr<UniqueFd> copy = absl::UnknownError("not made");
  };

  absl::StatusOr<Outcome> StartScore(const ReadyRequest& ready, HolderLane& lane);
  absl::StatusOr<Outcome> StartMap(const ReadyRequest& ready, HolderLane& lane);
  void FinishMap();
  void Drop();
  void PostMap(const ReadyRequest& ready, const Chunk& chunk, int fd);

  ThreadRole role_;
  Clock* const clock_;
  const ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  ChunkExports exports_;
  Batch batch_;
  ScoreWork score_;
  HolderLane* lane_ = nullptr;  // the lane of the job in progress, or null
  std::optional<Mapping> mapping_;
  bool scoring_ = false;  // the job in progress is a score
  uint64_t last_work_ = 0;
  uint64_t last_cost_ = 0;
  std::atomic<bool> cancel_{false};     // makes the job in progress end early
  std::unique_ptr<SideThread> thread_;  // the last member: its job uses the others
};

}  // namespace ckv
