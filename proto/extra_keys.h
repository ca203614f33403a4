// Extra keys: pictures, sounds and adapters, which shape the rows of tokens and not their ids.
// Pictures and sounds have the same placeholder ids whatever they show, and an adapter changes the
// rows of every token. Their digests are part of chunk ids and prints (store/memory/chunk_id.h), so
// none finds another one's rows.

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

// Limits of one chunk, of one prompt and of one file.
inline constexpr size_t kExtraKeysMax = 1024;
inline constexpr size_t kExtraKeyDigestBytesMax = 64;
inline constexpr uint32_t kExtraKeyTokensMax = uint32_t{1} << 30;

struct ExtraKey {
  // The first token that it shapes, counted from the first one of the sequence or the chunk. It may
  // be negative: then it began before.
  int64_t begin = 0;
  // How many tokens it shapes, those beyond the ends counted. 0 means every token of the whole
  // sequence, as an adapter does; `begin` is 0 then.
  uint32_t token_count = 0;
  // 1 to 64 bytes, chosen by who makes the rows: the same for the same picture, sound or adapter.
  std::string digest = {};

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
  friend auto operator<=>(const ExtraKey&, const ExtraKey&) = default;
};
using ExtraKeys = std::vector<ExtraKey>;

// Returns the keys of a sequence in their one order: the same for any order that they come in.
//   InvalidArgument     there are more than kExtraKeysMax, or one is there twice. A digest has no
//                       bytes or too many. Or a key shapes no token of the sequence; says which.
absl::StatusOr<ExtraKeys> SortExtraKeys(ExtraKeys keys, uint64_t token_count);

// Checks that keys are as SortExtraKeys returns them.
//   InvalidArgument     they are not; says why.
absl::Status ValidateExtraKeys(std::span<const ExtraKey> keys, uint64_t token_count);

// Returns those of a sequence's sorted keys that shape tokens [begin, end), counted from `begin`.
// One that shapes tokens of several chunks is a key of each.
ExtraKeys ExtraKeysOf(std::span<const ExtraKey> keys, uint64_t begin, uint64_t end);

// Returns the one encoding of valid keys. It is hashed into ids and stored beside chunks. No keys
// give no bytes. Integers are little-endian:
//   count u32, then for each key: begin i64, token_count u32, digest bytes u8, digest
std::string EncodeExtraKeys(std::span<const ExtraKey> keys);
// Decodes keys of a chunk from outside.
//   InvalidArgument     they are not what EncodeExtraKeys gives for valid keys.
absl::StatusOr<ExtraKeys> DecodeExtraKeys(std::string_view bytes, uint64_t token_count);
// The most bytes that valid keys take.
inline constexpr size_t kExtraKeysBytesMax = 4 + kExtraKeysMax * (13 + kExtraKeyDigestBytesMax);

}  // namespace ckv
