#include "store/memory/token_print.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "proto/base/sha256.h"

namespace ckv {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t Reduce(uint64_t value) { return value >= kPrime ? value - kPrime : value; }

// Both are below kPrime.
uint64_t Multiply(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return Reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
}

uint64_t ValueOf(int32_t token) { return uint64_t{static_cast<uint32_t>(token)} + 1; }

uint64_t BaseOf(const TenantKey& key) {
  Sha256 sha;
  sha.AppendString("ckv.print.1");
  sha.Append(std::as_bytes(std::span(key.bytes)));
  const std::array<uint8_t, 32> digest = sha.Finish();
  uint64_t word = 0;
  std::memcpy(&word, digest.data(), sizeof(word));
  return 2 + word % (kPrime - 2);
}

uint64_t Horner(std::span<const int32_t> tokens, uint64_t base) {
  uint64_t sum = 0;
  for (const int32_t token : tokens) sum = Reduce(Multiply(sum, base) + ValueOf(token));
  return sum;
}

// 0 says that there is no head.
uint64_t AsHead(uint64_t print) { return print == 0 ? 1 : print; }

}  // namespace

TokenPrints::TokenPrints(std::span<const int32_t> tokens, const TenantKey& key)
    : sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
  const uint64_t base = BaseOf(key);
  powers_[0] = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sums_[i + 1] = Reduce(Multiply(sums_[i], base) + ValueOf(tokens[i]));
    powers_[i + 1] = Multiply(powers_[i], base);
  }
}

uint64_t TokenPrints::Of(size_t begin, size_t end) const {
  assert(begin <= end && end < sums_.size());
  return Reduce(sums_[end] + kPrime - Multiply(sums_[begin], powers_[end - begin]));
}

std::vector<uint64_t> TokenPrints::Heads() const {
  std::vector<uint64_t> heads;
  if (token_count() < kHeadTokens) return heads;
  heads.resize(token_count() - kHeadTokens + 1);
  for (size_t i = 0; i < heads.size(); ++i) heads[i] = AsHead(Of(i, i + kHeadTokens));
  return heads;
}

TokenPrint PrintOf(std::span<const int32_t> tokens, const TenantKey& key) {
  if (tokens.size() < kHeadTokens) return {};
  const uint64_t base = BaseOf(key);
  return {.head = AsHead(Horner(tokens.first(kHeadTokens), base)), .whole = Horner(tokens, base)};
}

}  // namespace ckv
