// The facts of a fleet that ckvctl doctor judges: each process tells its own.

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

// One process, and when it answered.
struct Told {
  std::string who;                      // "holder h1", "the directory"
  std::string address;                  // the address of its control plane
  absl::Status status;                  // whether it answers
  std::optional<ProcessFacts> process;  // unset if it does not answer, or is of an earlier build
  // How far its clock is ahead of this machine's, give or take `clock_error`.
  Duration clock_ahead{0};
  Duration clock_error{0};

  // The middle of the time between the question and the answer is when the process read its clock.
  void ReadClock(uint64_t asked_wall_ms, uint64_t answered_wall_ms);
};

struct FleetFacts {
  Told directory;
  v1::DescribeDirectoryReply home;  // the directory's state, as it says
  bool home_known = false;          // false if it does not say
  // Members in the order of their names, and how each answered: two lists of one length.
  std::vector<Told> members;
  std::vector<MemberReport> reports;
  std::vector<v1::DescribeReply> requesters;  // those that answer
  std::vector<Finding> findings;              // those of ckvctl health
  // The build and the host of this ckvctl.
  std::string version, commit, host_identity;

  // Those that tell of their process, the directory first.
  std::vector<const Told*> Telling() const;
};

// Asks the directory and every member. It never fails: who does not answer is a fact.
FleetFacts AskFleet(Fleet& fleet);

}  // namespace ckv::ctl::doctor
