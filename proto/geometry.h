// The shape of a model's cKV rows. Peers whose geometry differs refuse each other (I7).

#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace ckv {

// Limits on a geometry from a peer or a file. They are checked before any allocation depends on it.
inline constexpr uint32_t kLayerCountMax = 512;
inline constexpr uint32_t kChunkTensorCountMax = 2 * kLayerCountMax;
inline constexpr uint32_t kRowWidthMax = 1024;  // values per row; DeepSeek's 576 is the widest now
inline constexpr uint32_t kIndexDimMax = 256;
inline constexpr uint32_t kIndexHeadsMax = 128;
inline constexpr uint32_t kModelNameBytesMax = 256;

enum class RowDtype : uint8_t {
  kBf16 = 1,
  // FlashMLA's 656-byte row: d_v e4m3 values, one f32 scale per 128 of them (a power of two),
  // d_rope bf16 values. A splice rotates only the bf16 band.
  kFp8DsMla = 2,
};

enum class RopeStyle : uint8_t {
  kNone = 0,         // no positional band: a splice rotates nothing
  kInterleaved = 1,  // pairs (2i, 2i+1): DeepSeek, Kimi, GLM
  kHalfSplit = 2,    // pairs (i, i + d_rope / 2)
};

// YaRN frequency correction (arXiv:2309.00071), with the names of DeepSeek's config.json.
struct YarnParams {
  double factor = 1;
  double original_max_position = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  // The two softmax factors. They do not affect a rotation by a delta, which has amplitude 1. They
  // affect the softmax through Geometry::softmax_scale, which already includes mscale^2.
  double mscale = 1;
  double mscale_all_dim = 0;

  friend bool operator==(const YarnParams&, const YarnParams&) = default;
};

struct RopeParams {
  RopeStyle style = RopeStyle::kInterleaved;
  double theta = 10000;
  std::optional<YarnParams> yarn;  // if unset, plain frequencies

  friend bool operator==(const RopeParams&, const RopeParams&) = default;
};

enum class IndexDtype : uint8_t {
  kBf16 = 1,
  kFp8 = 2,   // e4m3 values, and one f32 scale a key
  kInt8 = 3,  // signed values, and one f32 scale a key
};

// The index of sparse attention (DeepSeek-V3.2, GLM-5): at each layer one key a token, by which
// queries select the rows that they attend. The score of a key k for a query, which has a vector
// q_h and a weight w_h for each head h:
//
//   score = scale x sum over h of w_h x max(0, q_h . k)
//
// Source: DeepSeek-V3.2-Exp's report, equation 1. Its engines quantize keys in this form.
struct IndexShape {
  uint32_t dim = 0;    // values of a key, and of each query vector: 128
  uint32_t heads = 0;  // query vectors: 64
  IndexDtype dtype = IndexDtype::kFp8;
  // The first d_rope values are rotated by their position, with the geometry's theta and YaRN. 0
  // only if rope_style is kNone.
  uint32_t d_rope = 0;
  RopeStyle rope_style = RopeStyle::kHalfSplit;
  float scale = 0;  // 1 / sqrt(dim x heads), if the engine has not put it into the weights

  friend bool operator==(const IndexShape&, const IndexShape&) = default;
  // Returns the bytes of one key as stored: 132 for 128 fp8 values.
  uint32_t key_bytes() const { return dtype == IndexDtype::kBf16 ? dim * 2 : dim + 4; }
  // Returns "64x128 fp8".
  std::string ToString() const;
};

// The widths of rows. A kernel's time depends on them, so models with the same widths share
// constants.
struct RowWidths {
  uint32_t d_qk = 0, d_v = 0, d_rope = 0;
  RowDtype dtype = RowDtype::kBf16;

  friend auto operator<=>(const RowWidths&, const RowWidths&) = default;
  // Returns "576 (512+64) bf16", as in Geometry::ToString.
  std::string ToString() const;
};

// A value type. Two geometries are equal iff every field is; compare with ==.
struct Geometry {
  std::string model;     // "deepseek-ai/DeepSeek-V2-Lite"
  std::string revision;  // the weights' revision; rows of two revisions are never mixed
  uint32_t layers = 0;
  uint32_t d_qk = 0;  // values per row, and per query row
  uint32_t d_v = 0;   // the first d_v values of a row are also its value
  // The last d_rope values of a row are its RoPE band. d_rope is even, and 0 only if rope.style is
  // kNone.
  uint32_t d_rope = 0;
  RowDtype dtype = RowDtype::kBf16;
  RopeParams rope;
  float softmax_scale = 0;          // 1 / sqrt(nope + rope) x mscale^2, not 1 / sqrt(d_qk)
  std::optional<IndexShape> index;  // if set, each layer also has index keys

  friend bool operator==(const Geometry&, const Geometry&) = default;

  RowWidths widths() const { return {d_qk, d_v, d_rope, dtype}; }
  // Returns the bytes of one cKV row as stored: 1152 for DeepSeek bf16, 656 for fp8_ds_mla.
  uint32_t row_bytes() const;
  // Returns the bytes of one query row on the wire (bf16, for any row dtype): 1152 for DeepSeek.
  uint32_t query_row_bytes() const { return d_qk * 2; }
  // Returns the bytes of one partial row on the wire: o in bf16 (1032 for DeepSeek) or f32 (2056),
  // m, l.
  uint32_t partial_row_bytes(bool f32) const { return d_v * (f32 ? 4 : 2) + 8; }
  // A chunk stores tensors, each [token][row]. Tensor i has the rows of layer i. Behind them,
  // tensor layers + i has the index keys of layer i.
  uint32_t tensor_count() const { return index ? 2 * layers : layers; }
  // Returns the tensor of a layer's index keys. Only if there is an index.
  uint32_t index_tensor(uint32_t layer) const { return layers + layer; }
  // Returns a name for messages: "layer 3", "index keys of layer 3".
  std::string TensorName(uint32_t tensor) const;
  // Returns the bytes of one token in a tensor, which is below tensor_count().
  uint32_t tensor_row_bytes(uint32_t tensor) const {
    return tensor < layers ? row_bytes() : index->key_bytes();
  }
  // Returns the bytes of one token in all tensors.
  uint64_t token_bytes() const {
    return (uint64_t{row_bytes()} + (index ? index->key_bytes() : 0)) * layers;
  }

  // Returns one line for logs and errors, for example "deepseek-v3@abc 61x576 (512+64) bf16
  // interleaved theta 10000 yarn x40 index 64x128 fp8".
  std::string ToString() const;
};

// Checks every width, count and scale against the limits above and against each other. Names must
// be printable ASCII, because logs, JSON and protobuf strings contain them. No number may be NaN,
// even an unused one, because a geometry with a NaN would not equal itself.
//   InvalidArgument     names the field and the limit.
absl::Status ValidateGeometry(const Geometry& geometry);

// Returns the tensor of a layer's rows or index keys, for a caller that is not trusted.
//   InvalidArgument     there is no such layer, or the geometry has no index.
absl::StatusOr<uint32_t> TensorOf(const Geometry& geometry, uint32_t layer, bool index_keys);

// Returns the SHA-256 of an unambiguous encoding of every field. It is the model's part of every
// chunk id.
ChunkId ModelFingerprint(const Geometry& geometry);

// Returns the fields that differ, for the error of a refused session: "d_qk: 576 here, 512 there".
// Returns an empty string if the geometries are equal.
std::string DescribeDifference(const Geometry& here, const Geometry& there);

}  // namespace ckv
