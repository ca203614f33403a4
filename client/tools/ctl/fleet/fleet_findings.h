// Gathers the facts of a fleet as ckvctl sees it, and prints the findings.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/fleet/query_members.h"
#include "client/tools/ctl/output.h"
#include "proto/health/findings.h"

namespace ckv::ctl {

// All facts about a fleet that a command has collected.
struct FleetSight {
  std::string directory_address;
  absl::Status directory;  // OK if it answered, otherwise the error
  // The directory's state. Query it after the members: a member whose lease ended meanwhile then
  // does not count as silent.
  absl::StatusOr<v1::DescribeDirectoryReply> home = absl::UnknownError("not asked");
  std::vector<MemberReport> members;
  // The reply of the named requester, if one was named.
  std::optional<absl::StatusOr<v1::DescribeReply>> requester;
  std::string requester_address;
  bool is_of_fleet = true;  // whether the requester uses this directory
};

// Queries the directory, every member, and the named requester if any. Never fails: a process that
// does not answer is a fact.
FleetSight LookAtFleet(Fleet& fleet);
FleetFacts FactsOf(const FleetSight& sight);

// Writes a line or two for each finding: the problem, and after -> the remedy.
std::string FindingsText(const std::vector<Finding>& findings);
// [{"code", "severity", "subject", "what", "remedy"}]
Json FindingsJson(const std::vector<Finding>& findings);
// Returns StatusOf(findings), with the next step. If the directory did not answer, `directory` is
// its error, which has more details than the finding.
absl::Status VerdictOf(const std::vector<Finding>& findings,
                       const absl::Status& directory = absl::OkStatus());

}  // namespace ckv::ctl
