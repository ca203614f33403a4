// The --profile option: uses the constants of a calibration instead of measuring them.

#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/cost/profile_file.h"
#include "proto/geometry.h"

namespace ckv::ctl {

void AddProfileOption(CLI::App& verb, std::string& path, const char* help);

// Loads the profile at `path`, which must match `geometry`, this host and its kernel target. A
// profile that was named explicitly is never silently ignored.
//   FailedPrecondition  the profile does not match; names the difference.
//   else as ReadProfile.
absl::StatusOr<std::shared_ptr<const Profile>> LoadProfileFor(const std::string& path,
                                                              const Geometry& geometry);

}  // namespace ckv::ctl
