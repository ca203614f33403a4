// Asks a fleet once for everything that ckvctl top shows.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/fleet.h"
#include "client/ctl/fleet/ask_members.h"
#include "proto/health/findings.h"

namespace ckv::ctl {

struct TopSample {
  Instant at{};
  std::string directory;  // its address
  // Whether it answers. If not, the members are those of the sample before.
  absl::Status directory_status;
  std::vector<MemberReport> members;  // those that have a lease
  std::vector<Finding> findings;      // everything that is wrong
};

// If nobody answers, up to kAtOnceMax members take as long as two limits of a call
// (FleetOptions::timeout). More take as long as AskMembers. `before` is the sample before, or null.
TopSample TakeSample(Fleet& fleet, const TopSample* before);

}  // namespace ckv::ctl
