// The geometry of a published model by its short name.

#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "proto/named_models.h"

namespace ckv {

// Errors of FindModel.
inline absl::StatusOr<Geometry> NamedGeometry(std::string_view name) {
  absl::StatusOr<NamedModel> model = FindModel(name);
  if (!model.ok()) return model.status();
  return model->geometry;
}

}  // namespace ckv
