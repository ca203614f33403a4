// Geometries of published models by short name, with the constants of their public configs.

#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "proto/geometry.h"

namespace ckv {

// Rows of 512 + 64 values, interleaved. The softmax scale of DeepSeek and Kimi is
// (128 + 64)^-1/2 x mscale^2 with mscale = 0.1 x m x ln(factor) + 1; of GLM it is (192 + 64)^-1/2.
// The revision is left empty.
//   NotFound            no geometry has that name.
inline absl::StatusOr<Geometry> NamedGeometry(std::string_view name) {
  struct Named {
    const char* name;
    const char* model;
    uint32_t layers;
    double theta;
    double yarn_factor;  // 0 means no YaRN
    double mscale;
    float softmax_scale;
  };
  constexpr Named kNamed[] = {
      {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 27, 1e4, 40, 0.707, 0.1147213868f},
      {"deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 1e4, 40, 1, 0.1352337789f},
      {"glm-5", "zai-org/GLM-5", 78, 1e6, 0, 0, 0.0625f},
  };
  for (const Named& named : kNamed) {
    if (name != named.name) continue;
    Geometry geometry;
    geometry.model = named.model;
    geometry.layers = named.layers;
    geometry.d_qk = 576;
    geometry.d_v = 512;
    geometry.d_rope = 64;
    geometry.rope.theta = named.theta;
    if (named.yarn_factor > 0) {
      geometry.rope.yarn.emplace();
      geometry.rope.yarn->factor = named.yarn_factor;
      geometry.rope.yarn->mscale = named.mscale;
      geometry.rope.yarn->mscale_all_dim = named.mscale;
    }
    geometry.softmax_scale = named.softmax_scale;
    return geometry;
  }
  return absl::NotFoundError(absl::StrFormat("no geometry is named '%s'", name));
}

}  // namespace ckv
