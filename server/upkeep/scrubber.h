// Checks all chunks of a store in turn, in memory and on disk. Damage is then found while replicas
// are intact, not when a request needs the chunk.
//
// A pass takes (bytes in files + bytes in memory) / bytes_per_second. For up to that time, damage
// in chunks that are not read is undetected, and answers may use a bit that flipped in memory.
// Files are also checked at every cold read. Memory must be ECC.
//
// No progress is stored on disk. Each process begins at a random chunk, so a holder that restarts
// more often than a pass takes still checks all chunks over time.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "proto/ids.h"
#include "server/session/scrub_counters.h"
#include "store/chunk_store.h"

namespace ckv {

struct ScrubberOptions {
  std::string name;  // the holder's name, for the log
  Clock* clock = Clock::Real();
  uint64_t bytes_per_second = 0;  // 0 disables scrubbing
  uint64_t seed = 0;              // determines the first chunk
  // The minimum time between the starts of two passes, however small the store is.
  Duration pass_period_min = std::chrono::minutes(1);
};

// Owns a thread, whose reads are served after all others if the device's I/O scheduler supports
// classes. The thread reads one step of kVerifyStepBytes at a time and waits between steps, so no
// request waits for more than one step. It holds no pin while it waits.
class Scrubber {
 public:
  // `store` and `counters` must outlive this object.
  Scrubber(const ScrubberOptions& options, ChunkStore* store, ScrubCounters* counters);
  // Waits for the step in progress.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

 private:
  void Run();
  // Returns false if the scrubber was stopped.
  bool Pass(std::optional<ChunkId> after);
  bool CheckOne(const ChunkId& id);
  bool Pace(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  bool AwaitUntil(Instant until) ABSL_LOCKS_EXCLUDED(mu_);

  const ScrubberOptions options_;
  ChunkStore& store_;
  ScrubCounters& counters_;
  // Used by the thread.
  Instant next_;                             // next time a step may be read
  absl::flat_hash_set<ChunkId> unreadable_;  // reported already
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace ckv
