// .npy files, one array each as NumPy saves it (NEP 1): a magic, a header that is a Python dict,
// the elements. Read with distrust.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/mapped_file.h"

namespace ckv {

inline constexpr size_t kNpyHeaderBytesMax = 64u << 10;  // NumPy itself reads at most 10,000
inline constexpr uint32_t kNpyItemBytesMax = 16;
inline constexpr size_t kNpyRankMax = 8;

// Little-endian elements in C order: what a dtype of NumPy's array protocol says of their bytes.
struct NpyDtype {
  char kind = 0;            // 'i', 'u', 'f', 'b', or 'V': bytes that NumPy has no type for (bf16)
  uint32_t item_bytes = 0;  // 1 to kNpyItemBytesMax

  std::string ToString() const;  // "f4"
  friend bool operator==(const NpyDtype&, const NpyDtype&) = default;
};

// An open file; immutable, so any thread may read it. Its data may start at any address: read it by
// memcpy.
class NpyFile {
 public:
  // Maps the file and checks all of its header: version 1.0, 2.0 or 3.0; the three keys of the
  // format and no other; plain numbers, of no other byte order; C order; a shape whose product does
  // not overflow and takes the bytes that follow, no more and no less.
  //   NotFound            no such file.
  //   InvalidArgument     says what is wrong; also a file that cannot be read. Both name the path.
  static absl::StatusOr<NpyFile> Open(const std::string& path);
  // The same over bytes in memory (the fuzz target's door); `bytes` must outlive the result.
  static absl::StatusOr<NpyFile> Parse(std::span<const std::byte> bytes);

  const NpyDtype& dtype() const { return dtype_; }
  const std::vector<uint64_t>& shape() const { return shape_; }
  std::string ShapeText() const;  // "f4 [27, 4096, 576]"
  std::span<const std::byte> data() const { return data_; }
  // MappedFile::DropPages; of bytes in memory nothing.
  void DropPages(std::span<const std::byte> part) const;

 private:
  NpyFile() = default;
  absl::Status Read(std::span<const std::byte> bytes);
  absl::Status ReadHeader(std::string_view header);

  std::shared_ptr<const MappedFile> mapping_;  // null for Parse
  NpyDtype dtype_;
  std::vector<uint64_t> shape_;
  std::span<const std::byte> data_;
};

}  // namespace ckv
