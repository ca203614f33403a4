// A small complete MLA transformer on the CPU: byte-level tokens, deterministic weights, DeepSeek's
// row geometry. It is untrained: its text is noise, but the correct noise, token by token.
//
// Attention runs in absorbed form on bf16 rows and bf16 queries, which are exactly the bytes on the
// wire. So a local decode and a routed one see the same bits.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/tools/reference_engine/engine.h"
#include "client/tools/reference_engine/linear.h"
#include "client/tools/reference_engine/reference_weights.h"

namespace ckv {

class ReferenceEngine final : public Engine {
 public:
  // Generates the weights: 7 M values for the default config, about 0.1 s.
  //   InvalidArgument     as ValidateReferenceConfig.
  static absl::StatusOr<std::unique_ptr<ReferenceEngine>> Create(const ReferenceConfig& config);

  const Geometry& geometry() const override { return geometry_; }
  uint32_t heads() const override { return config_.heads; }
  uint32_t vocabulary() const override { return config_.vocabulary; }
  const ReferenceConfig& config() const { return config_; }

  absl::StatusOr<std::unique_ptr<Sequence>> Start(SequenceOptions options) const override;

  static constexpr uint64_t kPositionMax = uint64_t{1} << 31;

  struct Layer {
    Linear query;
    Linear latent;
    std::vector<Linear> key_up;    // one per head
    std::vector<Linear> value_up;  // one per head
    Linear attention_out;
    Linear gate;
    Linear up;
    Linear down;
  };
  const Layer& layer(uint32_t index) const { return layers_[index]; }
  // Returns f32 [hidden].
  const float* embedding(int32_t token) const {
    return embedding_.data() + size_t{static_cast<uint32_t>(token)} * config_.hidden;
  }
  const Linear& logits() const { return logits_; }

 private:
  explicit ReferenceEngine(const ReferenceConfig& config);

  const ReferenceConfig config_;
  const Geometry geometry_;
  std::vector<float> embedding_;
  std::vector<Layer> layers_;
  Linear logits_;
};

}  // namespace ckv
