// A trace of requests, as the prefetch rule sees it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckv::bench {

// A request: it attends whole runs of 4 blocks of its prompt, for one decoded token after another.
struct TraceRequest {
  int64_t ms = 0;  // since the start
  uint32_t steps = 0;
  std::vector<uint32_t> runs;  // each by its last block, which names its whole prefix
};

// Reads JSON objects, one a line, with timestamp, output_length and hash_ids, from a file or, if
// its name ends in .xz, from what `xz -dc` makes of it. Ends the process if it cannot.
std::vector<TraceRequest> ReadTrace(const std::string& path);

}  // namespace ckv::bench
