#include "transport/control.h"

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<ChunkPlacement> PlacementAmong(const ChunkId& id, const Geometry& geometry,
                                              std::span<const Corpus> corpora) {
  std::optional<Geometry> other;
  for (const Corpus& corpus : corpora) {
    for (const ChunkPlacement& chunk : corpus.chunks) {
      if (chunk.id != id || chunk.holders().empty()) continue;
      if (corpus.geometry == geometry) return chunk;
      other = corpus.geometry;
    }
  }
  if (other) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "chunk %s has another geometry: %s", id.ToHex(), DescribeDifference(geometry, *other)));
  }
  return absl::NotFoundError(absl::StrFormat("chunk %s: no holder has it", id.ToHex()));
}

absl::StatusOr<TenantKey> DirectoryControl::TenantKeyOf(std::string_view /*tenant*/,
                                                        Instant /*deadline*/) {
  return TenantKey();
}

absl::StatusOr<PromptChunks> DirectoryControl::FindPrompt(std::span<const uint64_t> /*heads*/,
                                                          const std::optional<ChunkId>& /*model*/,
                                                          std::string_view /*tenant*/,
                                                          Instant /*deadline*/) {
  return absl::UnimplementedError("this directory does not search prompts");
}

absl::StatusOr<std::vector<ChunkPlacement>> DirectoryControl::LocateChunks(
    std::span<const ChunkId> ids, const Geometry& geometry, std::string_view tenant,
    Instant deadline) {
  std::vector<ChunkPlacement> placements;
  placements.reserve(ids.size());
  for (const ChunkId& id : ids) {
    auto located = LocateChunk(id, tenant, deadline);
    if (!located.ok()) return Annotate(located.status(), absl::StrFormat("chunk %s", id.ToHex()));
    CKV_ASSIGN_OR_RETURN(ChunkPlacement placement, PlacementAmong(id, geometry, *located));
    placements.push_back(std::move(placement));
  }
  return placements;
}

}  // namespace ckv
