// Asks the members of a fleet what they tell of themselves.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/fleet.h"

namespace ckv::ctl {

// A member, and what it tells if it answers.
struct MemberReport {
  Member member;
  absl::Status status;                 // whether it answers
  v1::StatsReply stats;                // a holder's
  v1::DescribeReply description = {};  // a requester's
  // When it was asked and when it answered, by this machine's WallClockMilliseconds().
  uint64_t asked_wall_ms = 0;
  uint64_t answered_wall_ms = 0;

  // Has unset fields if the member does not tell.
  const v1::ProcessFacts& process() const {
    return member.role == MemberRole::kHolder ? stats.process() : description.process();
  }
};

// AskMembers ends after this many limits of a call. At kAtOnceMax at once, 96 silent members are
// asked for their whole limit each.
inline constexpr int kAskLimitCountMax = 6;

// Asks each member, kAtOnceMax at once: a holder for its counters, a requester to describe itself.
// The reports are in the order of `members`. A call may take options().timeout. A member whose turn
// does not come within kAskLimitCountMax times that is DeadlineExceeded.
std::vector<MemberReport> AskMembers(const Fleet& fleet, const std::vector<Member>& members);

}  // namespace ckv::ctl
