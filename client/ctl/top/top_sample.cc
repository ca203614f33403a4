#include "client/ctl/top/top_sample.h"

#include <utility>

#include "client/ctl/fleet/fleet_findings.h"

namespace ckv::ctl {

TopSample TakeSample(Fleet& fleet, const TopSample* before) {
  TopSample sample;
  std::vector<v1::EndedLease> ended;  // so that a directory that waits for holders answers
  absl::StatusOr<std::vector<Member>> known = fleet.Members(&ended);
  sample.directory_status = known.status();
  sample.directory = fleet.directory_address();
  std::vector<Member> members;
  if (known.ok()) {
    members = *std::move(known);
  } else if (before != nullptr) {
    for (const MemberReport& report : before->members) members.push_back(report.member);
  }
  sample.members = AskMembers(fleet, members);
  sample.at = fleet.clock().Now();
  FleetSight sight;
  sight.directory_address = sample.directory;
  sight.directory = sample.directory_status;
  sight.members = sample.members;
  LookBehindMembers(fleet, sight);
  sample.findings = JudgeFleet(FactsOf(sight));
  return sample;
}

}  // namespace ckv::ctl
