// The profile of a daemon's requester, from its options.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/profile_file.h"
#include "server/config.h"

namespace ckv {

// Of requester.profile; null where it is not set.
//   NotFound, InvalidArgument  as ReadProfile; begins with "requester.profile: ".
absl::StatusOr<std::shared_ptr<const Profile>> LoadProfile(const Config& config);

}  // namespace ckv
