// Extra keys: images, audio and adapters, which determine the rows of tokens but not the token ids.
// Images and audio have the same placeholder ids whatever their content. An adapter changes the
// rows of every token. Digests of extra keys are part of chunk ids and token hashes
// (store/memory/chunk_id.h). So a lookup never finds rows made with a different image, audio or
// adapter.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// The most keys of one chunk, prompt or file, the most bytes of a digest, and the most tokens of a
// key.
inline constexpr size_t kExtraKeysMax = 1024;
inline constexpr size_t kExtraKeyDigestBytesMax = 64;
inline constexpr uint32_t kExtraKeyTokensMax = uint32_t{1} << 30;

struct ExtraKey {
  // The first token that the key affects, counted from the first token of the sequence or chunk.
  // Negative if the key begins before it.
  int64_t begin = 0;
  // The number of tokens that the key affects, including tokens outside the sequence or chunk. 0
  // means every token of the whole sequence, as for an adapter; `begin` is then 0.
  uint32_t token_count = 0;
  // 1 to 64 bytes, chosen by the producer of the rows: the same for the same image, audio or
  // adapter.
  std::string digest = {};

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
  friend auto operator<=>(const ExtraKey&, const ExtraKey&) = default;
};
using ExtraKeys = std::vector<ExtraKey>;

// Returns the keys of a sequence in their canonical order: by begin, token_count and digest.
//   InvalidArgument     there are more than kExtraKeysMax keys, or a key occurs twice. A digest is
//                       empty or too long. Or a key affects no token of the sequence, or more than
//                       kExtraKeyTokensMax. The message
//                       names the key.
absl::StatusOr<ExtraKeys> SortExtraKeys(ExtraKeys keys, uint64_t token_count);

// Checks that keys are as SortExtraKeys returns them.
//   InvalidArgument     they are not; the message has the reason.
absl::Status ValidateExtraKeys(std::span<const ExtraKey> keys, uint64_t token_count);

// Returns the keys among a sequence's sorted keys that affect tokens [begin, end), with `begin` as
// their token 0. A key that affects tokens of several chunks is a key of each. The
// result is in canonical order.
ExtraKeys ExtraKeysOf(std::span<const ExtraKey> keys, uint64_t begin, uint64_t end);

// Returns the canonical encoding of valid keys (ValidateExtraKeys), which is hashed into ids and
// stored with chunks. Returns no bytes if there are no keys. Integers are little-endian:
//   count u32, then for each key: begin i64, token_count u32, digest bytes u8, digest
std::string EncodeExtraKeys(std::span<const ExtraKey> keys);
// Decodes a chunk's keys from an untrusted source.
//   InvalidArgument     the bytes are not what EncodeExtraKeys returns for valid keys.
absl::StatusOr<ExtraKeys> DecodeExtraKeys(std::string_view bytes, uint64_t token_count);
// The size limit of EncodeExtraKeys for valid keys.
inline constexpr size_t kExtraKeysBytesMax = 4 + kExtraKeysMax * (13 + kExtraKeyDigestBytesMax);

}  // namespace ckv
