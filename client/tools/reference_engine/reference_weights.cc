#include "client/tools/reference_engine/reference_weights.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "proto/base/sha256.h"
#include "proto/ids.h"

namespace ckv {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) over a counter.
uint64_t Mix(uint64_t counter) {
  uint64_t z = counter + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Mean 0, variance 1. Four uniforms on 0..65535 have mean 131070 and variance (2^32 - 1) / 3.
double UnitNormal(uint64_t bits) {
  const auto sum = static_cast<int64_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                        ((bits >> 32) & 0xffff) + (bits >> 48));
  constexpr double kInverseDeviation = 1.0 / 37837.22724;  // sqrt((2^32 - 1) / 3)
  return static_cast<double>(sum - 131070) * kInverseDeviation;
}

struct TensorPlan {
  uint64_t count;   // values
  uint32_t fan_in;  // inputs of one output
  double gain;
};

TensorPlan PlanOf(const ReferenceConfig& c, ReferenceTensor tensor) {
  const uint64_t hidden = c.hidden;
  switch (tensor) {
    case ReferenceTensor::kEmbedding:
      return {c.vocabulary * hidden, 1, 1};
    case ReferenceTensor::kQuery:
      return {hidden * c.heads * c.d_query(), c.hidden, c.query_gain};
    case ReferenceTensor::kLatent:
      return {hidden * c.d_row(), c.hidden, 1};
    case ReferenceTensor::kKeyUp:
      // As a key projection its input is the latent, though a query runs through it backwards.
      return {uint64_t{c.heads} * c.d_nope * c.d_latent, c.d_latent, 1};
    case ReferenceTensor::kValueUp:
      return {uint64_t{c.heads} * c.d_latent * c.d_value, c.d_latent, 1};
    case ReferenceTensor::kAttentionOut:
      return {uint64_t{c.heads} * c.d_value * hidden, c.heads * c.d_value, c.branch_gain};
    case ReferenceTensor::kGate:
    case ReferenceTensor::kUp:
      return {hidden * c.mlp, c.hidden, 1};
    case ReferenceTensor::kDown:
      // silu(a) b of unit normals has deviation 0.6.
      return {hidden * c.mlp, c.mlp, c.branch_gain / 0.6};
    case ReferenceTensor::kLogits:
      return {hidden * c.vocabulary, c.hidden, c.logit_gain};
  }
  return {};
}

}  // namespace

absl::Status ValidateReferenceConfig(const ReferenceConfig& config) {
  const auto check = [](const char* name, uint32_t value, uint32_t limit) -> absl::Status {
    if (value > 0 && value <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("reference config: %s: %d, need 1 to %d", name, value, limit));
  };
  constexpr uint32_t kWidthMax = 1u << 14;
  absl::Status status = check("layers", config.layers, kLayerCountMax);
  status.Update(check("heads", config.heads, 1024));
  status.Update(check("hidden", config.hidden, kWidthMax));
  status.Update(check("d_nope", config.d_nope, kWidthMax));
  status.Update(check("d_latent", config.d_latent, kRowWidthMax));
  status.Update(check("d_rope", config.d_rope, kRowWidthMax));
  status.Update(check("d_value", config.d_value, kWidthMax));
  status.Update(check("mlp", config.mlp, kWidthMax));
  status.Update(check("vocabulary", config.vocabulary, 1u << 20));
  if (!status.ok()) return status;
  return ValidateGeometry(ReferenceGeometry(config));
}

Geometry ReferenceGeometry(const ReferenceConfig& config) {
  Sha256 hash;
  hash.AppendString("ckv.reference.2");
  hash.AppendValue(config.seed);
  for (const uint32_t value :
       {config.layers, config.heads, config.hidden, config.d_nope, config.d_rope, config.d_latent,
        config.d_value, config.mlp, config.vocabulary}) {
    hash.AppendValue(value);
  }
  hash.AppendValue(config.rope_theta);
  hash.AppendValue(config.query_gain);
  hash.AppendValue(config.branch_gain);
  hash.AppendValue(config.logit_gain);

  Geometry geometry;
  geometry.model = absl::StrFormat("ckv/reference-%dx%d", config.layers, config.heads);
  geometry.revision = ChunkId{hash.Finish()}.ShortHex();
  geometry.layers = config.layers;
  geometry.d_qk = config.d_row();
  geometry.d_v = config.d_latent;
  geometry.d_rope = config.d_rope;
  geometry.dtype = RowDtype::kBf16;
  geometry.rope.style = RopeStyle::kInterleaved;
  geometry.rope.theta = config.rope_theta;
  geometry.softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.d_query()));
  return geometry;
}

std::vector<float> GenerateTensor(const ReferenceConfig& config, uint32_t layer,
                                  ReferenceTensor tensor) {
  const TensorPlan plan = PlanOf(config, tensor);
  const bool global = tensor == ReferenceTensor::kEmbedding || tensor == ReferenceTensor::kLogits;
  const uint64_t stream = (uint64_t{global ? 0xffffu : layer} << 8) | static_cast<uint64_t>(tensor);
  const uint64_t base = Mix(Mix(config.seed) ^ stream);
  const double scale = plan.gain / std::sqrt(static_cast<double>(plan.fan_in));
  std::vector<float> values(plan.count);
  for (uint64_t i = 0; i < plan.count; ++i) {
    const auto value = static_cast<float>(UnitNormal(Mix(base + i)) * scale);
    values[i] = FloatFromBf16(Bf16FromFloat(value));
  }
  return values;
}

}  // namespace ckv
