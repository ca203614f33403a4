// Queries a fleet once for everything that ckvctl top shows.

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
  // OK if the directory answers. If not, the members are those of the previous sample.
  absl::Status directory_status;
  std::vector<MemberReport> members;  // those with a lease
  std::vector<Finding> findings;      // all problems
};

// If no member answers, up to kAtOnceMax members take as long as two call timeouts
// (FleetOptions::timeout). More members take as long as AskMembers. `before` is the previous
// sample, or null.
TopSample TakeSample(Fleet& fleet, const TopSample* before);

}  // namespace ckv::ctl
