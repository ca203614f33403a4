// Asks a fleet once for everything that ckvctl top shows.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/fleet.h"

namespace ckv::ctl {

// A member that has a lease, and its counters if it answers.
struct TopMember {
  Member member;
  absl::Status status;            // whether it answers
  v1::StatsReply stats;           // a holder's
  v1::DescribeReply description;  // a requester's
};

struct TopSample {
  Instant at{};
  std::string directory;  // its address
  // Whether it answers. If not, the members are those of the sample before.
  absl::Status directory_status;
  std::vector<TopMember> members;
  std::vector<v1::EndedLease> ended;  // members whose leases ended lately
};

// Asks members at once, so that a silent one costs its own limit and no more.
inline constexpr size_t kAskerCountMax = 16;

// Takes as long as two limits of a call (FleetOptions::timeout) if nobody answers and there are at
// most kAskerCountMax members. `before` is the sample before, or null.
TopSample TakeSample(Fleet& fleet, const TopSample* before);

}  // namespace ckv::ctl
