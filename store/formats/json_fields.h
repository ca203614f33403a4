// Reads the fields of an untrusted JSON object, with errors that name the wrong field.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/ids.h"
#include "store/formats/safetensors_header.h"

namespace ckv {

// One JSON object. Call Read and At only for keys that CheckKeys or Has found. Read returns
// InvalidArgument if the value has another type or does not fit.
class JsonFields {
 public:
  // Error messages are `where`, for example "facts: ", and then the field's name and the problem.
  // `object` must outlive this.
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  // Returns InvalidArgument with a message like "facts: kept: must be a number".
  absl::Status Refuse(std::string_view key, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s%s: %s", where_, key, what));
  }

  // Checks that the object has all of `required`, and no others but `optional`.
  absl::Status CheckKeys(std::initializer_list<std::string_view> required,
                         std::initializer_list<std::string_view> optional = {}) const {
    if (!object_.is_object()) {
      const std::string object = where_.substr(0, where_.find_last_not_of(":. ") + 1);
      return absl::InvalidArgumentError(object + ": must be an object");
    }
    for (const std::string_view key : required) {
      if (!object_.contains(key)) return Refuse(key, "is missing");
    }
    for (const auto& entry : object_.items()) {
      const auto is_entry = [&entry](std::string_view key) { return entry.key() == key; };
      if (!std::ranges::any_of(required, is_entry) && !std::ranges::any_of(optional, is_entry))
        return Refuse(QuotedName(entry.key()), "is not known");
    }
    return absl::OkStatus();
  }

  bool Has(const char* key) const { return object_.contains(key); }
  const nlohmann::json& At(const char* key) const { return *object_.find(key); }

  absl::Status Read(const char* key, std::string& value) const {
    if (!At(key).is_string()) return Refuse(key, "must be a string");
    value = At(key).get_ref<const std::string&>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, uint64_t& value) const {
    if (!At(key).is_number_unsigned()) return Refuse(key, "must be a whole number");
    value = At(key).get<uint64_t>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, uint32_t& value) const {
    uint64_t wide = 0;
    CKV_RETURN_IF_ERROR(Read(key, wide));
    if (wide > UINT32_MAX) return Refuse(key, "must be less than 2^32");
    value = static_cast<uint32_t>(wide);
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, double& value) const {
    if (!At(key).is_number()) return Refuse(key, "must be a number");
    value = At(key).get<double>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, ChunkId& value) const {
    std::string hex;
    CKV_RETURN_IF_ERROR(Read(key, hex));
    const auto id = ChunkId::FromHex(hex);
    if (!id.ok()) return Refuse(key, std::string(id.status().message()));
    value = *id;
    return absl::OkStatus();
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace ckv
