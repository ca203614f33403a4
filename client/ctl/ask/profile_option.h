// --profile: the constants of a calibration, instead of what would be measured.

#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/decide/profile_file.h"
#include "proto/geometry.h"

namespace ckv::ctl {

void AddProfileOption(CLI::App& verb, std::string& path, const char* help);

// The profile at `path`, which must be of `geometry` and of this host: what was asked for by name
// is not left out silently.
//   FailedPrecondition  it is not; says what it is of.
//   else as ReadProfile.
absl::StatusOr<std::shared_ptr<const Profile>> LoadProfileFor(const std::string& path,
                                                              const Geometry& geometry);

}  // namespace ckv::ctl
