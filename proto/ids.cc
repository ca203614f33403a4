#include "proto/ids.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string ChunkId::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

std::string ChunkId::ShortHex() const { return ToHex().substr(0, 12); }

absl::StatusOr<ChunkId> ChunkId::FromHex(std::string_view hex) {
  ChunkId id;
  if (hex.size() != 2 * id.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk id: %d characters, need 64 hex digits", hex.size()));
  }
  for (size_t i = 0; i < id.bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("chunk id: not a hex digit near character %d", 2 * i));
    }
    id.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return id;
}

absl::StatusOr<ChunkId> ChunkId::FromBytes(std::string_view bytes) {
  ChunkId id;
  if (bytes.size() != id.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk id: %d bytes, need %d", bytes.size(), id.bytes.size()));
  }
  std::memcpy(id.bytes.data(), bytes.data(), id.bytes.size());
  return id;
}

absl::StatusOr<TenantKey> TenantKey::FromBytes(std::string_view bytes) {
  TenantKey key;
  if (bytes.size() != key.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tenant key: %d bytes, need %d", bytes.size(), key.bytes.size()));
  }
  std::memcpy(key.bytes.data(), bytes.data(), key.bytes.size());
  return key;
}

absl::StatusOr<VerificationTag> VerificationTag::FromBytes(std::string_view bytes) {
  VerificationTag verification_tag;
  if (bytes.empty()) return verification_tag;
  if (bytes.size() != verification_tag.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("verification tag: %d bytes, need %d",
                                                      bytes.size(), verification_tag.bytes.size()));
  }
  std::memcpy(verification_tag.bytes.data(), bytes.data(), verification_tag.bytes.size());
  return verification_tag;
}

bool ChunkId::IsZero() const {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace ckv
