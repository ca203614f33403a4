// A kept choice of a kernel target (attention/target/kernel_choice.h) as text: a part of a profile,
// and a file of its own.

#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "attention/target/target_choice.h"

namespace ckv {

// As an object of a profile. The name of every rate ends in its unit.
nlohmann::ordered_json KernelRecordJson(const KernelRecord& record);
// Reads what KernelRecordJson makes.
//   InvalidArgument     it is no such object, or a rate is negative or not finite. Names the field.
absl::StatusOr<KernelRecord> ReadKernelRecord(const nlohmann::json& object);

// As a whole file: the object, and a line with the SHA-256 of all before it.
std::string FormatKernelRecord(const KernelRecord& record);
// Reads what FormatKernelRecord writes.
//   DataLoss            a byte is missing or another than was written.
//   InvalidArgument     as ReadKernelRecord: somebody else wrote it.
absl::StatusOr<KernelRecord> ParseKernelRecord(std::string_view text);
// A file takes some 400 bytes, and more are not read.
inline constexpr size_t kKernelRecordBytesMax = 4096;

}  // namespace ckv
