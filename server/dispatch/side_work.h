// What the dispatcher has computed beside its own thread: long requests, and copies of chunks to be
// handed over. One job at a time.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/batch.h"
#include "server/chunk_exports.h"
#include "server/lane_set.h"
#include "server/lease_gate.h"
#include "server/ready_request.h"
#include "server/serve_counters.h"
#include "server/side_thread.h"
#include "store/chunk_table.h"

namespace ckv {

struct SideWorkOptions {
  uint32_t compute_threads = 1;
  uint64_t map_bytes_max = 0;
  const ShadowTable* shadows = nullptr;
};

// Belongs to the dispatcher's thread: everything is judged and answered there, and only the kernel
// and the copying run on the side thread. A lane with a job in progress is busy until Finish.
class SideWork {
 public:
  // Everything borrowed must outlive it. `tell` wakes the dispatcher; it is called on the side
  // thread.
  SideWork(const SideWorkOptions& options, Clock* clock, ChunkTable* table, const LeaseGate* lease,
           ServeCounters* counters, absl::AnyInvocable<void()> tell);

  bool idle() const { return thread_->idle(); }
  bool finished() const { return thread_->finished(); }

  enum class Outcome {
    kServed,   // answered, or on its way
    kNotMade,  // nothing was done: the copy has to be made first
    kCold,     // nothing was done: rows that it asks for are on disk
  };
  // Answers a map of a chunk whose copy is there, or that cannot be handed over.
  //   InvalidArgument     malformed, not answered: the lane is to be closed.
  absl::StatusOr<Outcome> TryMap(const ReadyRequest& ready);

  // While idle: starts a long attend or a map, or answers it at once if that takes no work. Never
  // kNotMade.
  //   InvalidArgument     malformed, not answered: the lane is to be closed.
  absl::StatusOr<Outcome> Start(const ReadyRequest& ready, HolderLane& lane);
  // After finished: answers.
  void Finish(uint32_t waiting_count);
  // Of the job that was started last: its multiply-adds, zero for a map; and those or their like,
  // for its session's share of the thread.
  uint64_t last_work() const { return last_work_; }
  uint64_t last_cost() const { return last_cost_; }
  Duration last_elapsed() const { return batch_.elapsed(); }

  // The lane broke: a job for it in progress ends early.
  void Cancel(const HolderLane& lane) {
    if (lane_ == &lane) cancel_.store(true, std::memory_order_relaxed);
  }

  // Waits for the job in progress, which ends early and is not answered. Nothing is called after.
  void End();

 private:
  struct Mapping {
    ReadyRequest ready;
    ChunkLocator chunk;
    ChunkPin pin;
    absl::StatusOr<UniqueFd> copy = absl::UnknownError("not made");
  };

  absl::StatusOr<Outcome> StartMap(const ReadyRequest& ready, HolderLane& lane);
  void FinishMap();
  void PostMap(const ReadyRequest& ready, const Chunk& chunk, int fd);

  Clock* const clock_;
  ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  ChunkExports exports_;
  Batch batch_;
  HolderLane* lane_ = nullptr;  // of the job in progress
  std::optional<Mapping> mapping_;
  uint64_t last_work_ = 0;
  uint64_t last_cost_ = 0;
  std::atomic<bool> cancel_{false};     // of the job in progress
  std::unique_ptr<SideThread> thread_;  // last: its job uses the rest
};

}  // namespace ckv
