// The faults of one run: a list that a seed draws, and that can be shortened.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/network.h"

namespace ckv::sim {

// The shape of a fleet: node 0 is the directory, then holders, then requesters, then the operator.
// If two directories share their state, the second and etcd follow.
struct FleetShape {
  bool is_shared = false;
  uint32_t holder_count = 3;
  uint32_t requester_count = 2;
  uint32_t holder(uint32_t i) const { return 1 + i; }
  uint32_t requester(uint32_t i) const { return 1 + holder_count + i; }
  uint32_t operator_node() const { return 1 + holder_count + requester_count; }
  uint32_t second_directory() const { return operator_node() + 1; }
  uint32_t etcd() const { return operator_node() + 2; }
  uint32_t node_count() const { return operator_node() + (is_shared ? 3 : 1); }
  bool is_directory(uint32_t node) const {
    return node == 0 || (is_shared && node == second_directory());
  }
  // A requester and a holder are on one host, if there are enough holders: their lanes are shm's.
  uint32_t host(uint32_t node) const {
    return node >= requester(0) && node < operator_node() ? holder(node - requester(0)) : node;
  }
  // Has files that outlive its processes.
  bool has_disk(uint32_t node) const { return node < requester(0) && (node != 0 || !is_shared); }
};

// One fault: from `at`, counted from the start of the faults, for `duration`.
struct PlannedFault {
  int64_t at = 0;
  Fault kind = Fault::kDrop;
  uint32_t a = 0, b = 0;  // nodes
  int64_t duration = 0;
  double strength = 0;
  uint64_t salt = 0;

  std::string Text() const;
};

struct Plan {
  uint64_t seed = 0;
  FleetShape shape;
  uint64_t store_bytes = 0;          // memory of each holder for rows
  int64_t fault_time = 0;            // faults begin in this time, and all end soon after
  std::vector<PlannedFault> faults;  // by `at`
};

// Draws a plan. With `calm`, it has no faults.
Plan DrawPlan(uint64_t seed, bool calm);

}  // namespace ckv::sim
