// Goes round all chunks of a store and checks them where they lie, so that damage is found while
// replicas are whole, and not when somebody asks.
//
// A pass takes (bytes in files + bytes in memory) / bytes_per_second: that is the window in which
// damage stays unseen in chunks nobody reads, and in which a bit that flips in memory may be
// answered from. Files are checked at every cold read besides. Memory must be ECC.
//
// Nothing is remembered on disk. Each life begins at a chunk drawn at random, so that a holder that
// is restarted more often than a pass takes still comes to all of them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/clock.h"
#include "proto/ids.h"
#include "server/scrub_counters.h"
#include "store/chunk_store.h"

namespace ckv {

struct ScrubberOptions {
  std::string name;  // of the holder, for the log
  Clock* clock = Clock::Real();
  uint64_t bytes_per_second = 0;  // 0: no scrubbing
  uint64_t seed = 0;              // draws where it begins
  // A pass begins no sooner after the one before, however small the store.
  Duration pass_period_min = std::chrono::minutes(1);
};

// Owns a thread, whose reads come after all others' where the device's scheduler knows of classes.
// It reads one piece of kVerifyPieceBytes at a time and waits between two, so that no request waits
// for more than that, and holds no pin while it waits.
class Scrubber {
 public:
  // `store` and `counters` must outlive it.
  Scrubber(const ScrubberOptions& options, ChunkStore* store, ScrubCounters* counters);
  // Waits for the piece being read.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

 private:
  void Run();
  // False: stopped.
  bool Pass(std::optional<ChunkId> after);
  bool CheckOne(const ChunkId& id);
  bool Pace(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  bool AwaitUntil(Instant until) ABSL_LOCKS_EXCLUDED(mu_);

  const ScrubberOptions options_;
  ChunkStore& store_;
  ScrubCounters& counters_;
  // Of the thread.
  Instant next_;                             // when the next piece may be read
  absl::flat_hash_set<ChunkId> unreadable_;  // told of already
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ckv
