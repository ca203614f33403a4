// Reads and writes safetensors files: an 8-byte header length, a JSON header, raw tensors. Input
// files are untrusted.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/formats/file_bytes.h"
#include "store/formats/output_file.h"

namespace ckv {

enum class TensorDtype : uint8_t { kBf16, kF16, kF32, kF64, kI8, kU8, kI16, kI32, kI64, kBool };
// Returns the name used in headers, for example "BF16".
std::string_view TensorDtypeName(TensorDtype dtype);
// Returns the bytes of one element.
uint32_t TensorDtypeBytes(TensorDtype dtype);

// A tensor in an open file or in memory, which must outlive the view.
struct TensorView {
  TensorDtype dtype;
  std::vector<uint64_t> shape;  // row-major
  std::span<const std::byte> data;

  uint64_t element_count() const;
};

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100u << 20;  // the reference reader's limit
inline constexpr size_t kTensorRankMax = 8;
inline constexpr size_t kTensorCountMax = 1u << 20;

// An open file. Immutable, so any thread may read it. Movable; views are valid while it exists.
// View data may have any alignment: read it with memcpy. With FileReading::kParts, Open reads only
// the header, and only Copy reads the data of a view.
class SafetensorsFile {
 public:
  // Opens the file and checks its whole header: lengths, JSON, dtypes, and shapes whose product
  // does not overflow. Offsets must cover the data in order, without overlap or gap, in sizes that
  // match the shapes.
  //   NotFound            there is no such file.
  //   InvalidArgument     the file is unreadable or malformed; the message gives the reason.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path,
                                              FileReading reading = FileReading::kWhole);
  // Parses and checks a file in memory (used by the fuzz target). `bytes` must outlive the result.
  //   InvalidArgument     as for Open.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const std::byte> bytes);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  // Returns the tensor of this name.
  //   NotFound            there is none; the message lists existing names.
  absl::StatusOr<TensorView> Tensor(std::string_view name) const;
  // Copies `part`, a part of a view's data, to `out`. With kParts, each call reads the file.
  //   InvalidArgument     the file is no longer readable, or has changed since it was opened.
  absl::Status Copy(std::span<const std::byte> part, std::byte* out) const;
  // Checks that the file is unchanged since it was opened (FileBytes).
  absl::Status CheckUnchanged() const;
  // Returns whether `part` is within this file's bytes.
  bool Has(std::span<const std::byte> part) const;

 private:
  SafetensorsFile() = default;
  absl::Status Read(std::span<const std::byte> bytes);
  absl::Status Need(std::span<const std::byte> part) const;

  std::shared_ptr<const FileBytes> file_;  // null after Parse
  std::span<const std::byte> all_;         // the file's bytes, or those passed to Parse
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

struct TensorToWrite {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
};

// Writes a whole file through an OutputFile (store/formats/output_file.h), whatever kind of file
// `path` names. Data starts 64-byte aligned.
//   InvalidArgument     the reader would refuse the file. A shape does not match its data, a name
//                       occurs twice, text is not UTF-8, or a limit above is exceeded.
//   FailedPrecondition, Unavailable  as OutputFile.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string, std::less<>>& metadata,
                              std::span<const TensorToWrite> tensors);

// A tensor whose bytes are written later.
struct TensorSpec {
  std::string name;
  TensorDtype dtype;
  std::vector<uint64_t> shape;
};

// Writes a file as WriteSafetensors does, but part by part, for data that does not fit in memory.
// A regular file gets its name when Finish returns OK; otherwise no part of it remains.
// Movable; one thread at a time.
class SafetensorsWriter {
 public:
  // Starts a file with these tensors, whose bytes follow by Write.
  //   InvalidArgument     the reader would refuse the file, or the size of a shape overflows.
  //   FailedPrecondition, Unavailable  as OutputFile.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::map<std::string, std::string, std::less<>>& metadata,
      std::span<const TensorSpec> tensors);

  // Writes bytes of the tensor at index `tensor` in the list passed to Create. `offset_bytes` must
  // not exceed the end of the bytes written so far; earlier bytes may be overwritten.
  //   InvalidArgument     the bytes would leave a gap, or exceed the tensor.
  //   Unavailable         the file cannot be written; the message gives the reason.
  absl::Status Write(size_t tensor, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // Finishes the output: a regular file is made durable and gets its name.
  //   InvalidArgument     a tensor is incomplete; the message names it.
  //   Unavailable         the file cannot be written; the message gives the reason.
  absl::Status Finish() &&;

 private:
  explicit SafetensorsWriter(OutputFile file) : file_(std::move(file)) {}

  struct Tensor {
    std::string name;
    uint64_t begin_bytes = 0;  // in the file
    uint64_t size_bytes = 0;
    uint64_t written_bytes = 0;  // contiguous from the tensor's begin
  };
  OutputFile file_;
  std::vector<Tensor> tensors_;
};

}  // namespace ckv
