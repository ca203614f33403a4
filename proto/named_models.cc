#include "proto/named_models.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

// The factor of YaRN's attention (arXiv:2309.00071), as DeepSeek's code has it.
double YarnMscale(double factor, double mscale) { return 0.1 * mscale * std::log(factor) + 1; }

struct Config {
  const char* name;
  const char* model;
  uint32_t layers, heads;
  uint32_t nope, rope;  // qk_nope_head_dim, qk_rope_head_dim
  double theta;
  double yarn_factor;  // 0 means no YaRN
  double mscale;       // mscale and mscale_all_dim, equal in all of them
  double beta_fast;
  uint32_t index_heads = 0;  // index_n_heads; 0 if there is no index
  RopeStyle index_rope = RopeStyle::kHalfSplit;
};

// Rows of 512 + 64 values, interleaved. Index keys of 128 values, of which as many are rotated as
// of a row.
constexpr Config kConfigs[] = {
    {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 27, 16, 128, 64, 1e4, 40, 0.707, 32},
    {"glm-4.7-flash", "zai-org/GLM-4.7-Flash", 47, 20, 192, 64, 1e6, 0, 0, 32},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 128, 128, 64, 1e4, 40, 1, 32},
    {"deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2", 61, 128, 128, 64, 1e4, 40, 1, 32, 64},
    {"kimi-k2", "moonshotai/Kimi-K2-Instruct", 61, 64, 128, 64, 5e4, 32, 1, 1},
    {"glm-5", "zai-org/GLM-5", 78, 64, 192, 64, 1e6, 0, 0, 32, 32, RopeStyle::kInterleaved},
};

NamedModel ModelOf(const Config& config) {
  NamedModel model;
  model.name = config.name;
  model.heads = config.heads;
  Geometry& geometry = model.geometry;
  geometry.model = config.model;
  geometry.layers = config.layers;
  geometry.d_qk = 576;
  geometry.d_v = 512;
  geometry.d_rope = config.rope;
  geometry.rope.theta = config.theta;
  double scale = 1 / std::sqrt(static_cast<double>(config.nope + config.rope));
  if (config.yarn_factor > 0) {
    geometry.rope.yarn.emplace();
    geometry.rope.yarn->factor = config.yarn_factor;
    geometry.rope.yarn->beta_fast = config.beta_fast;
    geometry.rope.yarn->mscale = config.mscale;
    geometry.rope.yarn->mscale_all_dim = config.mscale;
    const double mscale = YarnMscale(config.yarn_factor, config.mscale);
    scale *= mscale * mscale;
  }
  geometry.softmax_scale = static_cast<float>(scale);
  if (config.index_heads > 0) {
    geometry.index.emplace();
    geometry.index->dim = 128;
    geometry.index->heads = config.index_heads;
    geometry.index->d_rope = config.rope;
    geometry.index->rope_style = config.index_rope;
    geometry.index->scale = static_cast<float>(1 / std::sqrt(128.0 * config.index_heads));
  }
  return model;
}

std::vector<NamedModel> AllModels() {
  std::vector<NamedModel> models;
  for (const Config& config : kConfigs) models.push_back(ModelOf(config));
  return models;
}

}  // namespace

std::span<const NamedModel> NamedModels() {
  static const auto* models = new std::vector<NamedModel>(AllModels());
  return *models;
}

absl::StatusOr<NamedModel> FindModel(std::string_view name) {
  const std::span<const NamedModel> models = NamedModels();
  const auto found = std::find_if(models.begin(), models.end(),
                                  [name](const NamedModel& model) { return model.name == name; });
  if (found != models.end()) return *found;
  std::string known;
  for (const NamedModel& model : models) {
    if (!known.empty()) known += ", ";
    known += model.name;
  }
  return absl::NotFoundError(absl::StrFormat("no model is named '%s'; known are: %s", name, known));
}

}  // namespace ckv
