// Scores the index keys of one request at a time, and keeps the best rows as candidates.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "attention/score/index_scores.h"
#include "attention/worker_pool.h"
#include "proto/base/clock.h"
#include "server/batch/ready_request.h"
#include "server/score/candidate_table.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "store/memory/chunk_table.h"
#include "transport/wire_score.h"

namespace ckv {

struct ScoreWorkOptions {
  uint32_t compute_threads = 1;
  MemoryKind chunk_memory = MemoryKind::kHost;  // as BatchOptions
  CandidateTable* candidates = nullptr;         // borrowed
};

// Part of SideWork. Used by the dispatcher's thread, except Run.
class ScoreWork {
 public:
  // Everything borrowed must outlive this object.
  ScoreWork(const ScoreWorkOptions& options, Clock* clock, const ChunkTable* table,
            const LeaseGate* lease, ServeCounters* counters);
  ~ScoreWork();

  enum class Verdict {
    kAnswered,  // with an error
    kReady,     // call Run, then Finish or Clear
    kCold,      // nothing was done: the request needs keys that are on disk
  };
  // Checks a request and pins its chunks.
  //   InvalidArgument     the frame is malformed and not answered: close its lane.
  absl::StatusOr<Verdict> Begin(const ReadyRequest& ready);
  // The multiply-adds of the request of Begin.
  uint64_t work() const { return work_; }
  // Scores. May run on another thread; the owner's thread must wait for it.
  void Run();
  // Keeps the candidates and replies.
  void Finish(uint32_t waiting_count);
  // Drops the request without a reply.
  void Clear();

  // Replies to a request for candidates.
  //   InvalidArgument     as in Begin.
  absl::Status Answer(const ReadyRequest& ready);

 private:
  absl::Status FindKeys();
  absl::Status AddKeys(uint32_t handle, const IndexShape& shape);
  absl::Status CheckLimits() const;
  void WriteReply();

  const ScoreWorkOptions options_;
  Clock* const clock_;
  const ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  // Made by the first Run, because most stores have no index keys.
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<IndexSearch> search_;

  // The request in progress.
  ReadyRequest ready_;
  ScoreRequest request_;
  std::vector<ChunkPin> pins_;
  std::vector<IndexKeyRun> keys_;
  std::vector<Candidates::Chunk> chunks_;
  uint64_t row_count_ = 0;
  uint64_t work_ = 0;
  Instant started_;
  Duration elapsed_{0};
  std::shared_ptr<const Candidates> made_;
};

}  // namespace ckv
