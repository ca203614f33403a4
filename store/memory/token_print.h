// Prints of tokens: fingerprints of any run of a prompt in one multiplication, after one pass.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/extra_keys.h"
#include "proto/ids.h"

namespace ckv {

// Tokens that a head covers. Shorter chunks have no print.
inline constexpr size_t kHeadTokens = 16;

// The prints of all runs of one sequence of tokens, under one key:
//
//   print(t) = sum of (t[i] + 1 + k[i]) x base^(n - 1 - i), modulo p = 2^61 - 1     t[i] as u32
//   base     = 2 + first 8 bytes of SHA-256(11 as u64 | "ckv.print.1" | key) modulo (p - 2)
//   k[i]     = sum over the extra keys that affect token i of a + (i - key.begin) x b
//   a, b     = first 16 bytes of SHA-256(11 as u64 | "ckv.print.2" | key | key.token_count u32 |
//              digest), each modulo p; b = 0 for a key of the whole sequence
//
// So a run's print depends on the keys that affect it and on where each begins. A chunk of another
// picture is not even a candidate. Two different runs have the same print with probability n /
// 2^61. Somebody who knows the base can construct two that collide. So prints only find candidates,
// and chunk ids decide. The formula never changes, because prints are published with corpora.
// Immutable; any thread may read it. `tokens` and `extra_keys` need not outlive construction; the
// keys must be valid (ValidateExtraKeys). Cost: 3 multiplications and 16 bytes a token.
class TokenPrints {
 public:
  TokenPrints(std::span<const int32_t> tokens, const TenantKey& key,
              std::span<const ExtraKey> extra_keys = {});

  size_t token_count() const { return sums_.size() - 1; }
  // Returns the print of tokens [begin, end), which lies within the sequence.
  uint64_t Of(size_t begin, size_t end) const;
  // Returns the heads at offsets 0, 1, ...: as many as there are runs of kHeadTokens. None is 0.
  std::vector<uint64_t> Heads() const;

 private:
  std::vector<uint64_t> sums_;    // [i]: the print of the first i tokens
  std::vector<uint64_t> powers_;  // [i]: the base to the power of i
};

// Returns the print with which a chunk of these tokens is published. Its extra keys are counted
// from its first token.
TokenPrint PrintOf(std::span<const int32_t> tokens, const TenantKey& key,
                   std::span<const ExtraKey> extra_keys = {});

}  // namespace ckv
