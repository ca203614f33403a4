// Published models with latent attention, by short name: the shape of their cKV rows and index
// keys, and how many query rows a token has.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/geometry.h"

namespace ckv {

struct NamedModel {
  std::string name;  // "deepseek-v3"
  // From the model's public config.json. The revision is empty.
  Geometry geometry;
  // Query heads: query rows of one layer that one token has, M_q of a decode step of one sequence.
  uint32_t heads = 0;
};

// All of them, by the number of layers. Made once; the result lives as long as the process.
std::span<const NamedModel> NamedModels();

// Finds a model by its short name.
//   NotFound            no model has that name; lists those that there are.
absl::StatusOr<NamedModel> FindModel(std::string_view name);

}  // namespace ckv
