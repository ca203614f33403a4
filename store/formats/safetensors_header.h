// The JSON header of a safetensors file, checked against the bytes that follow it.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/safetensors.h"

namespace ckv {

inline constexpr uint64_t kSafetensorsLengthBytes = 8;  // before the header: its length, as u64

struct TensorHeader {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
  uint64_t begin_bytes = 0;  // into the data
  uint64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorHeader> tensors;  // in the order of their data
  std::map<std::string, std::string, std::less<>> metadata;
};

// Checks all that SafetensorsFile::Open promises of a header whose file has `data_bytes` after it.
//   InvalidArgument     says what is wrong and where.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header,
                                                         uint64_t data_bytes);

// A name from a file, fit for a message: in quotes, escaped, not endless.
std::string QuotedName(std::string_view name);

}  // namespace ckv
