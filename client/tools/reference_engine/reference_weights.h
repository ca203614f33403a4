// The reference engine's shape and weights: a function of a seed, the same bits everywhere.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/geometry.h"

namespace ckv {

// Every width of the model. The defaults are "ckv/reference-4x16", with DeepSeek's row geometry.
struct ReferenceConfig {
  uint64_t seed = 20260601;
  uint32_t layers = 4;
  uint32_t heads = 16;
  uint32_t hidden = 256;
  uint32_t d_nope = 32;     // head's query and key, without position
  uint32_t d_rope = 64;     // head's query and the shared key, rotated
  uint32_t d_latent = 512;  // compressed KV
  uint32_t d_value = 32;    // head's value
  uint32_t mlp = 704;
  uint32_t vocabulary = 256;  // a token is a byte
  double rope_theta = 10000;

  // Gains over the variance-preserving initialisation. Queries: logits with a standard deviation of
  // 2.5 leave exp(-2.5^2) of n keys effective, about 16 of 8192. So attention is neither uniform
  // nor a look-up. Branches: each layer adds 1.5 times as much as an untrained one, so the context
  // decides the next token, not the last token alone. Logits: with a spread of 4, the best two of
  // 256 are about 1 apart.
  float query_gain = 2.5f;
  float branch_gain = 1.5f;
  float logit_gain = 4.0f;

  uint32_t d_row() const { return d_latent + d_rope; }
  uint32_t d_query() const { return d_nope + d_rope; }

  friend bool operator==(const ReferenceConfig&, const ReferenceConfig&) = default;
};

// Checks the config.
//   InvalidArgument     a width is zero, d_rope is odd, or a row is wider than kRowWidthMax.
absl::Status ValidateReferenceConfig(const ReferenceConfig& config);

// Returns the geometry of this model's rows. Its revision is a hash of every field of the config,
// so rows of two seeds never mix.
Geometry ReferenceGeometry(const ReferenceConfig& config);

// The matrices, each f32 [input][output], row-major.
enum class ReferenceTensor : uint8_t {
  kEmbedding = 0,     // [vocabulary][hidden]
  kQuery = 1,         // [hidden][heads x (d_nope + d_rope)], a head's nope first
  kLatent = 2,        // [hidden][d_latent + d_rope]
  kKeyUp = 3,         // [heads] of [d_nope][d_latent]: absorbs a query into the latent space
  kValueUp = 4,       // [heads] of [d_latent][d_value]
  kAttentionOut = 5,  // [heads x d_value][hidden]
  kGate = 6,          // [hidden][mlp]
  kUp = 7,            // [hidden][mlp]
  kDown = 8,          // [mlp][hidden]
  kLogits = 9,        // [hidden][vocabulary]
};

// Returns one whole matrix; kEmbedding and kLogits ignore `layer`. Its values are bf16 values, as a
// model's weights are.
//
// Value i of a tensor is a hash (splitmix64) of (seed, layer, tensor, i) as four 16-bit uniforms.
// Their sum less its mean has a bell shape cut at 3.5 sigma (Irwin-Hall of four). It uses integer
// arithmetic and one product in f64. No libm is used, whose log and cos differ between versions, so
// every machine has the same bits.
std::vector<float> GenerateTensor(const ReferenceConfig& config, uint32_t layer,
                                  ReferenceTensor tensor);

}  // namespace ckv
