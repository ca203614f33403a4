// Opens tensors that are spread over several safetensors files of one folder, as its
// model.safetensors.index.json says.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "store/formats/safetensors.h"

namespace ckv {

inline constexpr std::string_view kSafetensorsIndexName = "model.safetensors.index.json";
inline constexpr uint64_t kSafetensorsIndexBytesMax = 16u << 20;
// The most files of a set. Each is open while the set lives.
inline constexpr size_t kSafetensorsFileCountMax = 4096;

struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> file_of;  // tensor name to file name
  std::set<std::string, std::less<>> files;
  std::optional<uint64_t> total_bytes;  // size of all tensors, if metadata.total_size says it
};

// Parses an index:
//   {"metadata": {"total_size": 123, ...}, "weight_map": {"layers.0.ckv": "a.safetensors", ...}}
// File names are names in the same folder: without '/', and neither "." nor "..".
//   InvalidArgument     it is not an index, or the name of a tensor or a file is not plain, or is
//                       longer than 255 bytes. Or there are more than kSafetensorsFileCountMax
//                       files or kTensorCountMax tensors.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json);

// All tensors of the files, as if they were in one. Views live as long as `files`.
struct SafetensorsSet {
  std::vector<SafetensorsFile> files;
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;  // the metadata of all files together
};

// Opens the index of `folder` and the files that it names.
//   NotFound            there is no index, or a file that it names is missing.
//   InvalidArgument     the index or a file is not valid. A tensor is missing in its file, or is in
//                       a file the index does not place it in. Or the metadata of two files differ,
//                       or the total size is another. The message names the file.
absl::StatusOr<SafetensorsSet> OpenSafetensorsFolder(const std::string& folder,
                                                     FileReading reading = FileReading::kWhole);

}  // namespace ckv
