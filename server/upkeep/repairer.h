// Gets chunks again from other holders that this one lost to damage: found by a scrub, by a check,
// by a request's read, or when the folder was opened.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "server/scrub_counters.h"
#include "store/chunk_store.h"

namespace ckv {

// The rest of the fleet, to one who lost a chunk. Used by one thread.
class RepairSource {
 public:
  virtual ~RepairSource() = default;

  struct Restored {
    Geometry geometry;
    std::string tenant;  // that it was put for
  };
  // Has the chunk put into this holder's store again, by one who has it whole.
  //   NotFound            no corpus places it here, as far as the directory knows.
  //   FailedPrecondition  no other holder has it: its corpus has to be loaded again.
  //   Cancelled           Cancel was called.
  //   and what those say who were asked, the last of them.
  virtual absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant deadline) = 0;
  // Ends Restore soon, and every later one. From any thread.
  virtual void Cancel() = 0;
};

struct RepairerOptions {
  std::string name;  // of the holder, for the log
  Clock* clock = Clock::Real();
  // How often it looks for lost chunks.
  Duration look_period = std::chrono::seconds(1);
  // One attempt: locating a chunk and having it put. 144 MB, as 2048 tokens of V3 are, make it at
  // 2.5 MB/s.
  Duration attempt_timeout = std::chrono::minutes(1);
  // Attempts a chunk, and the pause after the first, which doubles: 2 + 4 + ... + 128 s, so that
  // holders that are started one after another, or a directory that is, are there for some attempt.
  uint32_t attempt_count_max = 8;
  Duration pause_min = std::chrono::seconds(2);
};

// Owns a thread; one chunk at a time. What was not got when the process ends is tried for again by
// the next one, which finds it in the folder's quarantine.
class Repairer {
 public:
  // All must outlive it. `may_ask` says whether this holder is known to the directory; it is called
  // on the repairer's thread.
  Repairer(const RepairerOptions& options, ChunkStore* store, RepairSource* source,
           std::function<bool()> may_ask, ScrubCounters* counters);
  // Cuts an attempt short.
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
  // Whether the chunk is done with, one way or the other.
  bool Try(Pending& pending);
  // For everyone who read it before, and kept if it was.
  absl::Status Complete(const LostChunk& lost, const RepairSource::Restored& restored);
  void GiveUp(const LostChunk& lost, const absl::Status& status);

  const RepairerOptions options_;
  ChunkStore& store_;
  RepairSource& source_;
  const std::function<bool()> may_ask_;
  ScrubCounters& counters_;
  std::deque<Pending> pending_;  // of the thread; at most ChunkStore::kLostCountMax
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ckv
