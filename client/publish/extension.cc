#include "client/publish/extension.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"

namespace ckv {

absl::Status CheckSameGeometry(const Corpus& corpus, const Geometry& geometry) {
  if (ModelFingerprint(corpus.geometry) == ModelFingerprint(geometry)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("corpus '%s' has another geometry than the chunks that are put: %s",
                      corpus.name, DescribeDifference(corpus.geometry, geometry)));
}

absl::StatusOr<std::vector<uint32_t>> NewChunks(const Corpus& corpus, const ChunkSource& chunks) {
  CKV_RETURN_IF_ERROR(CheckSameGeometry(corpus, chunks.geometry()));
  absl::flat_hash_set<std::string_view> there, followed;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    there.insert(chunk.id.AsBytes());
    if (!chunk.parent().IsZero()) followed.insert(chunk.parent().AsBytes());
  }
  std::vector<uint32_t> fresh;
  for (uint32_t i = 0; i < chunks.chunks().size(); ++i) {
    const PlannedChunk& chunk = chunks.chunks()[i];
    if (!chunk.parent.IsZero() && !there.contains(chunk.parent.AsBytes())) {
      return absl::FailedPreconditionError(
          absl::StrFormat("chunk %s follows chunk %s, which is not in corpus '%s'",
                          chunk.id.ShortHex(), chunk.parent.ShortHex(), corpus.name));
    }
    if (!there.insert(chunk.id.AsBytes()).second) continue;
    // Two chunks at one place: who reads the corpus as one text would see both. Chunks without a
    // parent may be texts of their own.
    if (!chunk.parent.IsZero() && !followed.insert(chunk.parent.AsBytes()).second) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "corpus '%s' has another chunk behind chunk %s already: put behind its end", corpus.name,
          chunk.parent.ShortHex()));
    }
    fresh.push_back(i);
  }
  return fresh;
}

absl::StatusOr<SourcePlacement> PlaceNewChunks(const ChunkSource& chunks,
                                               std::span<const uint32_t> fresh, size_t corpus_size,
                                               std::span<const HolderId> holders, uint32_t replicas,
                                               std::span<const FailureDomain> domains) {
  CKV_ASSIGN_OR_RETURN(const auto all,
                       PlaceChunks(corpus_size + fresh.size(), holders, replicas, domains));
  SourcePlacement placement(chunks.chunks().size());
  for (size_t i = 0; i < fresh.size(); ++i) placement[fresh[i]] = all[corpus_size + i];
  return placement;
}

void AppendChunks(const ChunkSource& chunks, std::span<const uint32_t> fresh,
                  const SourcePlacement& placement, Corpus& corpus) {
  for (const uint32_t i : fresh) {
    const PlannedChunk& chunk = chunks.chunks()[i];
    corpus.chunks.emplace_back(PlacementFacts{.id = chunk.id,
                                              .parent = chunk.parent,
                                              .token_count = chunk.token_count,
                                              .position = chunk.position,
                                              .holders = placement[i],
                                              .token_hash = chunk.token_hash});
  }
}

std::vector<Member> PlacedOn(std::span<const Member> holders, const SourcePlacement& placement) {
  absl::flat_hash_set<std::string_view> names;
  for (const auto& of_chunk : placement) {
    for (const HolderId& holder : of_chunk) names.insert(holder.name);
  }
  std::vector<Member> placed;
  std::copy_if(holders.begin(), holders.end(), std::back_inserter(placed),
               [&](const Member& holder) { return names.contains(holder.id.name); });
  return placed;
}

}  // namespace ckv
