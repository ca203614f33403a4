// Parses chunk ordinals on the command line: "3", "0-2", "0-2,5".

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv::ctl {

inline constexpr char kChunksHelp[] = "Ordinals like 3, 0-2 or 0-2,5 (default: all)";

// Returns the ordinals in the given order; ranges are inclusive at both ends. An empty text selects
// all chunks.
//   InvalidArgument     a syntax error, a descending range, an ordinal past the last, or a
//                       duplicate.
absl::StatusOr<std::vector<uint32_t>> ParseChunkRanges(std::string_view text, uint32_t chunk_count);

// One ascending range without gaps, as [begin, end).
struct ChunkRun {
  uint32_t begin = 0;
  uint32_t end = 0;
};
// Returns `ordinals` as one range, or nothing if they are not one.
std::optional<ChunkRun> AsRun(const std::vector<uint32_t>& ordinals);

// Sets the chunks of a request that has a list and a range. Consecutive ordinals are sent as a
// range, which an older ckvd also understands. A list is sent with a range past any corpus, so an
// older ckvd refuses the request instead of using all chunks.
template <typename Request>
void SetChunks(const std::vector<uint32_t>& ordinals, Request& request) {
  const std::optional<ChunkRun> run = AsRun(ordinals);
  request.set_chunk_begin(run ? run->begin : UINT32_MAX);
  request.set_chunk_end(run ? run->end : UINT32_MAX);
  if (!run) request.mutable_chunks()->Add(ordinals.begin(), ordinals.end());
}

// Returns the fewest ranges that make up these ordinals, in their order.
std::vector<ChunkRun> AsRuns(const std::vector<uint32_t>& ordinals);

}  // namespace ckv::ctl
