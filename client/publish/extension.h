// Chunks that are appended to a corpus: which of them it lacks, and where they go.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/corpus.h"

namespace ckv {

// Returns the ordinals of the chunks that the corpus lacks, in order.
//   FailedPrecondition  the corpus has another geometry, or the parent of a chunk is neither in it
//                       nor among the chunks before, or has another child.
absl::StatusOr<std::vector<uint32_t>> NewChunks(const Corpus& corpus, const ChunkSource& chunks);

// Appends chunks `fresh` of the source to the corpus, each on `replicas` of `holders`. Returns for
// every chunk of the source which holders are to get it: none if it is not in `fresh`.
//   InvalidArgument     more replicas than holders.
absl::StatusOr<std::vector<std::vector<HolderId>>> AppendChunks(const ChunkSource& chunks,
                                                                std::span<const uint32_t> fresh,
                                                                std::span<const HolderId> holders,
                                                                uint32_t replicas, Corpus& corpus);

}  // namespace ckv
