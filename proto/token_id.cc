#include "proto/token_id.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "arrays are read in the byte order of memory");

template <typename T>
absl::StatusOr<std::vector<int32_t>> ReadAs(std::string_view where,
                                            std::span<const std::byte> bytes) {
  std::vector<int32_t> ids(bytes.size() / sizeof(T));
  for (size_t i = 0; i < ids.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    if (value < 0 || value > static_cast<T>(kTokenIdMax))
      return RefuseTokenId(where, i, std::to_string(value));
    ids[i] = static_cast<int32_t>(value);
  }
  return ids;
}

}  // namespace

absl::Status RefuseTokenId(std::string_view where, uint64_t index, std::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s[%d] is %s, no token id: those are whole numbers from 0 to 2^31 - 1",
                      where, index, value));
}

absl::Status CheckTokenIds(std::string_view where, std::span<const int32_t> ids) {
  const auto bad = std::find_if(ids.begin(), ids.end(), [](int32_t id) { return id < 0; });
  if (bad == ids.end()) return absl::OkStatus();
  return RefuseTokenId(where, static_cast<uint64_t>(bad - ids.begin()), std::to_string(*bad));
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(std::string_view where,
                                                  std::span<const std::byte> bytes,
                                                  IntegerType type) {
  if ((type.bytes != 4 && type.bytes != 8) || bytes.size() % type.bytes != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes are not a whole number of integers of %d bytes, which must be 4 or 8", where,
        bytes.size(), type.bytes));
  }
  if (type.bytes == 4)
    return type.is_signed ? ReadAs<int32_t>(where, bytes) : ReadAs<uint32_t>(where, bytes);
  return type.is_signed ? ReadAs<int64_t>(where, bytes) : ReadAs<uint64_t>(where, bytes);
}

absl::StatusOr<std::vector<int32_t>> TokenIdsFromBytes(std::string_view where,
                                                       std::string_view bytes, size_t count_max) {
  if (bytes.size() / sizeof(int32_t) > count_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d ids, limit %d", where, bytes.size() / sizeof(int32_t), count_max));
  }
  return ReadTokenIds(where, std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

}  // namespace ckv
