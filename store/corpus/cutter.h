// Cuts a stream of tokens into chunks where its content says.
//
// Fixed runs (CutFixed, store/formats/import.h) are the simplest, but an edit in the middle moves
// every cut after it. Content-defined cuts depend only on the tokens around them. An edit then
// changes the chunks it touches and the next cut or two. All other chunks stay the same, so they
// are stored and sent once (`ckvctl corpus load` says how many).

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "store/formats/import.h"

namespace ckv {

// The sizes of content-defined cuts after FastCDC (Xia et al., USENIX ATC 2016), over token ids
// instead of bytes:
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

// Checks the sizes.
//   InvalidArgument     they are not min < avg < max, or are beyond the limits above.
absl::Status ValidateCutSizes(const CutSizes& sizes);

// Cuts `tokens` into runs that cover every token once. No tokens give one empty run. `sizes` must
// be valid.
std::vector<TokenRange> CutByContent(std::span<const int32_t> tokens, const CutSizes& sizes);

}  // namespace ckv
