// The holder's one resident thread: takes lanes in, polls them, batches what is ready, answers.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/clock.h"
#include "server/admission.h"
#include "server/batch.h"
#include "server/cold_reads.h"
#include "server/fair_queue.h"
#include "server/lane_set.h"
#include "server/lease_gate.h"
#include "server/push_server.h"
#include "server/serve_counters.h"
#include "server/session.h"
#include "server/side_work.h"
#include "store/chunk_store.h"
#include "transport/fabric.h"
#include "transport/thread_role.h"
#include "transport/wait_policy.h"

namespace ckv {

struct DispatcherOptions {
  Clock* clock = Clock::Real();
  uint32_t compute_threads = 1;
  uint32_t batch_request_count_max = 64;
  // Requests that wait for the polling thread, over all sessions; of the long ones as many again.
  uint32_t queue_request_count_max = 1024;
  uint64_t map_bytes_max = 0;  // of chunks copied to be handed over
  Duration spin_max = std::chrono::microseconds(50);
};

// Multiply-adds that wait for the polling thread: 0.45 ms of one core. A request that was admitted
// waits for the batch in progress and is in the next one.
inline constexpr uint64_t kQueueWorkMax = kPollingWorkMax / 16;
// And that wait as parts of large calls (kFlagBulk), or to be computed beside that thread: half a
// second of one core.
inline constexpr uint64_t kBulkQueueWorkMax = 64 * kPollingWorkMax;

// Thread-safe, but for the start and the end. What it borrows must outlive it.
//
// Busy, it makes no system call on shm and verbs: it polls the lanes that are in use, answers what
// is there and polls again. Without work it spins as transport/wait_policy.h says; then it arms
// every lane and sleeps on their events, on the listeners' and on Wake; idle, it wakes once in
// kSleepMax.
//
//   lanes -> Arrive -+-> attends_ -> Batch, computed here: kPollingWorkMax at a time
//                    +-> bulks_   -> the same, as far as attends_ leave room
//                    +-> longs_   -> SideWork: what is over kPollingWorkMax, and copies of chunks
//                    +-> pushes_  -> PushServer: one reply of kFetchBodyBytesMax between two polls
//                    '-> refused: a queue is full
//
// Requests of one kind and session are answered in their order; sessions take turns by what their
// requests cost (FairQueue). A batch takes what has arrived and never waits for more.
class Dispatcher {
 public:
  static absl::StatusOr<std::unique_ptr<Dispatcher>> Start(const DispatcherOptions& options,
                                                           ChunkStore* store,
                                                           SessionTable* sessions,
                                                           const LeaseGate* lease,
                                                           std::vector<Listener*> listeners);
  // Stops at once: what has arrived is not answered, lanes break.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // A session was opened or closed: look at the table soon.
  void Wake();

  // Requests that arrive from now on are refused (Unavailable). Returns when all earlier ones are
  // answered, or at `deadline`.
  void Drain(Instant deadline) ABSL_LOCKS_EXCLUDED(drain_mu_);
  bool draining() const { return draining_.load(std::memory_order_acquire); }

  const ServeCounters& counters() const { return counters_; }
  // What waits now, for people and metrics. Beyond the analysis: a queue belongs to the
  // dispatcher's thread, but for these two numbers of it.
  QueueDepths queues() const ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // The longest sleep: bounds how late a clock other than the system's is noticed, at one wake-up a
  // second (20 us of CPU).
  static constexpr Duration kSleepMax = std::chrono::seconds(1);

 private:
  Dispatcher(const DispatcherOptions& options, ChunkStore* store, SessionTable* sessions,
             const LeaseGate* lease, std::vector<Listener*> listeners,
             std::unique_ptr<LaneSet> lanes);
  absl::Status OpenEvents();

  void Run();
  // Returns whether anything arrived or was answered.
  bool RunOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void HandleControl(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AcceptLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AddLane(AcceptedLane accepted, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  SessionLanes& LanesOf(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  void Arrive(HolderLane& lane, const Arrival& arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Enqueue(SessionLanes& session, ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AdmitTo(FairQueue& queue, FairQueue::Flow& flow, const Admission& admission,
               const ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  void AdmitCold(const ReadyRequest& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerAttends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // Takes from `queue` what there is room for, and of that until the batch has so much.
  void FillBatch(FairQueue& queue, uint32_t request_count_max, uint64_t work_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AnswerPush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void RunSideWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void FinishColdRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void StartColdReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  uint32_t waiting_count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_) {
    return attends_.count() + bulks_.count() + longs_.count() + pushes_.count() + colds_.count();
  }
  void Break(HolderLane& lane, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
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

  ThreadRole role_;
  const std::unique_ptr<LaneSet> lanes_ ABSL_PT_GUARDED_BY(role_);
  FairQueue attends_ ABSL_GUARDED_BY(role_);
  FairQueue bulks_ ABSL_GUARDED_BY(role_);
  FairQueue longs_ ABSL_GUARDED_BY(role_);
  FairQueue pushes_ ABSL_GUARDED_BY(role_);
  FairQueue colds_ ABSL_GUARDED_BY(role_);  // of any kind, whose chunks are on disk
  Admission attend_admission_ ABSL_GUARDED_BY(role_);
  Admission bulk_admission_ ABSL_GUARDED_BY(role_);
  Admission long_admission_ ABSL_GUARDED_BY(role_);
  Admission push_admission_ ABSL_GUARDED_BY(role_);
  Batch batch_ ABSL_GUARDED_BY(role_);
  PushServer push_server_ ABSL_GUARDED_BY(role_);
  SideWork side_work_ ABSL_GUARDED_BY(role_);
  ColdReads cold_reads_ ABSL_GUARDED_BY(role_);
  bool any_broken_ ABSL_GUARDED_BY(role_) = false;
  bool drain_seen_ ABSL_GUARDED_BY(role_) = false;  // what is polled from now on came too late
  bool drain_told_ ABSL_GUARDED_BY(role_) = false;
  WaitPolicy wait_ ABSL_GUARDED_BY(role_);
  Instant polled_ ABSL_GUARDED_BY(role_);  // when the lanes were polled last
  Instant next_accept_ ABSL_GUARDED_BY(role_);
  Instant next_reap_ ABSL_GUARDED_BY(role_) = kInstantMax;

  std::thread thread_;
};

}  // namespace ckv
