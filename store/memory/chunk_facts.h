// The facts that are saved beside a chunk's file, because they change and files do not.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckv {

struct ChunkFacts {
  std::vector<std::string> readers;  // tenants; "" alone means everyone
  bool kept = false;                 // marked by Keep or KeepFor
  // When a mark of KeepFor ends, by the wall clock, the only one that survives a restart of the
  // machine. A step of that clock moves the end by as much. 0 means kept for good, or not kept.
  uint64_t kept_until_ms = 0;
  // The chunk expires when nobody puts it again for this long. After a restart it counts anew, so
  // that no chunk is lost for the time its holder was away. 0 means it stays.
  uint64_t ttl_ms = 0;

  friend bool operator==(const ChunkFacts&, const ChunkFacts&) = default;
};

}  // namespace ckv
