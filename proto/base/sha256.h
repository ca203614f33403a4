// SHA-256 by OpenSSL, in the one form that ids need: append, then finish.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

typedef struct evp_md_ctx_st EVP_MD_CTX;  // openssl/evp.h stays out of our headers

namespace ckv {

// Not thread-safe. One object computes one digest.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Append(std::span<const std::byte> bytes);
  // Appends a length and then the bytes, so that ("ab", "c") and ("a", "bc") differ.
  void AppendString(std::string_view text);
  // Appends the value's little-endian bytes.
  template <typename T>
  requires std::is_arithmetic_v<T>
  void AppendValue(T value) { Append(std::as_bytes(std::span<const T, 1>(&value, 1))); }

  // Ends the digest. Do not use the object afterwards.
  std::array<uint8_t, 32> Finish();

 private:
  EVP_MD_CTX* ctx_;
};

// Returns HMAC-SHA-256 (RFC 2104) of the bytes under the key.
std::array<uint8_t, 32> HmacSha256(std::span<const uint8_t> key, std::span<const std::byte> bytes);

}  // namespace ckv
