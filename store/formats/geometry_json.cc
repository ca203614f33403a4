#include "store/formats/geometry_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/status.h"
#include "store/formats/json_fields.h"

namespace ckv {
namespace {

absl::StatusOr<YarnParams> DecodeYarn(const nlohmann::json& object, std::string_view where) {
  const JsonFields fields(object, absl::StrCat(std::string(where), "yarn."));
  CKV_RETURN_IF_ERROR(fields.CheckKeys(
      {"factor", "original_max_position", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}));
  YarnParams yarn;
  CKV_RETURN_IF_ERROR(fields.Read("factor", yarn.factor));
  CKV_RETURN_IF_ERROR(fields.Read("original_max_position", yarn.original_max_position));
  CKV_RETURN_IF_ERROR(fields.Read("beta_fast", yarn.beta_fast));
  CKV_RETURN_IF_ERROR(fields.Read("beta_slow", yarn.beta_slow));
  CKV_RETURN_IF_ERROR(fields.Read("mscale", yarn.mscale));
  CKV_RETURN_IF_ERROR(fields.Read("mscale_all_dim", yarn.mscale_all_dim));
  return yarn;
}

const char* NameOf(RopeStyle style) {
  return style == RopeStyle::kNone          ? "none"
         : style == RopeStyle::kInterleaved ? "interleaved"
                                            : "half";
}

absl::StatusOr<RopeStyle> DecodeStyle(const JsonFields& fields) {
  std::string name;
  CKV_RETURN_IF_ERROR(fields.Read("rope_style", name));
  for (const RopeStyle style : {RopeStyle::kNone, RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    if (name == NameOf(style)) return style;
  }
  return fields.Refuse("rope_style", "must be none, interleaved or half");
}

const char* NameOf(IndexDtype dtype) {
  return dtype == IndexDtype::kBf16 ? "bf16" : dtype == IndexDtype::kFp8 ? "fp8" : "int8";
}

}  // namespace

nlohmann::json EncodeIndex(const IndexShape& index) {
  return {{"dim", index.dim},
          {"heads", index.heads},
          {"dtype", NameOf(index.dtype)},
          {"d_rope", index.d_rope},
          {"rope_style", NameOf(index.rope_style)},
          {"scale", double{index.scale}}};  // exact both ways
}

absl::StatusOr<IndexShape> DecodeIndex(const nlohmann::json& object, std::string_view where) {
  const JsonFields fields(object, std::string(where));
  CKV_RETURN_IF_ERROR(fields.CheckKeys({"dim", "heads", "dtype", "d_rope", "rope_style", "scale"}));
  IndexShape index;
  std::string dtype;
  double scale = 0;
  CKV_RETURN_IF_ERROR(fields.Read("dim", index.dim));
  CKV_RETURN_IF_ERROR(fields.Read("heads", index.heads));
  CKV_RETURN_IF_ERROR(fields.Read("dtype", dtype));
  CKV_RETURN_IF_ERROR(fields.Read("d_rope", index.d_rope));
  CKV_ASSIGN_OR_RETURN(index.rope_style, DecodeStyle(fields));
  CKV_RETURN_IF_ERROR(fields.Read("scale", scale));
  index.scale = static_cast<float>(scale);
  for (const IndexDtype each : {IndexDtype::kBf16, IndexDtype::kFp8, IndexDtype::kInt8}) {
    if (dtype != NameOf(each)) continue;
    index.dtype = each;
    return index;
  }
  return fields.Refuse("dtype", "must be bf16, fp8 or int8");
}

nlohmann::json EncodeGeometry(const Geometry& g) {
  nlohmann::json object = {
      {"model", g.model},
      {"revision", g.revision},
      {"layers", g.layers},
      {"d_qk", g.d_qk},
      {"d_v", g.d_v},
      {"d_rope", g.d_rope},
      {"dtype", g.dtype == RowDtype::kBf16 ? "bf16" : "fp8_ds_mla"},
      {"rope_style", NameOf(g.rope.style)},
      {"rope_theta", g.rope.theta},
      {"softmax_scale", double{g.softmax_scale}},  // exact both ways
  };
  if (g.rope.yarn) {
    const YarnParams& y = *g.rope.yarn;
    object["yarn"] = {
        {"factor", y.factor},       {"original_max_position", y.original_max_position},
        {"beta_fast", y.beta_fast}, {"beta_slow", y.beta_slow},
        {"mscale", y.mscale},       {"mscale_all_dim", y.mscale_all_dim}};
  }
  if (g.index) object["index"] = EncodeIndex(*g.index);
  return object;
}

absl::StatusOr<Geometry> DecodeGeometry(const nlohmann::json& object, std::string_view where) {
  const JsonFields fields(object, std::string(where));
  CKV_RETURN_IF_ERROR(fields.CheckKeys({"model", "revision", "layers", "d_qk", "d_v", "d_rope",
                                        "dtype", "rope_style", "rope_theta", "softmax_scale"},
                                       /*optional=*/{"yarn", "index"}));
  Geometry g;
  std::string dtype;
  double softmax_scale = 0;
  CKV_RETURN_IF_ERROR(fields.Read("model", g.model));
  CKV_RETURN_IF_ERROR(fields.Read("revision", g.revision));
  CKV_RETURN_IF_ERROR(fields.Read("layers", g.layers));
  CKV_RETURN_IF_ERROR(fields.Read("d_qk", g.d_qk));
  CKV_RETURN_IF_ERROR(fields.Read("d_v", g.d_v));
  CKV_RETURN_IF_ERROR(fields.Read("d_rope", g.d_rope));
  CKV_RETURN_IF_ERROR(fields.Read("dtype", dtype));
  CKV_ASSIGN_OR_RETURN(g.rope.style, DecodeStyle(fields));
  CKV_RETURN_IF_ERROR(fields.Read("rope_theta", g.rope.theta));
  CKV_RETURN_IF_ERROR(fields.Read("softmax_scale", softmax_scale));
  g.softmax_scale = static_cast<float>(softmax_scale);
  if (dtype != "bf16" && dtype != "fp8_ds_mla") {
    return fields.Refuse("dtype", "must be bf16 or fp8_ds_mla");
  }
  g.dtype = dtype == "bf16" ? RowDtype::kBf16 : RowDtype::kFp8DsMla;
  if (fields.Has("yarn")) {
    CKV_ASSIGN_OR_RETURN(g.rope.yarn, DecodeYarn(fields.At("yarn"), where));
  }
  if (fields.Has("index")) {
    CKV_ASSIGN_OR_RETURN(
        g.index, DecodeIndex(fields.At("index"), absl::StrCat(std::string(where), "index.")));
  }
  return g;
}

}  // namespace ckv
