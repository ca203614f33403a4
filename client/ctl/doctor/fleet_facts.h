// The facts of a fleet that ckvctl doctor judges: each process reports its own.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/fleet.h"
#include "client/ctl/fleet/fleet_findings.h"
#include "client/ctl/fleet/fleet_health.h"
#include "proto/base/clock.h"
#include "proto/process_facts.h"

namespace ckv::ctl::doctor {

// The report of one process, and its clock when it answered.
struct Told {
  std::string who;                      // "holder h1", "the directory"
  std::string address;                  // the address of its control plane
  absl::Status status;                  // OK if it answers, otherwise the error
  std::optional<ProcessFacts> process;  // unset if it does not answer, or if its build is too old
  // How far the process' clock is ahead of this machine's, plus or minus `clock_error`.
  Duration clock_ahead{0};
  Duration clock_error{0};

  // Assumes that the process read its clock halfway between the request and the answer.
  void ReadClock(uint64_t asked_wall_ms, uint64_t answered_wall_ms);
};

struct FleetFacts {
  Told directory;
  v1::DescribeDirectoryReply home;  // the state that the directory reports
  bool home_known = false;          // false if the directory reports no state
  // Members in the order of their names, and the report of each; both lists have the same length.
  std::vector<Told> members;
  std::vector<MemberReport> reports;
  std::vector<v1::DescribeReply> requesters;  // those that answered
  std::vector<Finding> findings;              // those of ckvctl health
  // The build and the host of this ckvctl.
  std::string version, commit, host_identity;

  // Those that report facts of their process, the directory first.
  std::vector<const Told*> Telling() const;
};

// Queries the directory and every member. Never fails: a process that does not answer is a fact.
FleetFacts AskFleet(Fleet& fleet);

}  // namespace ckv::ctl::doctor
