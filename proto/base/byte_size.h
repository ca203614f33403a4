// Sizes in bytes as people write them in a configuration: 512MiB, 64GiB, 4096.

#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

// Returns the bytes that `text` says: a whole number with B, KiB, MiB, GiB or TiB, with or without
// a blank between. A bare number is bytes.
//   InvalidArgument     it says none, or more than a uint64_t holds.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);

}  // namespace ckv
