// Restores this holder's damaged chunks from other holders. The damage was found by a scrub, a
// check, a request's read, or the opening of the folder.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/host/thread.h"
#include "proto/ids.h"
#include "server/session/scrub_counters.h"
#include "store/chunk_store.h"

namespace ckv {

// The rest of the fleet, for a holder that lost a chunk. Used by one thread, except Cancel.
class RepairSource {
 public:
  virtual ~RepairSource() = default;

  struct Restored {
    Geometry geometry;
    std::string tenant;  // the tenant for which the chunk was put
  };
  // Makes a holder with an intact copy put the chunk into this holder's store again.
  //   NotFound            no corpus in the directory places the chunk here.
  //   FailedPrecondition  no other holder has the chunk: its corpus must be loaded again.
  //   Cancelled           Cancel was called.
  //   Other errors are those of the last peer that was called.
  virtual absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant deadline) = 0;
  // Ends the Restore in progress and every later one soon. Callable from any thread.
  virtual void Cancel() = 0;
};

struct RepairerOptions {
  std::string name;  // the holder's name, for the log
  Clock* clock = Clock::Real();
  // How often the repairer checks for lost chunks.
  Duration look_period = std::chrono::seconds(1);
  // Time limit for one attempt, which locates a chunk and has it put. 144 MB, which is 2048 tokens
  // of V3, make it at 2.5 MB/s.
  Duration attempt_timeout = std::chrono::minutes(1);
  // Attempts per chunk, and the pause after the first attempt, which doubles: 2 + 4 + ... + 128 s.
  // Some attempt is then late enough for holders started one after another, or for a directory that
  // restarts.
  uint32_t attempt_count_max = 8;
  Duration pause_min = std::chrono::seconds(2);
};

// Owns a thread and restores one chunk at a time. If the process ends first, the next process finds
// the chunk in the folder's quarantine and tries again.
class Repairer {
 public:
  // All arguments must outlive this object. `may_query` returns true if this holder is registered
  // at the directory; the repairer's thread calls it.
  Repairer(const RepairerOptions& options, ChunkStore* store, RepairSource* source,
           std::function<bool()> may_query, ScrubCounters* counters);
  // Interrupts an attempt in progress.
  ~Repairer();
  Repairer(const Repairer&) = delete;
  Repairer& operator=(const Repairer&) = delete;

 private:
  struct Pending {
    LostChunk lost;
    uint32_t attempt_count = 0;
    Instant due;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeLost();
  // Returns true if the chunk was restored or given up.
  bool Try(Pending& pending);
  // Returns for which previous reader a chunk that is here again was put.
  //   NotFound            for none of them.
  //   Other errors are those of ChunkStore::OpenRows.
  absl::StatusOr<RepairSource::Restored> PutMeanwhile(const LostChunk& lost);
  // Makes the chunk readable for all its previous readers, and marks it kept if it was.
  absl::Status Complete(const LostChunk& lost, const RepairSource::Restored& restored);
  void GiveUp(const LostChunk& lost, const absl::Status& status);

  const RepairerOptions options_;
  ChunkStore& store_;
  RepairSource& source_;
  const std::function<bool()> may_query_;
  ScrubCounters& counters_;
  std::deque<Pending> pending_;  // used by the thread; at most ChunkStore::kLostCountMax
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace ckv
