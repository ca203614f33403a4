#include "proto/base/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "proto/base/status.h"

namespace ckv {

Sha256::Sha256() : ctx_(EVP_MD_CTX_new()) {
  CKV_CHECK(ctx_ != nullptr && EVP_DigestInit_ex(ctx_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(ctx_); }

void Sha256::Append(std::span<const std::byte> bytes) {
  CKV_CHECK(EVP_DigestUpdate(ctx_, bytes.data(), bytes.size()) == 1);
}

void Sha256::AppendString(std::string_view text) {
  AppendValue(uint64_t{text.size()});
  Append(std::as_bytes(std::span(text)));
}

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> digest;
  unsigned int size = 0;
  CKV_CHECK(EVP_DigestFinal_ex(ctx_, digest.data(), &size) == 1 && size == digest.size());
  return digest;
}

std::array<uint8_t, 32> HmacSha256(std::span<const uint8_t> key, std::span<const std::byte> bytes) {
  std::array<uint8_t, 32> digest;
  unsigned int size = 0;
  CKV_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data(),
                 &size) != nullptr);
  CKV_CHECK(size == digest.size());
  return digest;
}

}  // namespace ckv
