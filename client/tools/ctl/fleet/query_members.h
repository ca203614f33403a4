// Queries the members of a fleet for their own state.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/ctl/fleet.h"

namespace ckv::ctl {

// A member, and its report if it answered.
struct MemberReport {
  Member member;
  absl::Status status;                 // OK if it answered, otherwise the error
  v1::StatsReply stats;                // a holder's
  v1::DescribeReply description = {};  // a requester's

  // Returns empty facts if the member does not report any.
  const v1::ProcessFacts& process() const {
    return member.role == MemberRole::kHolder ? stats.process() : description.process();
  }
};

// QueryMembers ends after this many call timeouts. With kParallelJobsMax calls in parallel, 96
// silent members get their whole timeout each.
inline constexpr int kQueryLimitCountMax = 6;

// Queries the members, kParallelJobsMax in parallel: holders for their counters, requesters for
// their description. The reports are in the order of `members`. Each call may take
// options().timeout. A member whose query cannot start within kQueryLimitCountMax timeouts gets
// DeadlineExceeded.
std::vector<MemberReport> QueryMembers(const Fleet& fleet, const std::vector<Member>& members);

}  // namespace ckv::ctl
