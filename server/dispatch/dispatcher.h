// The holder's resident thread: accepts lanes, polls them, batches requests and replies to them.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "server/batch/batch.h"
#include "server/batch/stripe_cache.h"
#include "server/dispatch/admission.h"
#include "server/dispatch/cold_reads.h"
#include "server/dispatch/fair_queue.h"
#include "server/dispatch/lane_set.h"
#include "server/dispatch/push_server.h"
#include "server/dispatch/side_work.h"
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
  Duration spin_max;
  MemoryKind chunk_memory;  // as in BatchOptions
  // As in ColdReads; borrowed. Its memory is of the kind chunk_memory; empty for kHost.
  std::span<std::byte> cold_room;
  SpanSink* spans;
};

// The limit of multiply-adds that wait in kAttend: 0.45 ms of one core. An admitted request waits
// for the batch in progress and is in the next one.
inline constexpr uint64_t kQueueWorkMax = kPollingWorkMax / 16;
// The limit of multiply-adds that wait in kBulk and in kLong: half a second of one core each.
inline constexpr uint64_t kBulkQueueWorkMax = 64 * kPollingWorkMax;

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
//                    +-> kLong   -> SideWork: attends over kPollingWorkMax, and copies for maps
//                    +-> kPush   -> fetches and maps: one reply between two polls (PushServer)
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
  void Drain(Instant deadline) ABSL_LOCKS_EXCLUDED(drain_mu_);
  bool draining() const { return draining_.load(std::memory_order_acquire); }

  const ServeCounters& counters() const { return counters_; }

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
  // Requests of one kind that wait, and the limits they wait within.
  struct Queue {
    FairQueue requests;
    Admission admission;
  };
  std::array<Queue, kQueueCount> MakeQueues();
  absl::Status OpenEvents();

  void Run();
  // Returns true if anything arrived or was served.
  bool RunOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void HandleControl(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AcceptLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AddLane(AcceptedLane accepted, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // Returns true if the backend can access the slots of the lane. If not, logs that: the lane is of
  // a fabric outside the tree, which ignores ListenOptions::slot_pinner.
  bool Reaches(const ServeLane& lane, const Session& session) const;
  SessionLanes& LanesOf(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  void Arrive(HolderLane& lane, const Arrival& arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Enqueue(ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AdmitTo(QueueKind kind, const ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  void AdmitCold(const ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerAttends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // Adds waiting requests of one kind to the batch until the batch is full or has reached a limit.
  void FillBatch(QueueKind kind, uint32_t request_count_max, uint64_t work_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerPush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void RunSideWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void FinishColdRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void StartColdReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  FairQueue& queue(QueueKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_) {
    return queues_[static_cast<size_t>(kind)].requests;
  }
  Admission& admission(QueueKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_) {
    return queues_[static_cast<size_t>(kind)].admission;
  }
  uint32_t waiting_count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Break(HolderLane& lane, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // The same for a request that breaks its lane. The log names its trace.
  void BreakFor(const ReadyRequest& ready, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void DropBrokenLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void DropLane(HolderLane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  std::atomic<uint32_t>& lanes_of_kind(FabricKind kind) {
    return counters_.lanes[static_cast<size_t>(kind)];
  }
  void NoteDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_) ABSL_LOCKS_EXCLUDED(drain_mu_);
  void Sleep(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  int SleepMilliseconds(Instant now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void RingBell();

  const DispatcherOptions options_;
  const LeaseGate* const lease_;
  SessionTable* const sessions_;
  const std::vector<Listener*> listeners_;
  ServeCounters counters_;
  int wake_fd_ = -1;

  std::atomic<bool> stop_{false};
  std::atomic<bool> control_{false};
  std::atomic<bool> draining_{false};
  absl::Mutex drain_mu_;
  bool drained_ ABSL_GUARDED_BY(drain_mu_) = false;

  StripeCache stripes_;  // declared before all members that may hold stripes of it

  ThreadRole role_;
  const std::unique_ptr<LaneSet> lanes_ ABSL_PT_GUARDED_BY(role_);
  std::array<Queue, kQueueCount> queues_ ABSL_GUARDED_BY(role_);  // by QueueKind
  Batch batch_ ABSL_GUARDED_BY(role_);
  PushServer push_server_ ABSL_GUARDED_BY(role_);
  SideWork side_work_ ABSL_GUARDED_BY(role_);
  ColdReads cold_reads_ ABSL_GUARDED_BY(role_);
  Instant cold_started_ ABSL_GUARDED_BY(role_){};  // when the read in progress began
  bool any_broken_ ABSL_GUARDED_BY(role_) = false;
  bool drain_seen_ ABSL_GUARDED_BY(role_) = false;  // requests polled from now on are refused
  bool drain_told_ ABSL_GUARDED_BY(role_) = false;  // Drain was notified that all is done
  WaitPolicy wait_ ABSL_GUARDED_BY(role_);
  Instant polled_ ABSL_GUARDED_BY(role_);  // the time of the last poll of the lanes
  Instant next_accept_ ABSL_GUARDED_BY(role_);
  Instant next_reap_ ABSL_GUARDED_BY(role_) = kInstantMax;

  std::thread thread_;
};

}  // namespace ckv
