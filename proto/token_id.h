// Token ids: which numbers are valid, by the same rule at every entry point.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// Ids are whole numbers from 0 to 2^31 - 1. So -1, which pads arrays, is not an id.
inline constexpr int64_t kTokenIdMax = INT32_MAX;

// Returns the error for a number that is not an id: "token_ids[3] is -1, no token id: ...". `where`
// is the text before the index.
//   InvalidArgument     always.
absl::Status RefuseTokenId(std::string_view where, uint64_t index, std::string_view value);

// Checks ids that are already 32-bit numbers.
//   InvalidArgument     an id is negative; the error is RefuseTokenId of the first one.
absl::Status CheckTokenIds(std::string_view where, std::span<const int32_t> ids);

// The type of the integers in an array of a file. Little-endian.
struct IntegerType {
  size_t bytes = 4;  // 4 or 8
  bool is_signed = true;
};

// Reads an array of ids, which may begin at any address.
//   InvalidArgument     `type.bytes` is not 4 or 8, the bytes are not a whole number of integers,
//                       or one is not an id.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(std::string_view where,
                                                  std::span<const std::byte> bytes,
                                                  IntegerType type);

// Reads ids from a protobuf `bytes` field: i32, little-endian.
//   InvalidArgument     also: there are more than `count_max`.
absl::StatusOr<std::vector<int32_t>> TokenIdsFromBytes(std::string_view where,
                                                       std::string_view bytes, size_t count_max);

}  // namespace ckv
