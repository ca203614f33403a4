#include "store/corpus/cutter.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

constexpr uint32_t kAvgTokensMin = 16, kAvgTokensMax = 1u << 18;
// More bits before the average, fewer after it: FastCDC's normalisation level 2.
constexpr int kNormalBits = 2;

// A fixed random number a token: splitmix64 (Steele et al., OOPSLA 2014). A table of 2^31 would not
// fit, and ids depend on the cuts, so this must never change.
uint64_t Gear(int32_t token) {
  uint64_t z = static_cast<uint64_t>(static_cast<uint32_t>(token)) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The top bits: each of them has seen the last 64 tokens, or so many as there are.
uint64_t TopBits(int count) { return ~uint64_t{0} << (64 - count); }

// Returns the end of the chunk that begins at `begin`.
uint32_t NextCut(std::span<const int32_t> tokens, uint32_t begin, const CutSizes& sizes) {
  const auto end = static_cast<uint32_t>(tokens.size());
  if (end - begin <= sizes.min_tokens) return end;
  const uint32_t last = std::min(end, begin + sizes.max_tokens);
  const uint32_t normal = std::min(last, begin + sizes.avg_tokens);
  const int bits = std::countr_zero(sizes.avg_tokens);
  const uint64_t before = TopBits(bits + kNormalBits), after = TopBits(bits - kNormalBits);
  // The 64 tokens before the first place a cut may be: there the sum is what it is wherever the
  // chunk begins.
  const uint32_t warm = begin + sizes.min_tokens - std::min(sizes.min_tokens, 64u);
  uint64_t hash = 0;
  for (uint32_t i = warm; i < last; ++i) {
    hash = (hash << 1) + Gear(tokens[i]);
    if (i + 1 < begin + sizes.min_tokens) continue;
    if ((hash & (i < normal ? before : after)) == 0) return i + 1;
  }
  return last;
}

}  // namespace

absl::Status ValidateCutSizes(const CutSizes& sizes) {
  if (sizes.avg_tokens < kAvgTokensMin || sizes.avg_tokens > kAvgTokensMax ||
      !std::has_single_bit(sizes.avg_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cut: an average of %d tokens: it must be a power of two, %d to %d",
                        sizes.avg_tokens, kAvgTokensMin, kAvgTokensMax));
  }
  if (sizes.min_tokens == 0 || sizes.min_tokens >= sizes.avg_tokens ||
      sizes.max_tokens <= sizes.avg_tokens || sizes.max_tokens > kChunkTokenCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cut: %d to %d tokens around an average of %d: least below it, most above "
                        "it and at most %d",
                        sizes.min_tokens, sizes.max_tokens, sizes.avg_tokens, kChunkTokenCountMax));
  }
  return absl::OkStatus();
}

std::vector<TokenRange> CutByContent(std::span<const int32_t> tokens, const CutSizes& sizes) {
  std::vector<TokenRange> ranges;
  const auto end = static_cast<uint32_t>(tokens.size());
  for (uint32_t begin = 0; begin < end;) {
    const uint32_t cut = NextCut(tokens, begin, sizes);
    ranges.push_back({begin, cut});
    begin = cut;
  }
  if (ranges.empty()) ranges.push_back({0, 0});
  return ranges;
}

}  // namespace ckv
