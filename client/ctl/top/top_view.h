// Computes what ckvctl top shows: the difference between two samples of a fleet.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/output.h"
#include "client/ctl/top/top_sample.h"
#include "proto/base/latency_histogram.h"

namespace ckv::ctl {

// A rate per second. Unset if there is only one sample, or if one of the two samples lacks the
// member. Also unset for a corpus that was not among the hottest in the previous sample.
using PerSecond = std::optional<double>;

// Durations between the two samples, of members in both. With one sample, all durations since the
// members started.
struct TopTime {
  std::string of;  // "route", "kernel", ...
  PerSecond rate;
  LatencyCounts counts;
};

struct TopHolder {
  std::string name, address, kernel_target;
  PerSecond requests, query_rows, errors, refused, bytes_in, bytes_out;
  PerSecond busy;  // kernel seconds per second
  uint32_t waiting_count = 0, session_count = 0;
  uint64_t chunk_count = 0, used_bytes = 0, capacity_bytes = 0;
  LatencyCounts wait, kernel;
};

struct TopRequester {
  std::string name, address;
  PerSecond route, near, fetch, pull, local, errors;
  LatencyCounts attends;  // routed calls and locally attended ones
  uint64_t near_bytes = 0, near_bytes_max = 0;
};

struct TopCorpus {
  std::string name;  // if empty, all corpora of all tenants, combined
  PerSecond calls, query_rows;
  uint64_t call_count = 0;
};

// A decision on chunk ranges, and its reason.
struct TopDecision {
  std::string primitive, reason;
  PerSecond rate;
  uint64_t count = 0;
};

// A finding of the fleet's health: its code, its subject, and the problem.
struct TopProblem {
  std::string code, what, why;
};

struct TopView {
  std::optional<double> seconds;  // between the samples
  std::string directory;
  std::vector<TopProblem> problems;
  std::vector<TopHolder> holders;        // those that answered, the busiest first
  std::vector<TopRequester> requesters;  // those that answered, the busiest first
  std::vector<TopTime> times;            // over all members, the requesters' first
  std::vector<TopCorpus> corpora;        // over all requesters, the hottest first
  std::vector<TopDecision> decisions;    // over all requesters, the most frequent first
};

// `before` is the previous sample, or null. A member that did not answer then, or that began a new
// incarnation since (a new epoch), has neither rates nor times.
TopView MakeTopView(const TopSample* before, const TopSample& now);

// One object: rates are null if a PerSecond is unset; times are in microseconds.
Json TopJson(const TopView& view);

}  // namespace ckv::ctl
