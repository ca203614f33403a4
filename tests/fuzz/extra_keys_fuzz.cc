// Any bytes as encoded extra keys and as their JSON: what is accepted is valid, and is the one
// encoding of what it says; the prints and ids of it can be made.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "proto/extra_keys.h"
#include "store/formats/extra_keys_json.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace {

constexpr size_t kTokens = 40;

void Use(const ckv::ExtraKeys& keys) {
  CKV_CHECK(keys.size() <= ckv::kExtraKeysMax && ckv::ValidateExtraKeys(keys, kTokens).ok());
  const std::vector<int32_t> tokens(kTokens, 7);
  ckv::ComputeChunkId({}, {}, 0, tokens, keys);
  const ckv::TokenHashes prints(tokens, {}, keys);
  CKV_CHECK(prints.Of(0, kTokens) == ckv::TokenHashOf(tokens, {}, keys).whole);
  const ckv::ExtraKeys behind = ckv::ExtraKeysOf(keys, 20, kTokens);
  CKV_CHECK(ckv::ValidateExtraKeys(behind, 20).ok());
  CKV_CHECK(prints.Of(20, kTokens) ==
            ckv::TokenHashOf(std::span(tokens).subspan(20), {}, behind).whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto keys = ckv::DecodeExtraKeys(bytes, kTokens);
  if (keys.ok()) {
    CKV_CHECK(ckv::EncodeExtraKeys(*keys) == bytes);
    CKV_CHECK(bytes.size() <= ckv::kExtraKeysBytesMax);
    Use(*keys);
  } else {
    CKV_CHECK(absl::IsInvalidArgument(keys.status()));
  }
  const auto parsed = ckv::ParseExtraKeysText(bytes, kTokens, "keys");
  if (!parsed.ok()) {
    CKV_CHECK(absl::IsInvalidArgument(parsed.status()));
    return 0;
  }
  Use(*parsed);
  const auto again = ckv::ParseExtraKeysText(ckv::FormatExtraKeys(*parsed), kTokens, "keys");
  CKV_CHECK(again.ok() && *again == *parsed);
  return 0;
}
