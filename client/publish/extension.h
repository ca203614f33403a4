// Appends chunks to a corpus: which of them it lacks, and where they are placed.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/corpus.h"

namespace ckv {

// The holders of each chunk of a source, by ordinal; empty if the chunk is not placed.
using SourcePlacement = std::vector<std::vector<HolderId>>;

// Refuses a geometry other than the corpus's.
//   FailedPrecondition  names the difference.
absl::Status CheckSameGeometry(const Corpus& corpus, const Geometry& geometry);

// Returns the ordinals of the chunks that the corpus lacks, in order.
//   FailedPrecondition  as for CheckSameGeometry; or the parent of a chunk is neither in the corpus
//                       nor among the previous chunks, or already has another child.
absl::StatusOr<std::vector<uint32_t>> NewChunks(const Corpus& corpus, const ChunkSource& chunks);

// Places the chunks `fresh` of the source on `replicas` of `holders` each. The corpus already
// has `corpus_size` chunks. The result is the end of PlaceChunks' placement of them all, so the
// first new chunks share a holder with the corpus's last ones. `domains` as for PlaceChunks.
//   InvalidArgument     there are more replicas than holders.
absl::StatusOr<SourcePlacement> PlaceNewChunks(const ChunkSource& chunks,
                                               std::span<const uint32_t> fresh, size_t corpus_size,
                                               std::span<const HolderId> holders, uint32_t replicas,
                                               std::span<const FailureDomain> domains = {});

// Appends the chunks `fresh` of the source to the corpus.
void AppendChunks(const ChunkSource& chunks, std::span<const uint32_t> fresh,
                  const SourcePlacement& placement, Corpus& corpus);

// Returns those of `holders` on which any chunk is placed.
std::vector<Member> PlacedOn(std::span<const Member> holders, const SourcePlacement& placement);

}  // namespace ckv
