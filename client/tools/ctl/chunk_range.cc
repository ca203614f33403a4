#include "client/tools/ctl/chunk_range.h"

#include <charconv>
#include <numeric>
#include <optional>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

absl::Status SyntaxError(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrFormat("--chunks '%s': need ordinals like 3, 0-2 or 0-2,5", text));
}

std::optional<uint32_t> ParseNumber(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

struct Bounds {
  uint32_t first = 0;
  uint32_t last = 0;
};

// One of the comma-separated parts.
absl::StatusOr<Bounds> ParsePart(std::string_view part, std::string_view whole) {
  const size_t dash = part.find('-');
  const auto first = ParseNumber(part.substr(0, dash));
  if (!first) return SyntaxError(whole);
  if (dash == std::string_view::npos) return Bounds{*first, *first};
  const auto last = ParseNumber(part.substr(dash + 1));
  if (!last || *last < *first) return SyntaxError(whole);
  return Bounds{*first, *last};
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseChunkRanges(std::string_view text,
                                                       uint32_t chunk_count) {
  std::vector<uint32_t> ordinals;
  if (text.empty()) {
    ordinals.resize(chunk_count);
    std::iota(ordinals.begin(), ordinals.end(), 0u);
    return ordinals;
  }
  std::vector<bool> seen(chunk_count, false);
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    CKV_ASSIGN_OR_RETURN(const Bounds bounds, ParsePart(rest.substr(0, comma), text));
    if (bounds.last >= chunk_count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--chunks '%s': the corpus has %d chunks, 0 to %d", text, chunk_count,
                          static_cast<int64_t>(chunk_count) - 1));
    }
    for (uint32_t ordinal = bounds.first; ordinal <= bounds.last; ++ordinal) {
      if (seen[ordinal]) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--chunks '%s': chunk %d is named twice", text, ordinal));
      }
      seen[ordinal] = true;
      ordinals.push_back(ordinal);
    }
    if (comma == std::string_view::npos) return ordinals;
    rest = rest.substr(comma + 1);
  }
}

std::vector<ChunkRun> AsRuns(const std::vector<uint32_t>& ordinals) {
  std::vector<ChunkRun> runs;
  for (const uint32_t ordinal : ordinals) {
    if (runs.empty() || runs.back().end != ordinal) runs.push_back({ordinal, ordinal});
    ++runs.back().end;
  }
  return runs;
}

std::optional<ChunkRun> AsRun(const std::vector<uint32_t>& ordinals) {
  const std::vector<ChunkRun> runs = AsRuns(ordinals);
  if (runs.size() > 1) return std::nullopt;
  return runs.empty() ? ChunkRun{} : runs.front();
}

}  // namespace ckv::ctl
