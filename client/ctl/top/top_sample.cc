#include "client/ctl/top/top_sample.h"

#include <utility>

namespace ckv::ctl {

TopSample TakeSample(Fleet& fleet, const TopSample* before) {
  TopSample sample;
  absl::StatusOr<std::vector<Member>> known = fleet.Members(&sample.ended);
  sample.directory_status = known.status();
  sample.directory = fleet.directory_address();
  std::vector<Member> members;
  if (known.ok()) {
    members = *std::move(known);
  } else if (before != nullptr) {
    sample.ended = before->ended;
    for (const MemberReport& report : before->members) members.push_back(report.member);
  }
  sample.members = AskMembers(fleet, members);
  sample.at = fleet.clock().Now();
  return sample;
}

}  // namespace ckv::ctl
