// Judges a fleet by what its processes report: which ones do not answer, and which ones do not
// match.

#pragma once

#include <vector>

#include "client/ctl/doctor/check.h"
#include "client/ctl/doctor/fleet_facts.h"
#include "client/ctl/doctor/host_daemons.h"
#include "proto/base/clock.h"

namespace ckv::ctl::doctor {

// Clocks that differ by more than this make log lines hard to compare.
inline constexpr Duration kClockAheadMax = std::chrono::seconds(1);
// Leases below the minimum expire when a host pauses. Those above the maximum keep dead members
// listed as live.
inline constexpr Duration kLeaseTtlMin = std::chrono::seconds(1);
inline constexpr Duration kLeaseTtlMax = std::chrono::seconds(30);

// Runs all of the checks below. `here` are the daemons of this machine.
Part JudgeFleet(const FleetFacts& facts, const std::vector<HostDaemon>& here);

// directory, members, requester, holders, chunks, durable: with the findings of ckvctl health
Checks JudgeService(const FleetFacts& facts);
// address, data_address, names, rdma
Checks JudgeAddresses(const FleetFacts& facts, const std::vector<HostDaemon>& here);
// version, wire, kernel, geometry, lease
Checks JudgeBuilds(const FleetFacts& facts);
// clock, spin, memlock
Checks JudgeHosts(const FleetFacts& facts);

}  // namespace ckv::ctl::doctor
