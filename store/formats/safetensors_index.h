// Tensors spread over several safetensors files of one folder, as model.safetensors.index.json
// tells them.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/safetensors.h"

namespace ckv {

inline constexpr std::string_view kSafetensorsIndexName = "model.safetensors.index.json";
inline constexpr uint64_t kSafetensorsIndexBytesMax = 16u << 20;
// Each is mapped for as long as the folder is open.
inline constexpr size_t kSafetensorsFileCountMax = 4096;

struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> file_of;  // tensor name to file name
  std::set<std::string, std::less<>> files;
  std::optional<uint64_t> total_bytes;  // of all tensors, where metadata.total_size says it
};

// {"metadata": {"total_size": 123, ...}, "weight_map": {"layers.0.ckv": "a.safetensors", ...}}.
// File names are plain ones of the same folder: without '/', and neither "." nor "..".
//   InvalidArgument     not such an object; a name, tensor or file, that is not plain or of more
//                       than 255 bytes; more than kSafetensorsFileCountMax files or kTensorCountMax
//                       tensors.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json);

// All tensors of the files, as if they stood in one. Views live as long as `files`.
struct SafetensorsSet {
  std::vector<SafetensorsFile> files;
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;  // of all files together
};

// Opens `folder`'s index and the files that it names.
//   NotFound            no index, or a file that it names is not there.
//   InvalidArgument     ParseSafetensorsIndex and SafetensorsFile::Open; a tensor that is missing
//   in
//                       its file, or is in one that the index does not place it in; metadata of two
//                       files that differ; another total size. Names the file.
absl::StatusOr<SafetensorsSet> OpenSafetensorsFolder(const std::string& folder);

}  // namespace ckv
