// What is known of a chunk beside its file: it changes, and files do not.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckv {

struct ChunkFacts {
  std::vector<std::string> readers;  // tenants; "" alone: everyone
  bool kept = false;                 // never to be evicted
  // When a mark that is not for good ends, by the wall clock, since no other outlives a machine's
  // life: a step of it moves the end by the step, and no further. 0: kept for good, or not at all.
  uint64_t kept_until_ms = 0;
  // The chunk is dropped when nobody put it again for so long; over a restart it counts anew, so
  // that nobody loses a chunk for the time that its holder was away. 0: it stays.
  uint64_t ttl_ms = 0;

  friend bool operator==(const ChunkFacts&, const ChunkFacts&) = default;
};

}  // namespace ckv
