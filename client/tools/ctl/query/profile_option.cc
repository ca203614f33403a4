#include "client/tools/ctl/query/profile_option.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/tools/ctl/checks.h"
#include "proto/base/status.h"
#include "transport/fabric.h"

namespace ckv::ctl {

void AddProfileOption(CLI::App& verb, std::string& path, const char* help) {
  verb.add_option("--profile", path, help)->check(NotEmpty())->type_name("FILE");
}

absl::StatusOr<std::shared_ptr<const Profile>> LoadProfileFor(const std::string& path,
                                                              const Geometry& geometry) {
  absl::StatusOr<Profile> read = ReadProfile(path);
  if (!read.ok()) {
    return absl::Status(read.status().code(),
                        absl::StrFormat("%s\n  ckvctl calibrate --profile FILE writes one",
                                        std::string(read.status().message())));
  }
  Profile profile = *std::move(read);
  // Its constants are of that target. If the choice does not count here, WhyNotOf says what
  // differs.
  if (profile.kernel) KeepKernelChoice(*profile.kernel).IgnoreError();
  const std::string why_not =
      WhyNotOf(profile, geometry, HostIdentity(), KernelTargetIdOf(KernelTarget()));
  if (!why_not.empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %s: run ckvctl calibrate --profile here", path, why_not));
  }
  return std::make_shared<const Profile>(std::move(profile));
}

}  // namespace ckv::ctl
