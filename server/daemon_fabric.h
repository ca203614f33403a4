// A fabric as the configuration wants it.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/config.h"
#include "transport/fabric.h"

namespace ckv {

// `clock` must outlive the fabric and its lanes.
//   CheckVerbs's errors, for verbs: each says what to do.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(FabricKind kind, const Config& config,
                                                   Clock* clock);

}  // namespace ckv
