#include "store/memory/token_hash.h"

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

// The terms that extra keys add to the tokens of a sequence, one token after another. Each adds a
// line (a at its begin, b more a token) while it lasts, so a sum of lines is kept, and 1,024 keys
// that shape a million tokens each cost no more than one.
class ExtraTerms {
 public:
  ExtraTerms(std::span<const ExtraKey> keys, size_t token_count, const TenantKey& tenant_key) {
    for (const ExtraKey& key : keys) AddKey(key, static_cast<int64_t>(token_count), tenant_key);
    std::sort(turns_.begin(), turns_.end(),
              [](const Turn& a, const Turn& b) { return a.token < b.token; });
  }

  // Returns the term of the next token.
  uint64_t Next() {
    value_ = Reduce(value_ + slope_);
    for (; next_ < turns_.size() && turns_[next_].token == token_; ++next_) {
      value_ = Reduce(value_ + turns_[next_].value);
      slope_ = Reduce(slope_ + turns_[next_].slope);
    }
    ++token_;
    return value_;
  }

 private:
  // A line begins or ends.
  struct Turn {
    uint64_t token, value, slope;
  };

  void AddKey(const ExtraKey& key, int64_t count, const TenantKey& tenant_key) {
    Sha256 sha;
    sha.AppendString("ckv.print.2");
    sha.Append(std::as_bytes(std::span(tenant_key.bytes)));
    sha.AppendValue(key.token_count);
    sha.Append(std::as_bytes(std::span(key.digest)));
    const std::array<uint8_t, 32> digest = sha.Finish();
    uint64_t line[2];
    std::memcpy(line, digest.data(), sizeof(line));
    const bool is_whole = key.token_count == 0;
    const uint64_t a = line[0] % kPrime, b = is_whole ? 0 : line[1] % kPrime;
    const int64_t begin = std::max<int64_t>(key.begin, 0);
    const int64_t end = is_whole ? count : std::min(key.begin + int64_t{key.token_count}, count);
    const auto at = [&](int64_t token) {
      return Reduce(a + Multiply(static_cast<uint64_t>(token - key.begin), b));
    };
    turns_.push_back({static_cast<uint64_t>(begin), at(begin), b});
    turns_.push_back({static_cast<uint64_t>(end), Reduce(kPrime - at(end)), Reduce(kPrime - b)});
  }

  std::vector<Turn> turns_;
  size_t next_ = 0;
  uint64_t token_ = 0, value_ = 0, slope_ = 0;
};

uint64_t ValueOf(int32_t token, ExtraTerms& terms) { return Reduce(ValueOf(token) + terms.Next()); }

uint64_t Horner(std::span<const int32_t> tokens, uint64_t base, ExtraTerms terms) {
  uint64_t sum = 0;
  for (const int32_t token : tokens) sum = Reduce(Multiply(sum, base) + ValueOf(token, terms));
  return sum;
}

// 0 says that there is no head.
uint64_t AsHead(uint64_t token_hash) { return token_hash == 0 ? 1 : token_hash; }

}  // namespace

TokenHashes::TokenHashes(std::span<const int32_t> tokens, const TenantKey& key,
                         std::span<const ExtraKey> extra_keys)
    : sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
  const uint64_t base = BaseOf(key);
  ExtraTerms terms(extra_keys, tokens.size(), key);
  powers_[0] = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sums_[i + 1] = Reduce(Multiply(sums_[i], base) + ValueOf(tokens[i], terms));
    powers_[i + 1] = Multiply(powers_[i], base);
  }
}

uint64_t TokenHashes::Of(size_t begin, size_t end) const {
  assert(begin <= end && end < sums_.size());
  return Reduce(sums_[end] + kPrime - Multiply(sums_[begin], powers_[end - begin]));
}

std::vector<uint64_t> TokenHashes::Heads() const {
  std::vector<uint64_t> heads;
  if (token_count() < kHeadTokens) return heads;
  heads.resize(token_count() - kHeadTokens + 1);
  for (size_t i = 0; i < heads.size(); ++i) heads[i] = AsHead(Of(i, i + kHeadTokens));
  return heads;
}

TokenHash TokenHashOf(std::span<const int32_t> tokens, const TenantKey& key,
                      std::span<const ExtraKey> extra_keys) {
  if (tokens.size() < kHeadTokens) return {};
  const uint64_t base = BaseOf(key);
  const ExtraTerms terms(extra_keys, tokens.size(), key);
  return {.head = AsHead(Horner(tokens.first(kHeadTokens), base, terms)),
          .whole = Horner(tokens, base, terms)};
}

}  // namespace ckv
