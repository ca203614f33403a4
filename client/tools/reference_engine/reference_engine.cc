#include "client/tools/reference_engine/reference_engine.h"

#include <array>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/reference_engine/reference_sequence.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The `heads` matrices of one tensor that holds them one after another.
std::vector<Linear> PerHead(uint32_t heads, uint32_t input, uint32_t output,
                            std::span<const float> weights) {
  std::vector<Linear> linears;
  linears.reserve(heads);
  const size_t size = size_t{input} * output;
  for (uint32_t head = 0; head < heads; ++head) {
    linears.emplace_back(input, output, weights.subspan(head * size, size));
  }
  return linears;
}

ReferenceEngine::Layer MakeLayer(const ReferenceConfig& c, uint32_t index) {
  const auto tensor = [&](ReferenceTensor which) { return GenerateTensor(c, index, which); };
  const auto linear = [&](uint32_t input, uint32_t output, ReferenceTensor which) {
    return Linear(input, output, tensor(which));
  };
  ReferenceEngine::Layer layer;
  layer.query = linear(c.hidden, c.heads * c.d_query(), ReferenceTensor::kQuery);
  layer.latent = linear(c.hidden, c.d_row(), ReferenceTensor::kLatent);
  layer.key_up = PerHead(c.heads, c.d_nope, c.d_latent, tensor(ReferenceTensor::kKeyUp));
  layer.value_up = PerHead(c.heads, c.d_latent, c.d_value, tensor(ReferenceTensor::kValueUp));
  layer.attention_out = linear(c.heads * c.d_value, c.hidden, ReferenceTensor::kAttentionOut);
  layer.gate = linear(c.hidden, c.mlp, ReferenceTensor::kGate);
  layer.up = linear(c.hidden, c.mlp, ReferenceTensor::kUp);
  layer.down = linear(c.mlp, c.hidden, ReferenceTensor::kDown);
  return layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceEngine>> ReferenceEngine::Create(
    const ReferenceConfig& config) {
  CKV_RETURN_IF_ERROR(ValidateReferenceConfig(config));
  return std::unique_ptr<ReferenceEngine>(new ReferenceEngine(config));
}

ReferenceEngine::ReferenceEngine(const ReferenceConfig& config)
    : config_(config),
      geometry_(ReferenceGeometry(config)),
      embedding_(GenerateTensor(config, 0, ReferenceTensor::kEmbedding)),
      logits_(config.hidden, config.vocabulary,
              GenerateTensor(config, 0, ReferenceTensor::kLogits)) {
  layers_.reserve(config.layers);
  for (uint32_t index = 0; index < config.layers; ++index) {
    layers_.push_back(MakeLayer(config, index));
  }
}

absl::StatusOr<std::unique_ptr<Sequence>> ReferenceEngine::Start(SequenceOptions options) const {
  if (options.pool == nullptr) {
    return absl::InvalidArgumentError("sequence: no worker pool to compute on");
  }
  if (options.position > kPositionMax || options.token_count_max > kPositionMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence: position %d with up to %d tokens, limit %d each",
                        options.position, options.token_count_max, kPositionMax));
  }
  return std::make_unique<ReferenceSequence>(this, std::move(options));
}

}  // namespace ckv
