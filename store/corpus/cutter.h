// Where a stream of tokens is cut into chunks.
//
// Fixed runs (CutFixed, store/import.h) are the plainest: an edit in the middle moves every cut
// after it. Documents are cut where they begin. Content-defined cuts depend on the tokens around
// them alone, so an edit changes the chunks that it touches and the next cut or two, and all others
// come again as they were: stored once, and sent once (`ckvctl corpus load` says how many).

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/import.h"

namespace ckv {

// Content-defined cuts after FastCDC (Xia et al., USENIX ATC 2016), over token ids instead of
// bytes:
//
//   h = 2 h + gear(token), a sum that the token 64 places back has left
//   cut after a token where the top bits of h are all zero: log2(avg_tokens) + 2 of them before
//   avg_tokens, log2(avg_tokens) - 2 after it, so that lengths gather around the average
//
// Nothing is cut before min_tokens, and always at max_tokens.
struct CutSizes {
  uint32_t min_tokens = 512;
  uint32_t avg_tokens = 2048;  // a power of two, 16 to 2^18
  uint32_t max_tokens = 8192;  // at most kChunkTokenCountMax
};

//   InvalidArgument     not min < avg < max, or beyond the limits above.
absl::Status ValidateCutSizes(const CutSizes& sizes);

// No tokens give one empty run, as CutFixed. The sizes are valid.
std::vector<TokenRange> CutByContent(std::span<const int32_t> tokens, const CutSizes& sizes);

// One run a document, and more where one is longer than `max_tokens`, of that length each but the
// last. `begins` are where documents begin, rising, each below tokens.size(); what is before the
// first is a document of its own.
//   InvalidArgument     they do not rise, one is past the end, or max_tokens is 0.
absl::StatusOr<std::vector<TokenRange>> CutByDocument(uint32_t token_count,
                                                      std::span<const uint32_t> begins,
                                                      uint32_t max_tokens);

}  // namespace ckv
