// Reads .npy files, one array each as NumPy saves it (NEP 1): a magic, a header that is a Python
// dict, the elements. The file is not trusted.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/formats/file_bytes.h"

namespace ckv {

inline constexpr size_t kNpyHeaderBytesMax = 64u << 10;  // NumPy itself reads at most 10,000
inline constexpr uint32_t kNpyItemBytesMax = 16;
inline constexpr size_t kNpyRankMax = 8;

// The type of little-endian elements, as NumPy's array protocol names it.
struct NpyDtype {
  char kind = 0;            // 'i', 'u', 'f', 'b', or 'V' for what NumPy has no type for (bf16)
  uint32_t item_bytes = 0;  // 1 to kNpyItemBytesMax

  // Returns "f4", for example.
  std::string ToString() const;
  friend bool operator==(const NpyDtype&, const NpyDtype&) = default;
};

// An open file. Immutable, so any thread may read it. Movable; spans it returns live as long as it
// does. Data may start at any address: read it by memcpy. With FileReading::kParts it is read only
// by Copy.
class NpyFile {
 public:
  // Opens the file and checks its whole header. The version is 1.0, 2.0 or 3.0, and the keys are
  // the three of the format and no other. Numbers are plain and little-endian, in C order, and the
  // shape takes exactly the bytes that follow. Messages name the path.
  //   NotFound            there is no such file.
  //   InvalidArgument     it cannot be read, or something is wrong; the message says what.
  static absl::StatusOr<NpyFile> Open(const std::string& path,
                                      FileReading reading = FileReading::kWhole);
  // Checks the bytes of a file that is in memory (used by the fuzz target). They must outlive the
  // result.
  //   InvalidArgument     as for Open.
  static absl::StatusOr<NpyFile> Parse(std::span<const std::byte> bytes);

  const NpyDtype& dtype() const { return dtype_; }
  const std::vector<uint64_t>& shape() const { return shape_; }
  // Returns the type and shape for a message: "f4 [27, 4096, 576]".
  std::string ShapeText() const;
  std::span<const std::byte> data() const { return data_; }
  // Copies `part` of the spans above to `out`. With kParts it is read from the file on each call.
  //   InvalidArgument     the file cannot be read any more, or changed since it was opened.
  absl::Status Copy(std::span<const std::byte> part, std::byte* out) const;
  // Checks that the file is unchanged since it was opened (FileBytes).
  absl::Status CheckUnchanged() const;

 private:
  NpyFile() = default;
  absl::Status Read(std::span<const std::byte> bytes);
  absl::Status Need(std::span<const std::byte> part) const;
  absl::Status ReadHeader(std::string_view header);

  std::shared_ptr<const FileBytes> file_;  // null after Parse
  NpyDtype dtype_;
  std::vector<uint64_t> shape_;
  std::span<const std::byte> data_;
};

}  // namespace ckv
