// Finds texts that a corpus already has in other chunks, with other ids.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/extra_keys.h"

namespace ckv {

// The inputs of a chunk that distinguish texts, as in ChunkInfo.
struct ChunkText {
  std::vector<int32_t> token_ids;
  ExtraKeys extra_keys = {};
};

// Returns the text of a chunk of the corpus. Called for few chunks.
using ReadTokens = std::function<absl::StatusOr<ChunkText>(const ChunkPlacement&)>;

// Queries the chunk's holders that are among `holders`, one after another.
//   Unavailable         no live one has it.
ReadTokens QueryHolders(std::vector<Member> holders, const Geometry& geometry, std::string tenant,
                        Clock* clock, Instant deadline);

// Refuses chunks that duplicate a text, because queries would see its rows twice. A text of
// `source` begins at a chunk of `fresh` that has no parent. It is a duplicate if a chunk of the
// corpus covers its first position and has the same tokens and extra keys. Only the length of the
// shorter one is compared. Chunks that follow a chunk of the corpus duplicate nothing (NewChunks).
// A whole text of fewer than kHeadTokens tokens may be the beginning of a longer one.
//
// The corpus's token hashes select candidates. A chunk that is not longer than the text is compared
// by its id, which `key` makes. The tokens of a longer one come from `query`.
//   FailedPrecondition  names the chunks and the position.
//   Errors of `query`.
absl::Status CheckNoTextTwice(const Corpus& corpus, const ChunkSource& source,
                              std::span<const uint32_t> fresh, const TenantKey& key,
                              const ReadTokens& query);

}  // namespace ckv
