// Extra keys as JSON, in the metadata of row files, in JSONL documents, and in files of their own.
//
//   [{"begin": 17, "tokens": 256, "digest": "9f2c..."}, {"digest": "00a1..."}]
//
// `begin` and `tokens` select the tokens that the key affects (proto/extra_keys.h), counted from
// the first token of the file, the line or the prompt. A key without both affects all tokens.
// `digest` is hex.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/extra_keys.h"
#include "store/formats/json.h"
#include "store/formats/json_fields.h"

namespace ckv {

// The maximum nesting depth of a JSON text of keys.
inline constexpr int kExtraKeysDepthMax = 2;

namespace extra_keys_json {

inline int NibbleOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Appends the bytes of `hex`. Returns false if `hex` is not pairs of hex digits.
inline bool FromHex(std::string_view hex, std::string& bytes) {
  if (hex.size() % 2 != 0) return false;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = NibbleOf(hex[i]), low = NibbleOf(hex[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  return true;
}

inline absl::StatusOr<ExtraKey> ParseKey(const nlohmann::json& json, const std::string& where) {
  const JsonFields fields(json, where);
  if (json.is_object() && !json.contains("begin") && !json.contains("tokens")) {
    CKV_RETURN_IF_ERROR(fields.CheckKeys({"digest"}));
  } else {
    CKV_RETURN_IF_ERROR(fields.CheckKeys({"begin", "tokens", "digest"}));
  }
  ExtraKey key;
  if (fields.Has("begin")) {
    // The parser turns a number of more than 64 bits into a floating-point number.
    const nlohmann::json& begin = fields.At("begin");
    if (!begin.is_number_integer()) return fields.Refuse("begin", "must be a whole number");
    if (begin.is_number_unsigned() && begin.get<uint64_t>() > kExtraKeyTokensMax) {
      return fields.Refuse(
          "begin", absl::StrFormat("%d, limit %d", begin.get<uint64_t>(), kExtraKeyTokensMax));
    }
    key.begin = begin.get<int64_t>();
    CKV_RETURN_IF_ERROR(fields.Read("tokens", key.token_count));
    if (key.token_count == 0) return fields.Refuse("tokens", "must be at least 1");
  }
  std::string hex;
  CKV_RETURN_IF_ERROR(fields.Read("digest", hex));
  if (hex.size() > 2 * kExtraKeyDigestBytesMax || !FromHex(hex, key.digest)) {
    return fields.Refuse("digest",
                         absl::StrFormat("must be 1 to %d bytes as hex digits, two a byte",
                                         kExtraKeyDigestBytesMax));
  }
  return key;
}

}  // namespace extra_keys_json

// Parses the keys of a sequence of `token_count` tokens, and returns them sorted. Error messages
// begin with `where`.
//   InvalidArgument     the format differs from the one above, or SortExtraKeys refuses a key; the
//                       message names it.
inline absl::StatusOr<ExtraKeys> ParseExtraKeys(const nlohmann::json& json, uint64_t token_count,
                                                std::string_view where) {
  if (!json.is_array() || json.size() > kExtraKeysMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: must be an array of at most %d extra keys: {\"begin\": 17, \"tokens\": 256, "
        "\"digest\": \"9f2c\"}",
        where, kExtraKeysMax));
  }
  ExtraKeys keys;
  for (size_t i = 0; i < json.size(); ++i) {
    CKV_ASSIGN_OR_RETURN(ExtraKey key,
                         extra_keys_json::ParseKey(json[i], absl::StrFormat("%s[%d]: ", where, i)));
    keys.push_back(std::move(key));
  }
  auto sorted = SortExtraKeys(std::move(keys), token_count);
  if (!sorted.ok()) return Annotate(sorted.status(), where);
  return sorted;
}

// Like ParseExtraKeys, but parses a JSON text.
inline absl::StatusOr<ExtraKeys> ParseExtraKeysText(std::string_view text, uint64_t token_count,
                                                    std::string_view where) {
  const auto json = ParseJson(text, kExtraKeysDepthMax);
  if (!json.ok()) return Annotate(json.status(), where);
  return ParseExtraKeys(*json, token_count, where);
}

// Formats keys as text for ParseExtraKeysText.
inline std::string FormatExtraKeys(std::span<const ExtraKey> keys) {
  nlohmann::json json = nlohmann::json::array();
  for (const ExtraKey& key : keys) {
    nlohmann::json& one = json.emplace_back(nlohmann::json::object());
    if (key.token_count != 0) {
      one["begin"] = key.begin;
      one["tokens"] = key.token_count;
    }
    one["digest"] = absl::BytesToHexString(key.digest);
  }
  return json.dump();
}

}  // namespace ckv
