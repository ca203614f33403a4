// The reference engine's shape and weights: a function of a seed, bit by bit the same everywhere.

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
  uint32_t d_nope = 32;     // of a head's query and key, without position
  uint32_t d_rope = 64;     // of a head's query and the shared key, rotated
  uint32_t d_latent = 512;  // of the compressed KV
  uint32_t d_value = 32;    // of a head's value
  uint32_t mlp = 704;
  uint32_t vocabulary = 256;  // a token is a byte
  double rope_theta = 10000;

  // Gains over the variance-preserving initialisation. Queries: logits of standard deviation 2.5
  // leave exp(-2.5^2) of n keys effective, about 16 of 8192, so attention is neither uniform nor
  // a look-up. Branches: each layer adds 1.5 times what an untrained one would, so that the context
  // and not the last token alone decides the next. Logits: spread 4, so that the best two of 256
  // are about 1 apart.
  float query_gain = 2.5f;
  float branch_gain = 1.5f;
  float logit_gain = 4.0f;

  uint32_t d_row() const { return d_latent + d_rope; }
  uint32_t d_query() const { return d_nope + d_rope; }

  friend bool operator==(const ReferenceConfig&, const ReferenceConfig&) = default;
};

//   InvalidArgument     a width of zero, an odd d_rope, or a row wider than kRowWidthMax.
absl::Status ValidateReferenceConfig(const ReferenceConfig& config);

// Rows of this model: its revision is a hash of every field of the config, so rows of two seeds
// never mix.
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

// All of one matrix; `layer` is ignored by kEmbedding and kLogits.
//
// Value i of a tensor is a hash (splitmix64) of (seed, layer, tensor, i) as four 16-bit uniforms,
// whose sum less its mean has a bell shape cut at 3.5 sigma (Irwin-Hall of four). Integer
// arithmetic and one product in f64: no libm, whose log and cos differ between versions, so every
// machine has the same bits.
std::vector<float> GenerateTensor(const ReferenceConfig& config, uint32_t layer,
                                  ReferenceTensor tensor);

}  // namespace ckv
