// safetensors files: an 8-byte header length, a JSON header, raw tensors. Read with distrust.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

enum class TensorDtype : uint8_t { kBf16, kF16, kF32, kF64, kI8, kU8, kI16, kI32, kI64, kBool };
std::string_view TensorDtypeName(TensorDtype dtype);  // "BF16"
uint32_t TensorDtypeBytes(TensorDtype dtype);

// A tensor inside an open file or in memory; borrowed from it.
struct TensorView {
  TensorDtype dtype;
  std::vector<uint64_t> shape;  // row-major
  std::span<const std::byte> data;

  uint64_t element_count() const;
};

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100u << 20;  // the reference reader's limit
inline constexpr size_t kTensorRankMax = 8;
inline constexpr size_t kTensorCountMax = 1u << 20;

// An open file; immutable, so any thread may read it. Views live as long as it, and their data may
// start at any address: read it by memcpy. Whoever shortens the file while it is mapped ends the
// process (SIGBUS); WriteSafetensors replaces files and never shortens one.
class SafetensorsFile {
 public:
  // Maps the file and checks the whole header: lengths, JSON, dtypes, shapes whose product does
  // not overflow, offsets inside the file, ascending, without overlap or gap, sizes that match.
  //   NotFound            no such file.
  //   InvalidArgument     says what is wrong and where; also a file that cannot be read.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // The same over bytes in memory (the fuzz target's door); `bytes` must outlive the result.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const std::byte> bytes);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  //   NotFound            lists the names there are.
  absl::StatusOr<TensorView> Tensor(std::string_view name) const;

 private:
  SafetensorsFile() = default;
  absl::Status Read(std::span<const std::byte> bytes);

  std::shared_ptr<const void> mapping_;  // unmaps; null for Parse
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

struct TensorToWrite {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
};

// Writes to a temporary name, then renames: a file of this name is whole or absent. Data starts
// 64-byte aligned.
//   InvalidArgument     what the reader would refuse: a shape that does not match its data, a name
//                       twice, text that is not UTF-8, a limit above.
//   Unavailable         the file cannot be written; says why.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string, std::less<>>& metadata,
                              std::span<const TensorToWrite> tensors);

}  // namespace ckv
