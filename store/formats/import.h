// Reads safetensors files of cKV rows as a geometry, token ids and rows, and cuts them into chunks.

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
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "store/formats/safetensors.h"
#include "store/formats/safetensors_index.h"
#include "store/memory/chunk.h"

namespace ckv {

inline constexpr uint32_t kRowFileTokenCountMax = 1u << 30;

// A file with the rows of T tokens:
//
//   tensor "layers.{i}.ckv"   BF16 [T, d_qk], or U8 [T, 656] for fp8_ds_mla; one for each layer
//   tensor "layers.{i}.index_k"   with an index, one for each layer: BF16 [T, dim], or U8
//                             [T, dim + 4], the scale last
//   tensor "token_ids"        I32 or I64 [T], ids from 0 to 2^31 - 1 (proto/token_id.h)
//   __metadata__              model, revision, d_v, d_rope, rope_style ("interleaved" or "half"),
//                             rope_theta, rope_scaling (JSON; left out if there is none),
//                             softmax_scale, base_position; index if there is one (JSON,
//                             store/formats/geometry_json.h), and extra_keys if there are some
//                             (JSON, store/formats/extra_keys_json.h)
//
// With d_rope 0, rope_style is left out or "none"; rope_theta and rope_scaling are not read. The
// file may have no other tensors: a misspelt layer must not become a shorter model. Other metadata
// is ignored.
//
// Immutable, so any thread may read it. Movable. It owns the bytes, except after Parse, so its
// spans are valid as long as it lives. With FileReading::kParts, only Copy reads rows.
class RowFile {
 public:
  // Opens and checks a file.
  //   NotFound            there is no such file.
  //   InvalidArgument     the file is not as above; the message names the tensor or the metadata
  //                       key, and the expected value.
  static absl::StatusOr<RowFile> Open(const std::string& path,
                                      FileReading reading = FileReading::kWhole);

  // Checks the bytes of a file that is in memory; they must outlive the result.
  //   InvalidArgument     as for Open.
  static absl::StatusOr<RowFile> Parse(std::span<const std::byte> bytes);

  // Opens the same tensors and metadata spread over several files of a folder, which its index
  // lists (store/formats/safetensors_index.h).
  //   NotFound            there is no index, or a file that it names is missing.
  //   InvalidArgument     the index or a file is malformed; the message names the file.
  static absl::StatusOr<RowFile> OpenFolder(const std::string& folder,
                                            FileReading reading = FileReading::kWhole);

  const Geometry& geometry() const { return geometry_; }
  std::span<const int32_t> token_ids() const { return token_ids_; }
  // Sorted; positions count from the first token.
  std::span<const ExtraKey> extra_keys() const { return extra_keys_; }
  // The canonical position of the first token.
  uint64_t base_position() const { return base_position_; }
  // Returns the rows of tokens [token_begin, token_end) of a tensor of the geometry. They are
  // contiguous and may start at any address.
  std::span<const std::byte> Rows(uint32_t tensor, uint32_t token_begin, uint32_t token_end) const;
  // Copies rows to `out`. With kParts, each call reads them from the file, so that a large file
  // takes no memory.
  //   InvalidArgument     the file can no longer be read, or changed since it was opened.
  absl::Status Copy(std::span<const std::byte> rows, std::byte* out) const;
  // Checks that all files are unchanged since they were opened (FileBytes).
  absl::Status CheckUnchanged() const;

 private:
  explicit RowFile(SafetensorsSet set) : set_(std::move(set)) {}
  static absl::StatusOr<RowFile> Read(SafetensorsFile file);
  static absl::StatusOr<RowFile> Read(SafetensorsSet set);
  absl::Status ReadMetadata();
  absl::Status ReadTokens();
  absl::Status ReadExtraKeys();
  absl::Status ReadIndex();
  absl::Status ReadLayers();
  absl::Status ReadIndexKeys();

  SafetensorsSet set_;
  Geometry geometry_;
  std::vector<int32_t> token_ids_;
  ExtraKeys extra_keys_;
  uint64_t base_position_ = 0;
  std::vector<std::span<const std::byte>> tensors_;  // as the geometry counts them
};

// Returns how a file of rows has a tensor of a geometry, with the rows of `token_count` tokens.
TensorSpec RowTensorSpec(const Geometry& geometry, uint32_t tensor, uint64_t token_count);

// Tokens [begin, end) of a sequence.
struct TokenRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Cuts `token_count` tokens into ranges of `chunk_tokens`; the last may be shorter. If
// `chunk_tokens` is 0, there is one range. No tokens give one empty range, so that an empty file
// becomes an empty chunk.
std::vector<TokenRange> CutFixed(uint32_t token_count, uint32_t chunk_tokens);

// Describes the tokens `range` of `token_ids` as a chunk that follows `parent`, with its id and its
// checksums. The first of `token_ids` is at `base_position`. `tensor(t)` returns the range's rows
// of a tensor. `extra_keys` are those of all of `token_ids`, sorted.
ChunkInfo DescribeChunk(const Geometry& geometry, const ChunkId& parent, uint64_t base_position,
                        std::span<const int32_t> token_ids, TokenRange range,
                        absl::FunctionRef<std::span<const std::byte>(uint32_t tensor)> tensor,
                        std::span<const ExtraKey> extra_keys = {});

// Parses DeepSeek's rope_scaling JSON. Returns nullopt if there is no YaRN: the text is "null" or
// empty, or its type is "default". With type "yarn", an unknown key is refused, because it could
// change the rotation.
//   InvalidArgument     the message names the key.
absl::StatusOr<std::optional<YarnParams>> ParseRopeScaling(std::string_view json);

}  // namespace ckv
