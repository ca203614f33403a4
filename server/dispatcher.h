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
#include "server/batch.h"
#include "server/lease_gate.h"
#include "server/session.h"
#include "store/chunk_table.h"
#include "transport/fabric.h"
#include "transport/thread_role.h"
#include "transport/wait_policy.h"

namespace ckv {

struct DispatcherOptions {
  Clock* clock = Clock::Real();
  uint32_t compute_threads = 1;
  uint32_t batch_request_count_max = 64;
  Duration spin_max = std::chrono::microseconds(50);
};

// Thread-safe, but for the start and the end. What it borrows must outlive it.
//
// Busy, it makes no system call on shm and verbs: it polls every lane, answers what is there and
// polls again. Without work it spins as transport/wait_policy.h says; then it arms every lane and
// sleeps on their events, on the listeners' and on Wake; idle, it wakes once in kSleepMax.
//
// A lane's requests are answered in their order. A batch is filled by one request of each session
// in turn, so a session with many lanes or many requests takes no more than its share. A batch
// takes what has arrived and never waits for more.
class Dispatcher {
 public:
  static absl::StatusOr<std::unique_ptr<Dispatcher>> Start(const DispatcherOptions& options,
                                                           ChunkTable* table,
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

  // The longest sleep: bounds how late a clock other than the system's is noticed, at one wake-up a
  // second (20 us of CPU).
  static constexpr Duration kSleepMax = std::chrono::seconds(1);

 private:
  struct LaneState;
  struct SessionLanes;

  Dispatcher(const DispatcherOptions& options, ChunkTable* table, SessionTable* sessions,
             const LeaseGate* lease, std::vector<Listener*> listeners);
  absl::Status OpenEvents();

  void Run();
  // Returns whether anything arrived or was answered.
  bool RunOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void HandleControl(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AcceptLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void AddLane(AcceptedLane accepted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  // Takes what has arrived on every lane; returns whether there was anything.
  bool PollLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void PollLane(LaneState& lane, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void FillBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  Batch::Verdict AddOneOf(SessionLanes& session, bool& any) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void Break(LaneState& lane, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void DropBrokenLanes(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void DropLane(LaneState& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  void NoteDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_) ABSL_LOCKS_EXCLUDED(drain_mu_);
  void Sleep(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);
  int SleepMilliseconds(Instant now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(role_);

  const DispatcherOptions options_;
  SessionTable* const sessions_;
  const std::vector<Listener*> listeners_;
  ServeCounters counters_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;

  std::atomic<bool> stop_{false};
  std::atomic<bool> control_{false};
  std::atomic<bool> draining_{false};
  absl::Mutex drain_mu_;
  bool drained_ ABSL_GUARDED_BY(drain_mu_) = false;

  ThreadRole role_;
  Batch batch_ ABSL_GUARDED_BY(role_);
  std::vector<std::unique_ptr<SessionLanes>> lanes_ ABSL_GUARDED_BY(role_);
  size_t next_session_ ABSL_GUARDED_BY(role_) = 0;
  uint32_t waiting_count_ ABSL_GUARDED_BY(role_) = 0;  // polled and not yet in a batch
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
