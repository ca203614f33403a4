// Helpers for commands that describe the members of a fleet.

#pragma once

#include <string>
#include <vector>

#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/fleet/query_members.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

// Whether a requester is of the fleet although it names another address of its directory. It is if
// it is a member there, or if its directory has the same members.
bool IsOfFleet(const Fleet& fleet, const v1::DescribeReply& requester,
               const std::vector<Member>& members);

// The kernel target that is never far from the fastest on any of the holders, if all of them have
// one; else "".
std::string BestCommonTarget(const std::vector<MemberReport>& members);

const char* RoleName(MemberRole role);
// [{"id", "role", "address", "ago_ms", "ran_out"}] of members whose leases ended lately.
Json EndedJson(const std::vector<v1::EndedLease>& ended);

}  // namespace ckv::ctl
