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
#include "store/mapped_file.h"

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
  // MappedFile::DropPages; of bytes in memory nothing.
  void DropPages(std::span<const std::byte> part) const;

 private:
  SafetensorsFile() = default;
  absl::Status Read(std::span<const std::byte> bytes);

  std::shared_ptr<const MappedFile> mapping_;  // null for Parse
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

struct TensorToWrite {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
};

// Writes to a file without a name (or, where the file system has none, under a temporary one),
// which gets `path` when it is whole: a file of this name is whole or absent, and whoever is killed
// leaves nothing. Data starts 64-byte aligned.
//   InvalidArgument     what the reader would refuse: a shape that does not match its data, a name
//                       twice, text that is not UTF-8, a limit above.
//   Unavailable         the file cannot be written; says why.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string, std::less<>>& metadata,
                              std::span<const TensorToWrite> tensors);

// A tensor whose bytes come later.
struct TensorSpec {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
};

// The same file, written piece by piece: what need not fit in memory. Nothing of it is there unless
// Finish returned OK. Movable; one thread at a time.
class SafetensorsWriter {
 public:
  //   InvalidArgument, Unavailable  as WriteSafetensors; also a shape whose size overflows.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::map<std::string, std::string, std::less<>>& metadata,
      std::span<const TensorSpec> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // Bytes of a tensor, by its place among those given: behind what is there, or over it.
  //   InvalidArgument     they leave a gap, or go past the tensor's end.
  //   Unavailable         as WriteSafetensors.
  absl::Status Write(size_t tensor, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // The file is durable, and has its name.
  //   InvalidArgument     a tensor is not whole; says which.
  //   Unavailable         as WriteSafetensors.
  absl::Status Finish() &&;

 private:
  SafetensorsWriter() = default;
  absl::Status Open();
  absl::Status Failed() const;

  struct Tensor {
    std::string name;
    uint64_t begin_bytes = 0;  // in the file
    uint64_t size_bytes = 0;
    uint64_t written_bytes = 0;  // without a gap
  };
  std::string path_;
  std::string temporary_;  // its name; empty while it has none
  int fd_ = -1;
  std::vector<Tensor> tensors_;
};

}  // namespace ckv
