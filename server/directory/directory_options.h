// The limits and times of a directory's state.

#pragma once

#include <cstdint>
#include <functional>

#include "proto/base/clock.h"
#include "server/directory/lease_end.h"

namespace ckv {

struct DirectoryOptions {
  Clock* clock = Clock::Real();
  Duration lease_ttl = std::chrono::seconds(3);
  Duration lease_ttl_min = kLeaseTtlMin;
  Duration lease_ttl_max = kLeaseTtlMax;
  uint32_t corpus_count_max = 100'000;
  // Chunks of all corpora: 130 B each, 1 GB together; 190 B with token hashes.
  uint64_t placement_count_max = 1u << 23;
  // Replicas that members announce, over all chunks: about 200 B each, half of which are the two
  // ids in the tables.
  uint64_t replica_count_max = 1u << 20;
  // Chunks that holders report as lacking, over all holders.
  uint64_t lack_count_max = 1u << 20;
  uint32_t watcher_count_max = 4096;
  // Epochs and versions start above this value and above all replayed ones. A directory without a
  // journal needs a value that increases from one process to the next. The daemon passes the wall
  // clock's milliseconds.
  uint64_t first_epoch = 0;
  // The longest time that a caller waits for its change to become durable.
  Duration change_timeout = std::chrono::seconds(30);
  // Time from the start until corpora rebuilt from holders' reports are published: a late holder
  // may have a later version. Holders retry at least every two seconds.
  Duration rebuild_grace = std::chrono::seconds(9);
  // Milliseconds since 1970, from which the ttl of corpora is counted: it must outlast the process.
  std::function<uint64_t()> wall_clock_ms = WallClockMilliseconds;
  // How long a ttl must have ended before its corpus is dropped. A wall clock that jumps forward
  // and is set right within this time drops nothing.
  Duration expiry_grace = std::chrono::minutes(1);
  // How long a holder may be offline before its copies are made elsewhere. A restart of a holder,
  // or of its host, must be shorter.
  Duration loss_after = std::chrono::minutes(5);
  // Whether a new holder takes its share of the chunks that others have.
  bool fill_new_holders = true;
  // Whether holders that are past their elbow get leased copies of their hot chunks elsewhere.
  bool copy_hot_chunks = true;
};

}  // namespace ckv
