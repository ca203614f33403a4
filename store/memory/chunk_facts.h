// The facts of a chunk that can change, saved next to its file, which cannot.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckv {

struct ChunkFacts {
  std::vector<std::string> readers;  // tenants; "" alone means everyone
  bool kept = false;                 // marked by Keep or KeepFor
  // When a KeepFor mark ends, by the wall clock, the only clock that survives a restart of the
  // machine. A step of that clock moves the end by the same amount. 0 means that the mark has no
  // end, or that there is no mark.
  uint64_t kept_until_ms = 0;
  // The chunk expires if it is not put again for this long. A restart of the holder begins the time
  // again, so that no chunk expires because its holder was down. 0 means it never expires.
  uint64_t ttl_ms = 0;

  friend bool operator==(const ChunkFacts&, const ChunkFacts&) = default;
};

}  // namespace ckv
