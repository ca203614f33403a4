// Chunks named by ordinal on the command line: "3", "0-2", "0-2,5".

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv::ctl {

inline constexpr char kChunksHelp[] = "Ordinals like 3, 0-2 or 0-2,5 (default: all)";

// The ordinals in the order given; ranges are inclusive at both ends. An empty text means all of
// them.
//   InvalidArgument     syntax, a descending range, an ordinal past the last, or one named twice.
absl::StatusOr<std::vector<uint32_t>> ParseChunkRanges(std::string_view text, uint32_t chunk_count);

// One ascending run without gaps, as [begin, end).
struct ChunkRun {
  uint32_t begin = 0;
  uint32_t end = 0;
};
// The run that these ordinals are, if they are one.
std::optional<ChunkRun> AsRun(const std::vector<uint32_t>& ordinals);

// Names the chunks in a request that has a list and a range. If they are a run it sets the range,
// which an older ckvd knows, too. A list comes with a range past any corpus, so an older ckvd
// refuses it instead of taking all chunks.
template <typename Request>
void SetChunks(const std::vector<uint32_t>& ordinals, Request& request) {
  const std::optional<ChunkRun> run = AsRun(ordinals);
  request.set_chunk_begin(run ? run->begin : UINT32_MAX);
  request.set_chunk_end(run ? run->end : UINT32_MAX);
  if (!run) request.mutable_chunks()->Add(ordinals.begin(), ordinals.end());
}

// The fewest runs that are these ordinals, in their order.
std::vector<ChunkRun> AsRuns(const std::vector<uint32_t>& ordinals);

}  // namespace ckv::ctl
