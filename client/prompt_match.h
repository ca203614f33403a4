// Finds the prefix match of a prompt: the chunks that it contains, and the gaps between them.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// A chunk that occurs in a prompt.
struct PromptSpan {
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
  ChunkId chunk;
  // token_begin minus the chunk's canonical position. This is ChunkUse::offset if the prompt's
  // first token is at position 0.
  int64_t offset = 0;

  friend bool operator==(const PromptSpan&, const PromptSpan&) = default;
};

// A gap: tokens that are in no span.
struct PromptGap {
  uint32_t token_begin = 0;
  uint32_t token_count = 0;

  friend bool operator==(const PromptGap&, const PromptGap&) = default;
};

// Spans and gaps together cover every token of the prompt once, each in increasing order.
struct PromptMatch {
  std::vector<PromptSpan> spans;
  std::vector<PromptGap> gaps;
  std::optional<Geometry> geometry;  // shared by all chunks; unset if there is no span
  // The search reached a limit, so another match may cover more tokens. The directory has more
  // chunks with these beginnings than it returns, or there are more possible places than
  // kPromptPlaceCountMax. Or too many hashes matched other chunks.
  bool truncated = false;

  uint64_t token_count() const;  // tokens in spans
};

// A prompt, as passed to Requester::MatchPrompt.
struct PromptCall {
  std::span<const int32_t> tokens;
  std::string_view tenant;  // on whose behalf chunks are read
  // The model of the chunks. If unset, they may be of any one model.
  std::optional<ChunkId> model;
  Instant deadline;
  // Its pictures and the like, in any order, counted from the prompt's first token.
  std::span<const ExtraKey> extra_keys = {};
};

inline constexpr size_t kMatchedTokenCountMax = size_t{1} << 20;
// The most places of chunks in one prompt, 16 bytes each. Texts of one repeated token may have
// more.
inline constexpr size_t kPromptPlaceCountMax = size_t{1} << 20;

// Looks up chunks by the head hashes of a prompt, as DirectoryControl::FindPrompt does. The result
// is verified.
using FindHeads = absl::FunctionRef<absl::StatusOr<PromptChunks>(std::span<const uint64_t> heads)>;

// Returns the match that covers the most tokens. A chunk without a parent may occur anywhere. A
// chunk with a parent matches only directly after its parent, at the position that follows. Ties
// are broken at the first token where two matches differ. A span wins over a gap, then a chained
// chunk over one without a parent, then the longer chunk, then the smaller id.
//
// If the best match contains a chunk several times, its first occurrence is a span. The others
// become gaps, whose rows must be recomputed, because no call attends a chunk twice (I1).
//
// `keys` are the keys that ids may be made with, at most two: the tenant's and the zero key. `find`
// is called once, or not at all if the prompt is shorter than kHeadTokens.
//
// `extra_keys` are those of the prompt, in any order. A chunk matches only if the prompt has
// exactly the chunk's keys, at the same distances from the chunk's first token.
//
// Chunks of fewer than kHeadTokens tokens are not found, nor are parts of chunks. The ids of all
// spans are computed and compared, so a wrong hash in the result of `find` only costs time.
//   InvalidArgument     there are too many tokens, a token id or an extra key is not valid, or the
//                       chunks found are of several models.
//   Errors of `find`.
// Cost: about 40 ns per token and key, and SHA-256 over the covered tokens.
absl::StatusOr<PromptMatch> MatchPrompt(std::span<const int32_t> tokens,
                                        std::span<const TenantKey> keys, FindHeads find,
                                        std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
