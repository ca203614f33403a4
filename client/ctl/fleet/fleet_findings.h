// Gathers the facts of a fleet as ckvctl sees it, and prints their findings.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/fleet.h"
#include "client/ctl/fleet/ask_members.h"
#include "client/ctl/output.h"
#include "proto/health/findings.h"

namespace ckv::ctl {

// Everything that a command has found out about a fleet.
struct FleetSight {
  std::string directory_address;
  absl::Status directory;  // whether it answers
  // Its state. Ask for it after the members: a member whose lease ended meanwhile is not silent.
  absl::StatusOr<v1::DescribeDirectoryReply> home = absl::UnknownError("not asked");
  std::vector<MemberReport> members;
  // The requester that was named, if one was.
  std::optional<absl::StatusOr<v1::DescribeReply>> requester;
  std::string requester_address;
  bool is_of_fleet = true;  // the requester's directory is this one
};

// Asks the directory, every member, and the requester if one is named. It never fails: a process
// that does not answer is a fact.
FleetSight LookAtFleet(Fleet& fleet);
// The second part of LookAtFleet, for a caller that has already asked the members. It asks the
// requester if one is named, then the directory for its state. `sight.directory` and
// `sight.members` must be set.
void LookBehindMembers(Fleet& fleet, FleetSight& sight);
FleetFacts FactsOf(const FleetSight& sight);

// A line or two for each finding: what is wrong, and after -> what to do.
std::string FindingsText(const std::vector<Finding>& findings);
// [{"code", "severity", "subject", "what", "remedy"}]
Json FindingsJson(const std::vector<Finding>& findings);
// Returns StatusOf(findings), with what to do next. If the directory did not answer, `directory` is
// the error, which has more details than the finding.
absl::Status VerdictOf(const std::vector<Finding>& findings,
                       const absl::Status& directory = absl::OkStatus());

}  // namespace ckv::ctl
