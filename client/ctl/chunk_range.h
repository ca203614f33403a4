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

// The fewest runs that are these ordinals, in their order.
std::vector<ChunkRun> AsRuns(const std::vector<uint32_t>& ordinals);

}  // namespace ckv::ctl
