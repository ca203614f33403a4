// Checks a geometry and derives values from it. ValidateGeometry checks, in order: the texts, the
// widths, the data type, the scale, RoPE with YaRN, and the index. ModelFingerprint hashes every
// field that shapes rows, in a fixed order: a change of it changes all chunk ids.

#include "proto/geometry.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/sha256.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint32_t kFp8ScaleGroup = 128;  // e4m3 values that share a scale in fp8_ds_mla

absl::Status Refuse(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("geometry: %s: %s", field, what));
}

bool IsPositive(double value) { return std::isfinite(value) && value > 0; }

absl::Status ValidateWidths(const Geometry& g) {
  if (g.layers == 0 || g.layers > kLayerCountMax) {
    return Refuse("layers", absl::StrFormat("%d, must be 1 to %d", g.layers, kLayerCountMax));
  }
  if (g.d_qk == 0 || g.d_qk > kRowWidthMax || g.d_qk % 2 != 0) {
    return Refuse("d_qk", absl::StrFormat("%d, must be even and at most %d", g.d_qk, kRowWidthMax));
  }
  if (g.d_v == 0 || g.d_v > g.d_qk) {
    return Refuse("d_v", absl::StrFormat("%d, must be 1 to d_qk = %d", g.d_v, g.d_qk));
  }
  if (g.d_rope > g.d_qk || g.d_rope % 2 != 0) {
    return Refuse("d_rope", absl::StrFormat("%d, must be even and at most d_qk", g.d_rope));
  }
  return absl::OkStatus();
}

absl::Status ValidateYarn(const YarnParams& yarn) {
  if (!IsPositive(yarn.factor) || yarn.factor < 1) return Refuse("yarn.factor", "must be >= 1");
  if (!IsPositive(yarn.original_max_position)) {
    return Refuse("yarn.original_max_position", "must be positive");
  }
  if (!IsPositive(yarn.beta_fast) || !IsPositive(yarn.beta_slow)) {
    return Refuse("yarn.beta", "must be positive");
  }
  if (!std::isfinite(yarn.mscale) || !std::isfinite(yarn.mscale_all_dim)) {
    return Refuse("yarn.mscale", "must be finite");
  }
  return absl::OkStatus();
}

absl::Status ValidateText(std::string_view field, std::string_view name) {
  if (name.size() > kModelNameBytesMax) {
    return Refuse(field, absl::StrFormat("more than %d characters", kModelNameBytesMax));
  }
  for (const char c : name) {
    if (c < 0x20 || c > 0x7e) return Refuse(field, "must be printable ASCII");
  }
  return absl::OkStatus();
}

absl::Status ValidateRope(const Geometry& g) {
  if (!std::isfinite(g.rope.theta)) return Refuse("rope_theta", "must be finite");
  if (g.rope.yarn) CKV_RETURN_IF_ERROR(ValidateYarn(*g.rope.yarn));
  switch (g.rope.style) {
    case RopeStyle::kNone:
      return absl::OkStatus();
    case RopeStyle::kInterleaved:
    case RopeStyle::kHalfSplit:
      break;
    default:
      return Refuse("rope_style", "unknown");
  }
  if (g.d_rope == 0) return Refuse("d_rope", "0, but rope_style is set: set both or neither");
  if (!IsPositive(g.rope.theta) || g.rope.theta <= 1) return Refuse("rope_theta", "must be > 1");
  return absl::OkStatus();
}

absl::Status ValidateIndex(const Geometry& g) {
  if (!g.index) return absl::OkStatus();
  const IndexShape& index = *g.index;
  // A key begins on 4 bytes, because its scale is an f32.
  if (index.dim == 0 || index.dim > kIndexDimMax || index.dim % 4 != 0) {
    return Refuse("index.dim", absl::StrFormat("%d, must be a multiple of 4 and at most %d",
                                               index.dim, kIndexDimMax));
  }
  if (index.heads == 0 || index.heads > kIndexHeadsMax) {
    return Refuse("index.heads",
                  absl::StrFormat("%d, must be 1 to %d", index.heads, kIndexHeadsMax));
  }
  switch (index.dtype) {
    case IndexDtype::kBf16:
    case IndexDtype::kFp8:
    case IndexDtype::kInt8:
      break;
    default:
      return Refuse("index.dtype", "unknown");
  }
  if (index.d_rope > index.dim || index.d_rope % 2 != 0) {
    return Refuse("index.d_rope", absl::StrFormat("%d, must be even and at most dim = %d",
                                                  index.d_rope, index.dim));
  }
  const bool rotates = index.rope_style != RopeStyle::kNone;
  if (index.rope_style > RopeStyle::kHalfSplit) return Refuse("index.rope_style", "unknown");
  if (rotates != (index.d_rope > 0)) {
    return Refuse("index.d_rope", absl::StrFormat("%d, but rope_style is %s: set both or neither",
                                                  index.d_rope, rotates ? "set" : "none"));
  }
  if (rotates && (!IsPositive(g.rope.theta) || g.rope.theta <= 1))
    return Refuse("rope_theta", "must be > 1");
  if (!IsPositive(index.scale)) return Refuse("index.scale", "must be positive");
  return absl::OkStatus();
}

}  // namespace

uint32_t Geometry::row_bytes() const {
  if (dtype == RowDtype::kBf16) return d_qk * 2;
  return d_v + d_v / kFp8ScaleGroup * 4 + d_rope * 2;
}

std::string Geometry::TensorName(uint32_t tensor) const {
  if (tensor < layers) return absl::StrFormat("layer %d", tensor);
  return absl::StrFormat("index keys of layer %d", tensor - layers);
}

std::string IndexShape::ToString() const {
  const char* const name = dtype == IndexDtype::kBf16  ? "bf16"
                           : dtype == IndexDtype::kFp8 ? "fp8"
                                                       : "int8";
  return absl::StrFormat("%dx%d %s", heads, dim, name);
}

std::string RowWidths::ToString() const {
  return absl::StrFormat("%d (%d+%d) %s", d_qk, d_v, d_rope,
                         dtype == RowDtype::kBf16 ? "bf16" : "fp8_ds_mla");
}

std::string Geometry::ToString() const {
  std::string rope_text = "no rope";
  if (rope.style != RopeStyle::kNone) {
    rope_text = absl::StrFormat(
        "%s theta %g%s", rope.style == RopeStyle::kInterleaved ? "interleaved" : "half", rope.theta,
        rope.yarn ? absl::StrFormat(" yarn x%g", rope.yarn->factor) : "");
  }
  const std::string index_text = index ? " index " + index->ToString() : "";
  return absl::StrFormat("%s@%s %dx%s %s%s", model, revision, layers, widths().ToString(),
                         rope_text, index_text);
}

absl::Status ValidateGeometry(const Geometry& g) {
  if (g.model.empty()) return Refuse("model", "must have at least 1 character");
  CKV_RETURN_IF_ERROR(ValidateText("model", g.model));
  CKV_RETURN_IF_ERROR(ValidateText("revision", g.revision));
  CKV_RETURN_IF_ERROR(ValidateWidths(g));
  if (g.dtype == RowDtype::kFp8DsMla) {
    if (g.d_v % kFp8ScaleGroup != 0 || g.d_v + g.d_rope != g.d_qk) {
      return Refuse("dtype", "fp8_ds_mla needs d_v % 128 = 0 and d_qk = d_v + d_rope");
    }
  } else if (g.dtype != RowDtype::kBf16) {
    return Refuse("dtype", "unknown");
  }
  if (!IsPositive(g.softmax_scale)) return Refuse("softmax_scale", "must be positive");
  CKV_RETURN_IF_ERROR(ValidateRope(g));
  return ValidateIndex(g);
}

absl::StatusOr<uint32_t> TensorOf(const Geometry& geometry, uint32_t layer, bool index_keys) {
  if (layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d; the geometry has %d", layer, geometry.layers));
  }
  if (!index_keys) return layer;
  if (!geometry.index) {
    return absl::InvalidArgumentError(
        absl::StrFormat("index keys of layer %d; the geometry has no index", layer));
  }
  return geometry.index_tensor(layer);
}

ChunkId ModelFingerprint(const Geometry& g) {
  Sha256 sha;
  sha.AppendString("ckv.geometry.1");
  sha.AppendString(g.model);
  sha.AppendString(g.revision);
  for (const uint32_t value : {g.layers, g.d_qk, g.d_v, g.d_rope}) sha.AppendValue(value);
  sha.AppendValue(static_cast<uint8_t>(g.dtype));
  sha.AppendValue(static_cast<uint8_t>(g.rope.style));
  sha.AppendValue(g.rope.theta);
  sha.AppendValue(static_cast<uint8_t>(g.rope.yarn.has_value()));
  if (g.rope.yarn) {
    const YarnParams& y = *g.rope.yarn;
    for (const double value : {y.factor, y.original_max_position, y.beta_fast, y.beta_slow,
                               y.mscale, y.mscale_all_dim}) {
      sha.AppendValue(value);
    }
  }
  sha.AppendValue(g.softmax_scale);
  if (g.index) {
    sha.AppendString("index");
    for (const uint32_t value : {g.index->dim, g.index->heads, g.index->d_rope})
      sha.AppendValue(value);
    sha.AppendValue(static_cast<uint8_t>(g.index->dtype));
    sha.AppendValue(static_cast<uint8_t>(g.index->rope_style));
    sha.AppendValue(g.index->scale);
  }
  return ChunkId{sha.Finish()};
}

std::string DescribeDifference(const Geometry& here, const Geometry& there) {
  std::vector<std::string> parts;
  const auto number = [&parts](const char* field, double a, double b) {
    if (a == b) return;
    // 9 digits distinguish any two floats, 17 any two doubles. Uses as few as show the difference.
    const bool short_form = absl::StrFormat("%.9g", a) != absl::StrFormat("%.9g", b);
    const int digits = short_form ? 9 : 17;
    parts.push_back(absl::StrFormat("%s: %.*g here, %.*g there", field, digits, a, digits, b));
  };
  const auto text = [&parts](const char* field, const std::string& a, const std::string& b) {
    if (a != b) parts.push_back(absl::StrFormat("%s: '%s' here, '%s' there", field, a, b));
  };
  text("model", here.model, there.model);
  text("revision", here.revision, there.revision);
  number("layers", here.layers, there.layers);
  number("d_qk", here.d_qk, there.d_qk);
  number("d_v", here.d_v, there.d_v);
  number("d_rope", here.d_rope, there.d_rope);
  number("dtype", static_cast<int>(here.dtype), static_cast<int>(there.dtype));
  number("rope_style", static_cast<int>(here.rope.style), static_cast<int>(there.rope.style));
  number("rope_theta", here.rope.theta, there.rope.theta);
  if (here.rope.yarn != there.rope.yarn) parts.push_back("yarn: differs");
  number("softmax_scale", here.softmax_scale, there.softmax_scale);
  if (here.index != there.index) {
    const auto name = [](const Geometry& g) { return g.index ? g.index->ToString() : "none"; };
    const std::string a = name(here), b = name(there);
    parts.push_back(a == b ? "index: differs" : absl::StrFormat("index: %s here, %s there", a, b));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace ckv
