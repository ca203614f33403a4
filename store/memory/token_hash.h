// Token hashes: after one pass over a prompt, one multiplication hashes any range of its tokens.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/extra_keys.h"
#include "proto/ids.h"

namespace ckv {

// The number of tokens that a head hash covers. Shorter chunks have no token hash.
inline constexpr size_t kHeadTokens = 16;

// The token hashes of all ranges of one token sequence, under one key:
//
//   print(t) = sum of (t[i] + 1 + k[i]) x base^(n - 1 - i), modulo p = 2^61 - 1     t[i] as u32
//   base     = 2 + first 8 bytes of SHA-256(11 as u64 | "ckv.print.1" | key) modulo (p - 2)
//   k[i]     = sum over the extra keys that affect token i of a + (i - key.begin) x b
//   a, b     = first 16 bytes of SHA-256(11 as u64 | "ckv.print.2" | key | key.token_count u32 |
//              digest), each modulo p; b = 0 for a key of the whole sequence
//
// The hash of a range depends on the extra keys that affect it and on where each begins. So a chunk
// of another picture is not even a candidate. Two different ranges collide with probability
// n / 2^61, and anyone who knows the base can construct a collision. Therefore token hashes only
// find candidates; chunk ids decide. The formula never changes, because the hashes are published
// with corpora.
//
// Immutable; any thread may read it. `tokens` and `extra_keys` need not outlive construction. The
// keys must be valid (ValidateExtraKeys). Cost: 3 multiplications and 16 bytes per token.
class TokenHashes {
 public:
  TokenHashes(std::span<const int32_t> tokens, const TenantKey& key,
              std::span<const ExtraKey> extra_keys = {});

  size_t token_count() const { return sums_.size() - 1; }
  // Returns the hash of tokens [begin, end), a range within the sequence.
  uint64_t Of(size_t begin, size_t end) const;
  // Returns the hashes of the kHeadTokens tokens at each offset 0, 1, ... Empty if the sequence is
  // shorter. No hash is 0.
  std::vector<uint64_t> Heads() const;

 private:
  std::vector<uint64_t> sums_;    // [i]: the hash of the first i tokens
  std::vector<uint64_t> powers_;  // [i]: the base to the power of i
};

// Returns the token hashes with which a chunk of these tokens is published, or zeros if it has
// fewer than kHeadTokens. The extra keys are counted from the chunk's first token.
TokenHash TokenHashOf(std::span<const int32_t> tokens, const TenantKey& key,
                      std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
