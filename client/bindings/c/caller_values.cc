#include "client/bindings/c/caller_values.h"

#include "absl/strings/str_format.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

absl::StatusOr<RowDtype> RowDtypeOf(uint32_t dtype) {
  if (dtype == CKV_DTYPE_BF16) return RowDtype::kBf16;
  if (dtype == CKV_DTYPE_FP8_DS_MLA) return RowDtype::kFp8DsMla;
  return absl::InvalidArgumentError(absl::StrFormat("row_dtype: %d is no type of rows", dtype));
}

absl::StatusOr<RopeStyle> RopeStyleOf(const char* field, uint32_t style) {
  if (style <= CKV_ROPE_HALF_SPLIT) return static_cast<RopeStyle>(style);
  return absl::InvalidArgumentError(absl::StrFormat("%s: %d is no style", field, style));
}

absl::StatusOr<std::optional<IndexShape>> IndexOf(const ckv_corpus_facts& facts) {
  if (facts.index_dim == 0) return std::nullopt;
  IndexShape index;
  index.dim = facts.index_dim;
  index.heads = facts.index_heads;
  if (facts.index_dtype < CKV_INDEX_BF16 || facts.index_dtype > CKV_INDEX_INT8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("index_dtype: %d is no type of index keys", facts.index_dtype));
  }
  index.dtype = static_cast<IndexDtype>(facts.index_dtype);
  index.d_rope = facts.index_d_rope;
  CKV_ASSIGN_OR_RETURN(index.rope_style, RopeStyleOf("index_rope_style", facts.index_rope_style));
  index.scale = static_cast<float>(facts.index_scale);
  return index;
}

}  // namespace

absl::StatusOr<Geometry> GeometryOf(const ckv_corpus_facts& facts) {
  if (facts.model == nullptr) return Missing("model");
  Geometry geometry;
  geometry.model = facts.model;
  geometry.revision = facts.revision == nullptr ? "" : facts.revision;
  geometry.layers = facts.layers;
  geometry.d_qk = facts.d_qk;
  geometry.d_v = facts.d_v;
  geometry.d_rope = facts.d_rope;
  CKV_ASSIGN_OR_RETURN(geometry.dtype, RowDtypeOf(facts.row_dtype));
  CKV_ASSIGN_OR_RETURN(geometry.rope.style, RopeStyleOf("rope_style", facts.rope_style));
  geometry.rope.theta = facts.rope_theta;
  if (facts.yarn_factor != 0) {
    geometry.rope.yarn.emplace();
    geometry.rope.yarn->factor = facts.yarn_factor;
    geometry.rope.yarn->original_max_position = facts.yarn_original_max_position;
    geometry.rope.yarn->beta_fast = facts.yarn_beta_fast;
    geometry.rope.yarn->beta_slow = facts.yarn_beta_slow;
    geometry.rope.yarn->mscale = facts.yarn_mscale;
    geometry.rope.yarn->mscale_all_dim = facts.yarn_mscale_all_dim;
  }
  geometry.softmax_scale = static_cast<float>(facts.softmax_scale);
  CKV_ASSIGN_OR_RETURN(geometry.index, IndexOf(facts));
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  return geometry;
}

absl::StatusOr<ExtraKeys> ExtraKeysFrom(const ckv_extra_key* keys, uint32_t count) {
  if (count > kExtraKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("extra_key_count: %d, limit %d", count, kExtraKeysMax));
  }
  ExtraKeys taken;
  CKV_RETURN_IF_ERROR(
      ForEachStruct("ckv_extra_key", keys, count, [&](const ckv_extra_key& key) -> absl::Status {
        if (key.digest == nullptr || key.digest_bytes == 0 ||
            key.digest_bytes > kExtraKeyDigestBytesMax) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "ckv_extra_key %d: digest: %s of %d bytes, it must have 1 to %d", taken.size(),
              key.digest == nullptr ? "NULL" : "one", key.digest_bytes, kExtraKeyDigestBytesMax));
        }
        taken.push_back({.begin = key.begin,
                         .token_count = key.token_count,
                         .digest = {static_cast<const char*>(key.digest), key.digest_bytes}});
        return absl::OkStatus();
      }));
  return taken;
}

}  // namespace ckv::c
