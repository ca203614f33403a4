// Covers a prompt with the chunks that it has: spans, and the holes between them.

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

// A chunk in a prompt.
struct PromptSpan {
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
  ChunkId chunk;
  // token_begin less the chunk's canonical position: what ChunkUse::offset is, if the prompt's
  // first token stands at position 0.
  int64_t offset = 0;

  friend bool operator==(const PromptSpan&, const PromptSpan&) = default;
};

// Tokens that are in no span.
struct PromptHole {
  uint32_t token_begin = 0;
  uint32_t token_count = 0;

  friend bool operator==(const PromptHole&, const PromptHole&) = default;
};

// Spans and holes cover every token of the prompt once. Both rise.
struct PromptCover {
  std::vector<PromptSpan> spans;
  std::vector<PromptHole> holes;
  std::optional<Geometry> geometry;  // the chunks have it; unset if there is no span
  // There are more chunks with these beginnings than the directory tells. Or they may stand at more
  // places than are looked at, or too many prints are false. Another cover may have more tokens.
  bool truncated = false;

  uint64_t token_count() const;  // tokens in spans
};

// A prompt, as Requester::CoverPrompt takes it.
struct PromptCall {
  std::span<const int32_t> tokens;
  std::string_view tenant;  // on whose behalf it is
  // The model of the chunks. If unset, they may be of any model, but all of the same.
  std::optional<ChunkId> model;
  Instant deadline;
  // Its pictures and the like, in any order, counted from the first token.
  std::span<const ExtraKey> extra_keys = {};
};

inline constexpr size_t kCoveredTokenCountMax = size_t{1} << 20;
// Places of chunks in one prompt, 16 bytes each. Texts of one repeated token may have more.
inline constexpr size_t kPromptPlaceCountMax = size_t{1} << 20;

// Looks up chunks by the heads of a prompt, as DirectoryControl::FindPrompt does. Its answer is not
// trusted.
using FindHeads = absl::FunctionRef<absl::StatusOr<PromptChunks>(std::span<const uint64_t> heads)>;

// Returns the cover of the prompt with most tokens. Then a chunk that it has at several places
// stays a span at the first one, and becomes a hole at the others. No call attends a chunk twice
// (I1), so those rows are computed anew. A chunk without a parent may stand anywhere. One with a
// parent may stand right behind it only, at the position that follows. Equal covers are told apart
// at the first token where they differ. A span goes before a hole there, and a chunk of a chain
// before one without a parent. Then the longer one counts, and then the smaller id.
//
// `keys` are those that ids may be made with, at most two: the tenant's and the zero key. `find` is
// called once, unless the prompt is shorter than kHeadTokens.
//
// `extra_keys` are those of the prompt, in any order. A chunk is found only where the prompt has
// exactly its keys, each as far from its first token.
//
// Chunks of fewer than kHeadTokens are not found, nor are parts of chunks. The ids of all spans are
// computed and compared, so a false print in the answer of `find` only costs time.
//   InvalidArgument     too many tokens, one that is no token id, extra keys that do not fit, or
//                       the chunks that are found are of several models.
//   Errors of `find`.
// Cost: some 40 ns a token and key, and SHA-256 over the covered tokens.
absl::StatusOr<PromptCover> CoverPrompt(std::span<const int32_t> tokens,
                                        std::span<const TenantKey> keys, FindHeads find,
                                        std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
