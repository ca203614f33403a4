// Chunks that are appended to a corpus: which of them it lacks, and where they go.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/corpus.h"

namespace ckv {

// The holders of each chunk of a source, by ordinal; empty if it goes nowhere.
using SourcePlacement = std::vector<std::vector<HolderId>>;

// Refuses chunks of another geometry than the corpus'.
//   FailedPrecondition  says what differs.
absl::Status CheckSameGeometry(const Corpus& corpus, const Geometry& geometry);

// Returns the ordinals of the chunks that the corpus lacks, in order.
//   FailedPrecondition  CheckSameGeometry; or the parent of a chunk is neither in the corpus nor
//                       among the chunks before, or has another child.
absl::StatusOr<std::vector<uint32_t>> NewChunks(const Corpus& corpus, const ChunkSource& chunks);

// Places chunks `fresh` of the source on `replicas` of `holders` each. The corpus has `corpus_size`
// chunks before them, whose last ones they share a holder with.
//   InvalidArgument     more replicas than holders.
absl::StatusOr<SourcePlacement> PlaceNewChunks(const ChunkSource& chunks,
                                               std::span<const uint32_t> fresh, size_t corpus_size,
                                               std::span<const HolderId> holders,
                                               uint32_t replicas);

// Appends chunks `fresh` of the source to the corpus.
void AppendChunks(const ChunkSource& chunks, std::span<const uint32_t> fresh,
                  const SourcePlacement& placement, Corpus& corpus);

// Returns those of `holders` on which anything is placed.
std::vector<Member> PlacedOn(std::span<const Member> holders, const SourcePlacement& placement);

}  // namespace ckv
