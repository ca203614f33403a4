// Checks all chunks of a store in turn where they lie. Damage is then found while replicas are
// whole, and not when somebody asks for the chunk.
//
// A pass takes (bytes in files + bytes in memory) / bytes_per_second. For that time, damage in
// chunks that nobody reads stays unseen, and answers may use a bit that flipped in memory. Files
// are also checked at every cold read. Memory must be ECC.
//
// Nothing is remembered on disk. Each process begins at a random chunk. So a holder that restarts
// more often than a pass takes still comes to all chunks.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "server/session/scrub_counters.h"
#include "store/chunk_store.h"

namespace ckv {

struct ScrubberOptions {
  std::string name;  // the holder's name, for the log
  Clock* clock = Clock::Real();
  uint64_t bytes_per_second = 0;  // 0 if there is no scrubbing
  uint64_t seed = 0;              // draws the first chunk
  // The least time between the starts of two passes, however small the store.
  Duration pass_period_min = std::chrono::minutes(1);
};

// Owns a thread, whose reads come after all others if the device's scheduler knows classes. It
// reads one step of kVerifyStepBytes at a time and waits in between. So no request waits for more
// than one step. It holds no pin while it waits.
class Scrubber {
 public:
  // `store` and `counters` must outlive it.
  Scrubber(const ScrubberOptions& options, ChunkStore* store, ScrubCounters* counters);
  // Waits for the step in progress.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

 private:
  void Run();
  // Returns false if it was stopped.
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
  std::thread thread_;
};

}  // namespace ckv
