#include "server/daemon_profile.h"

#include <utility>

#include "proto/status.h"

namespace ckv {

absl::StatusOr<std::shared_ptr<const Profile>> LoadProfile(const Config& config) {
  if (config.requester_profile.empty()) return std::shared_ptr<const Profile>();
  auto profile = ReadProfile(config.requester_profile);
  if (!profile.ok()) return Annotate(profile.status(), "requester.profile");
  return std::make_shared<const Profile>(*std::move(profile));
}

}  // namespace ckv
