#include "client/publish/extension.h"

#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"

namespace ckv {
namespace {

absl::Status CheckGeometry(const Corpus& corpus, const Geometry& geometry) {
  if (ModelFingerprint(corpus.geometry) == ModelFingerprint(geometry)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "corpus '%s' has another geometry: of model %s, revision %s, and the chunks are of model %s, "
      "revision %s",
      corpus.name, corpus.geometry.model, corpus.geometry.revision, geometry.model,
      geometry.revision));
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> NewChunks(const Corpus& corpus, const ChunkSource& chunks) {
  CKV_RETURN_IF_ERROR(CheckGeometry(corpus, chunks.geometry()));
  absl::flat_hash_set<std::string_view> there, followed;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    there.insert(chunk.id.AsBytes());
    if (!chunk.parent.IsZero()) followed.insert(chunk.parent.AsBytes());
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
          "another chunk of corpus '%s' follows chunk %s by now: put behind its new end",
          corpus.name, chunk.parent.ShortHex()));
    }
    fresh.push_back(i);
  }
  return fresh;
}

absl::StatusOr<std::vector<std::vector<HolderId>>> AppendChunks(const ChunkSource& chunks,
                                                                std::span<const uint32_t> fresh,
                                                                std::span<const HolderId> holders,
                                                                uint32_t replicas, Corpus& corpus) {
  // As those of a corpus of that size, so that neighbours share a holder.
  CKV_ASSIGN_OR_RETURN(const auto all,
                       PlaceChunks(corpus.chunks.size() + fresh.size(), holders, replicas));
  std::vector<std::vector<HolderId>> placement(chunks.chunks().size());
  for (const uint32_t i : fresh) {
    const PlannedChunk& chunk = chunks.chunks()[i];
    placement[i] = all[corpus.chunks.size()];
    corpus.chunks.push_back({.id = chunk.id,
                             .parent = chunk.parent,
                             .token_count = chunk.token_count,
                             .position = chunk.position,
                             .holders = placement[i],
                             .print = chunk.print});
  }
  return placement;
}

}  // namespace ckv
