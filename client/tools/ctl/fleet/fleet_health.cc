#include "client/tools/ctl/fleet/fleet_health.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
const char* RoleName(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

bool IsOfFleet(const Fleet& fleet, const v1::DescribeReply& requester,
               const std::vector<Member>& members) {
  if (requester.directory_address() == fleet.directory_address()) return true;
  for (const Member& member : members) {
    if (member.role == MemberRole::kRequester &&
        member.control_address == fleet.requester_address()) {
      return true;
    }
  }
  FleetOptions options = fleet.options();
  options.directory = requester.directory_address();
  options.wait = Duration(0);
  Fleet other(std::move(options), &fleet.clock());
  const absl::StatusOr<std::vector<Member>> others = other.Members();
  if (!others.ok()) {
    // Its directory cannot be reached from here (a tunnel, a NAT). Then its name must do.
    return std::any_of(members.begin(), members.end(), [&](const Member& member) {
      return member.role == MemberRole::kRequester &&
             (member.id.name == requester.id() || member.id.name == requester.id() + ".requester");
    });
  }
  // No two directories give the same epoch: each counts on from the milliseconds of its start.
  return std::any_of(others->begin(), others->end(), [&](const Member& member) {
    return std::find(members.begin(), members.end(), member) != members.end();
  });
}

std::string BestCommonTarget(const std::vector<MemberReport>& members) {
  std::map<std::string, std::pair<size_t, size_t>> found;  // its worst rank, and how many have it
  size_t holder_count = 0;
  for (const MemberReport& report : members) {
    const auto& targets = report.stats.kernel_targets();
    if (report.member.role != MemberRole::kHolder || targets.empty()) continue;
    ++holder_count;
    for (int i = 0; i < targets.size(); ++i) {
      auto& [rank, count] = found[targets[i]];
      rank = std::max(rank, static_cast<size_t>(i));
      ++count;
    }
  }
  // AMX's model is for tests.
  found.erase(std::string(KernelTargetName(KernelTargetId::kAmxModel)));
  const std::pair<const std::string, std::pair<size_t, size_t>>* best = nullptr;
  for (const auto& entry : found) {
    if (entry.second.second < holder_count) continue;
    if (best == nullptr || entry.second.first < best->second.first) best = &entry;
  }
  return best == nullptr ? "" : best->first;
}

Json EndedJson(const std::vector<v1::EndedLease>& ended) {
  Json json = Json::array();
  for (const v1::EndedLease& lease : ended) {
    const bool holder = lease.member().role() == v1::MEMBER_ROLE_HOLDER;
    json.push_back({{"id", lease.member().id()},
                    {"role", holder ? "holder" : "requester"},
                    {"address", lease.member().control_address()},
                    {"ago_ms", lease.ago_ms()},
                    {"ran_out", lease.ran_out()}});
  }
  return json;
}

}  // namespace ckv::ctl
