// The records of a fleet's run: contexts, nodes, and what is under way between them. Only
// fleet_run.cc includes this one.

#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "client/simulate/fleet_kernel.h"
#include "client/simulate/fleet_prefetch.h"
#include "client/simulate/fleet_spec.h"
#include "client/simulate/fleet_view.h"

namespace ckv {

// A pool of records whose indices are used again.
template <typename T>
class FleetPool {
 public:
  uint32_t Add() {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(all_.size()));
      all_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void Drop(uint32_t index) { free_.push_back(index); }
  T& operator[](uint32_t index) { return all_[index]; }

 private:
  std::deque<T> all_;  // records stay where they are
  std::vector<uint32_t> free_;
};

// A part of a step, at the kernel of one node.
struct FleetVisit {
  uint32_t context = 0, node = 0;
  std::vector<uint32_t> chunks;
  double queued_s = 0, wait_s = 0;
};

struct FleetBatch {
  uint32_t node = 0;
  bool own = false;
  double busy_s = 0;
  std::vector<FleetKernel::Job> jobs;
  std::vector<SharedRun> runs;  // the same at each layer

  double rows(const FleetSpec& spec) const {
    return static_cast<double>(jobs.size()) * spec.query_rows;
  }
};

// A copy under way.
struct FleetCopyJob {
  uint32_t node = 0;
  FleetCopy copy;
  double begin_s = 0;
};

struct FleetContext {
  uint32_t node = 0;
  uint32_t steps_left = 0, parts = 0;
  std::vector<uint32_t> own_chunks;               // that this node holds
  std::vector<FleetPlacement::Group> far_groups;  // that others hold
  FleetWatch watch;
  std::vector<uint32_t> visits;  // this step's, to other holders
  double step_s = 0;             // when this step began
  double wait_s = 0;             // at kernels in this step, the longest of its parts
  bool all_routed = false;
  double first_s = 0, last_s = 0;
};

struct FleetNode {
  FleetNode(const FleetSpec* spec, const FleetPlacement* placement, uint32_t node)
      : kernel(spec->workers), view(spec, placement, node), prefetch(spec, placement, &view) {}
  FleetKernel kernel;
  FleetView view;
  FleetPrefetch prefetch;
  std::deque<uint32_t> waiting;   // contexts
  std::vector<uint32_t> loading;  // contexts that wait for rows
  double prefill_free_s = 0;
};

}  // namespace ckv
