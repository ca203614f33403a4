// The network oracle of a daemon's requester, from its options.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/network_oracle.h"
#include "proto/clock.h"
#include "server/config.h"

namespace ckv {

// Of oracle.file or oracle.address, started; null where neither is set. A file is read first, so
// that one that cannot be right is found at once; a service may come up later.
//   InvalidArgument, NotFound, Unavailable  the file; begins with "oracle.file: ".
absl::StatusOr<std::unique_ptr<NetworkOracle>> StartOracle(const Config& config, Clock* clock);

}  // namespace ckv
