// Turns safetensors files of cKV rows into a geometry and chunks ready to send.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/geometry.h"
#include "store/chunk.h"
#include "store/safetensors.h"
#include "store/safetensors_index.h"

namespace ckv {

inline constexpr uint32_t kRowFileTokenCountMax = 1u << 30;

// A file of rows: tensors "layers.{i}.ckv" [T, row] BF16 (or U8 [T, 656] for fp8_ds_mla) and
// "token_ids" [T] I32; __metadata__: model, revision, d_v, d_rope, rope_style ("interleaved" or
// "half"), rope_theta, rope_scaling (JSON, absent if none), softmax_scale, base_position. With
// d_rope 0 there is no rope_style (or it is "none") and no rope_theta. Nothing else may be in the
// file: a misspelt layer must not become a shorter model. Immutable; owns the mapping.
class RowFile {
 public:
  //   NotFound            no such file.
  //   InvalidArgument     names the tensor or the metadata key, and what it should be.
  static absl::StatusOr<RowFile> Open(const std::string& path);

  // The same over bytes in memory, which must outlive the result.
  static absl::StatusOr<RowFile> Parse(std::span<const std::byte> bytes);

  // The same tensors and metadata spread over the files of a folder (store/safetensors_index.h).
  //   NotFound, InvalidArgument  as OpenSafetensorsFolder and Open.
  static absl::StatusOr<RowFile> OpenFolder(const std::string& folder);

  const Geometry& geometry() const { return geometry_; }
  std::span<const int32_t> token_ids() const { return token_ids_; }
  uint64_t base_position() const { return base_position_; }
  // The rows of tokens [begin, end) of one layer, contiguous, at any address.
  std::span<const std::byte> Rows(uint32_t layer, uint32_t token_begin, uint32_t token_end) const;
  // Gives the memory of rows that were read back to the system: what is left of a large file is
  // what is being read.
  void DropPages(std::span<const std::byte> rows) const;

 private:
  explicit RowFile(SafetensorsSet set) : set_(std::move(set)) {}
  static absl::StatusOr<RowFile> Read(SafetensorsFile file);
  static absl::StatusOr<RowFile> Read(SafetensorsSet set);
  absl::Status ReadMetadata();
  absl::Status ReadTokens();
  absl::Status ReadLayers();

  SafetensorsSet set_;
  Geometry geometry_;
  std::vector<int32_t> token_ids_;
  uint64_t base_position_ = 0;
  std::vector<std::span<const std::byte>> layers_;
};

// Cuts `token_count` tokens into runs of `chunk_tokens` (the last may be shorter; 0 keeps one run).
// No tokens give one empty run, so that an empty file is an empty chunk.
struct TokenRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};
std::vector<TokenRange> CutFixed(uint32_t token_count, uint32_t chunk_tokens);

// The description of tokens [range) of `token_ids`, whose first stands at `base_position`, as the
// child of `parent`, with its id; checksums are of the rows that `rows(layer)` gives for the range.
ChunkInfo DescribeChunk(const Geometry& geometry, const ChunkId& parent, uint64_t base_position,
                        std::span<const int32_t> token_ids, TokenRange range,
                        absl::FunctionRef<std::span<const std::byte>(uint32_t layer)> rows);

// Parses DeepSeek's rope_scaling JSON (null, empty or of type "default": no YaRN). A key of type
// "yarn" that is not known is refused, since it could change the rotation.
//   InvalidArgument     names the key.
absl::StatusOr<std::optional<YarnParams>> ParseRopeScaling(std::string_view json);

}  // namespace ckv
