// Finds texts that a corpus has already, cut in another way: their chunks have other ids.

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

// The inputs of a chunk that tell texts apart, as in ChunkInfo.
struct ChunkText {
  std::vector<int32_t> token_ids;
  ExtraKeys extra_keys = {};
};

// Returns the text of a chunk of the corpus. Chunks that are asked about are few.
using AskForTokens = std::function<absl::StatusOr<ChunkText>(const ChunkPlacement&)>;

// Asks the chunk's holders, as far as they are among `holders`, one after another.
//   Unavailable         none of them is alive or has it.
AskForTokens AskHolders(std::vector<Member> holders, const Geometry& geometry, std::string tenant,
                        Clock* clock, Instant deadline);

// Refuses chunks that double a text: queries would see its rows twice. A text of `source` begins
// with one of chunks `fresh`. It is doubled if a chunk of the corpus covers its first position, and
// has the same tokens and extra keys. They are compared as far as both go. Chunks that follow a
// chunk of the corpus double none (NewChunks). A whole text of less than kHeadTokens tokens with
// which a longer one begins is a text of its own.
//
// The corpus' prints find candidates. A chunk that is not longer than the text is told by its id. A
// longer one is asked for. `key` makes the corpus' ids.
//   FailedPrecondition  names the chunks and the position.
//   the error of `ask`.
absl::Status CheckNoTextTwice(const Corpus& corpus, const ChunkSource& source,
                              std::span<const uint32_t> fresh, const TenantKey& key,
                              const AskForTokens& ask);

}  // namespace ckv
