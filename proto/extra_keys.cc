// Extra keys in their one order. SortExtraKeys puts keys in order and refuses duplicates;
// ValidateExtraKeys accepts only that order; ExtraKeysOf takes the keys of a range and moves them
// to its begin. EncodeExtraKeys and DecodeExtraKeys are the bytes that chunk ids and files contain.

#include "proto/extra_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "keys are encoded in the byte order of memory");

constexpr size_t kHeadBytes = 13;  // a key's, before its digest

bool Touches(const ExtraKey& key, int64_t begin, int64_t end) {
  if (key.token_count == 0) return true;
  return key.begin < end && key.begin + int64_t{key.token_count} > begin;
}

absl::Status RefuseKey(size_t index, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("extra key %d: %s", index, what));
}

absl::Status CheckKey(const ExtraKey& key, size_t index, int64_t token_count) {
  if (key.digest.empty() || key.digest.size() > kExtraKeyDigestBytesMax) {
    return RefuseKey(index, absl::StrFormat("a digest of %d bytes, it must have 1 to %d",
                                            key.digest.size(), kExtraKeyDigestBytesMax));
  }
  if (key.token_count > kExtraKeyTokensMax) {
    return RefuseKey(
        index, absl::StrFormat("shapes %d tokens, limit %d", key.token_count, kExtraKeyTokensMax));
  }
  if (key.token_count == 0 && key.begin != 0) {
    return RefuseKey(index, absl::StrFormat("begins at token %d and has no token count: one of the "
                                            "whole sequence begins at 0",
                                            key.begin));
  }
  // Bounded first, so that no sum wraps.
  const int64_t far = int64_t{kExtraKeyTokensMax};
  if (key.begin < -far || key.begin >= token_count || !Touches(key, 0, token_count)) {
    if (key.token_count == 0) return absl::OkStatus();  // also of no tokens
    return RefuseKey(index, absl::StrFormat("tokens [%d, + %d) are none of the %d", key.begin,
                                            key.token_count, token_count));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(size_t count) {
  if (count <= kExtraKeysMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%d extra keys, limit %d", count, kExtraKeysMax));
}

template <typename T>
void Put(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The caller has checked that the bytes are there.
template <typename T>
T Take(std::string_view& from) {
  T value;
  std::memcpy(&value, from.data(), sizeof(value));
  from.remove_prefix(sizeof(value));
  return value;
}

absl::Status Damaged() {
  return absl::InvalidArgumentError("extra keys: their bytes do not fit their count");
}

}  // namespace

absl::StatusOr<ExtraKeys> SortExtraKeys(ExtraKeys keys, uint64_t token_count) {
  CKV_RETURN_IF_ERROR(CheckCount(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i)
    CKV_RETURN_IF_ERROR(CheckKey(keys[i], i, static_cast<int64_t>(token_count)));
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("extra keys: the one at token %d with %d tokens is there twice",
                        twice->begin, twice->token_count));
  }
  return keys;
}

absl::Status ValidateExtraKeys(std::span<const ExtraKey> keys, uint64_t token_count) {
  CKV_RETURN_IF_ERROR(CheckCount(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    CKV_RETURN_IF_ERROR(CheckKey(keys[i], i, static_cast<int64_t>(token_count)));
    if (i > 0 && !(keys[i - 1] < keys[i]))
      return RefuseKey(i, "is not in order, or is there twice");
  }
  return absl::OkStatus();
}

ExtraKeys ExtraKeysOf(std::span<const ExtraKey> keys, uint64_t begin, uint64_t end) {
  const auto first = static_cast<int64_t>(begin), last = static_cast<int64_t>(end);
  ExtraKeys within;
  for (const ExtraKey& key : keys) {
    if (key.begin >= last && key.token_count != 0) break;  // and so do all behind it
    if (!Touches(key, first, last)) continue;
    within.push_back(key);
    if (key.token_count != 0) within.back().begin -= first;
  }
  // Keys of the whole sequence stay where they are, and others move past them.
  std::sort(within.begin(), within.end());
  return within;
}

std::string EncodeExtraKeys(std::span<const ExtraKey> keys) {
  std::string bytes;
  if (keys.empty()) return bytes;
  Put(static_cast<uint32_t>(keys.size()), bytes);
  for (const ExtraKey& key : keys) {
    Put(key.begin, bytes);
    Put(key.token_count, bytes);
    Put(static_cast<uint8_t>(key.digest.size()), bytes);
    bytes.append(key.digest);
  }
  return bytes;
}

absl::StatusOr<ExtraKeys> DecodeExtraKeys(std::string_view bytes, uint64_t token_count) {
  ExtraKeys keys;
  if (bytes.empty()) return keys;
  if (bytes.size() < sizeof(uint32_t)) return Damaged();
  const auto count = Take<uint32_t>(bytes);
  CKV_RETURN_IF_ERROR(CheckCount(count));
  if (count == 0 || count > bytes.size() / (kHeadBytes + 1)) return Damaged();
  keys.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes.size() < kHeadBytes) return Damaged();
    ExtraKey& key = keys.emplace_back();
    key.begin = Take<int64_t>(bytes);
    key.token_count = Take<uint32_t>(bytes);
    const auto digest_bytes = Take<uint8_t>(bytes);
    if (bytes.size() < digest_bytes) return Damaged();
    key.digest = bytes.substr(0, digest_bytes);
    bytes.remove_prefix(digest_bytes);
  }
  if (!bytes.empty()) return Damaged();
  CKV_RETURN_IF_ERROR(ValidateExtraKeys(keys, token_count));
  return keys;
}

}  // namespace ckv
