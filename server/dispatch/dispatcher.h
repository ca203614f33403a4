// The holder's resident thread: accepts lanes, polls them, batches requests and replies to them.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/batch/batch.h"
#include "server/batch/stripe_cache.h"
#include "server/dispatch/cold_reads.h"
#include "server/dispatch/doorbell.h"
#include "server/dispatch/drain_state.h"
#include "server/dispatch/lane_keeper.h"
#include "server/dispatch/lane_set.h"
#include "server/dispatch/push_server.h"
#include "server/dispatch/request_queues.h"
#include "server/dispatch/side_work.h"
#include "server/score/candidate_table.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "server/session/session.h"
#include "store/chunk_store.h"
#include "transport/fabric.h"
#include "transport/thread_role.h"
#include "transport/wait_policy.h"

namespace ckv {

// See HolderOptions for the meaning, the defaults and the limits of these.
struct DispatcherOptions {
  Clock* clock;
  Backend* backend;
  uint32_t compute_threads;
  uint32_t batch_request_count_max;
  uint32_t queue_request_count_max;
  uint64_t map_bytes_max;
  uint64_t stripe_bytes_max;
  uint64_t candidate_bytes_max;
  Duration spin_max;
  MemoryKind chunk_memory;  // as in BatchOptions
  // As in ColdReads; borrowed. Its memory is of the kind chunk_memory; empty for kHost.
  std::span<std::byte> cold_buffer;
  SpanSink* spans;
};

// Thread-safe. Everything borrowed must outlive it.
//
// While busy, the thread makes no system call on shm and verbs. It polls the lanes in use, replies
// to what has arrived, and polls again. Without work it spins as described in
// transport/wait_policy.h. Then it arms every lane and sleeps until an event of a lane or a
// listener, or Wake; at most for kSleepMax.
//
// Requests wait in one of five queues (QueueKind):
//
//   lanes -> Arrive -+-> kAttend -> Batch, computed on this thread, kPollingWorkMax at a time
//                    +-> kBulk   -> parts of large calls (kFlagBulk): the same batches. Each kind
//                    |              gets half of a batch while both wait
//                    +-> kLong   -> SideWork: attends over kPollingWorkMax, scores of index keys,
//                    |              and copies for maps
//                    +-> kPush   -> fetches, maps and candidates: one reply between two polls
//                    '-> refused: the queue is full (Admission)
//
// A request of any queue that needs rows from disk moves to kCold. ColdReads reads the rows, and
// the request returns to its queue. Selections whose rows are in StripeCache do not move.
//
// Requests of one queue and session are served in order. Sessions take turns by the cost of their
// requests (FairQueue). A batch takes what has arrived and never waits for more.
class Dispatcher {
 public:
  //   ResourceExhausted   the process has no file descriptor left.
  //   and errors of BatchTools::Make.
  static absl::StatusOr<std::unique_ptr<Dispatcher>> Start(const DispatcherOptions& options,
                                                           ChunkStore* store,
                                                           SessionTable* sessions,
                                                           const LeaseGate* lease,
                                                           std::vector<Listener*> listeners);
  // Stops at once: requests that have arrived get no reply, and all lanes break.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Makes the dispatcher check the session table soon. Call after a session was opened or closed.
  void Wake();

  // Refuses requests that arrive from now on (Unavailable). Returns when all earlier ones have a
  // reply, or at `deadline`.
  void Drain(Instant deadline);
  bool draining() const { return drain_.begun(); }

  const ServeCounters& counters() const { return counters_; }
  // As LoadSamples::TakeChunks.
  std::vector<ChunkLocator> TakeSampledChunks() { return counters_.load.TakeChunks(); }

  // The longest sleep. It limits how late a clock other than the system's is noticed, and costs one
  // wake-up per second (20 us of CPU).
  static constexpr Duration kSleepMax = std::chrono::seconds(1);

 private:
  // Tools of the dispatcher's thread, and of the side thread.
  struct Tools {
    BatchTools here, side;
  };
  Dispatcher(const DispatcherOptions& options, Tools tools, ChunkStore* store,
             SessionTable* sessions, const LeaseGate* lease, std::vector<Listener*> listeners,
             std::unique_ptr<LaneSet> lanes);
  absl::Status OpenEvents();

  void Run();
  // Returns true if anything arrived or was served.
  bool RunOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  bool PollLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Arrive(HolderLane& lane, const Arrival& arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerAttends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // Adds waiting requests of one kind to the batch until the batch is full or has reached a limit.
  void FillBatch(QueueKind kind, uint32_t request_count_max, uint64_t work_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerPush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void RunSideWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void FinishColdRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void StartColdReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  bool IsDrained() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Sleep(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  const DispatcherOptions options_;
  const LeaseGate* const lease_;
  ServeCounters counters_;
  Doorbell bell_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> control_{false};
  DrainState drain_;

  StripeCache stripes_;  // declared before all members that may hold stripes of it

  ThreadRole role_;
  CandidateTable candidates_;  // used under role_ by several of the members below
  const std::unique_ptr<LaneSet> lanes_ ABSL_PT_GUARDED_BY(role_);
  RequestQueues queues_ ABSL_GUARDED_BY(role_);
  Batch batch_ ABSL_GUARDED_BY(role_);
  PushServer push_server_ ABSL_GUARDED_BY(role_);
  SideWork side_work_ ABSL_GUARDED_BY(role_);
  LaneKeeper keeper_ ABSL_GUARDED_BY(role_);
  ColdReads cold_reads_ ABSL_GUARDED_BY(role_);
  Instant cold_started_ ABSL_GUARDED_BY(role_){};       // when the read in progress began
  bool drain_seen_ ABSL_GUARDED_BY(role_) = false;      // requests polled from now on are refused
  bool drain_reported_ ABSL_GUARDED_BY(role_) = false;  // Drain was notified that all is done
  WaitPolicy wait_ ABSL_GUARDED_BY(role_);
  Instant polled_ ABSL_GUARDED_BY(role_);  // the time of the last poll of the lanes

  Thread thread_;
};

}  // namespace ckv
