// The JSON header of a safetensors file, checked against the bytes that follow it.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/formats/safetensors.h"

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

// Parses a header and checks everything SafetensorsFile::Open promises. `data_bytes` is the number
// of bytes that follow the header in its file.
//   InvalidArgument     something is wrong; the message says what and where.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header,
                                                         uint64_t data_bytes);

// Returns a name from a file in a form fit for a message: in quotes, escaped, cut if it is long.
std::string QuotedName(std::string_view name);

}  // namespace ckv
