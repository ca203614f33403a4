#include "client/tools/ctl/simulate/fleet_scenario.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

void AddQuantiles(const FleetQuantiles& one, double share, FleetQuantiles& sum) {
  sum.mean += one.mean * share;
  sum.p50 += one.p50 * share;
  sum.p99 += one.p99 * share;
}

// Adds the run of one of `count` seeds to a mean. Sums of counts are divided by the caller.
void AddRun(const FleetStats& run, uint32_t count, FleetStats& sum) {
  const double share = 1.0 / count;
  AddQuantiles(run.latency_ms, share, sum.latency_ms);
  AddQuantiles(run.first_ms, share, sum.first_ms);
  AddQuantiles(run.token_ms, share, sum.token_ms);
  sum.seconds += run.seconds * share;
  sum.routed_bytes += run.routed_bytes * share;
  sum.fetched_bytes += run.fetched_bytes * share;
  sum.link_bytes += run.link_bytes * share;
  sum.cached_share += run.cached_share * share;
  sum.own_share += run.own_share * share;
  sum.kernel_share += run.kernel_share * share;
  sum.nic_share += run.nic_share * share;
  sum.kernel_share_max = std::max(sum.kernel_share_max, run.kernel_share_max);
  sum.nic_share_max = std::max(sum.nic_share_max, run.nic_share_max);
  sum.requests += run.requests;
  sum.recomputed_tokens += run.recomputed_tokens;
  sum.copies += run.copies;
  sum.evictions += run.evictions;
  sum.events += run.events;
}

}  // namespace

uint64_t FleetRequestCount(const FleetScenario& scenario) {
  uint64_t count = 0;
  FleetSpec spec = scenario.spec;
  for (const uint32_t nodes : scenario.nodes) {
    spec.nodes = nodes;
    count += uint64_t{spec.requester_count()} * spec.requests_per_requester;
  }
  return count * scenario.loads.size() * scenario.policies.size() * scenario.seeds;
}

absl::StatusOr<std::vector<FleetRow>> RunFleetScenario(const FleetScenario& scenario,
                                                       absl::FunctionRef<void()> done) {
  std::vector<FleetSpec> specs;
  for (const uint32_t nodes : scenario.nodes) {
    for (const double load : scenario.loads) {
      for (const FleetPolicy policy : scenario.policies) {
        FleetSpec& spec = specs.emplace_back(scenario.spec);
        spec.nodes = nodes;
        spec.load = load;
        spec.policy = policy;
        CKV_RETURN_IF_ERROR(ValidateFleet(spec));  // all of them, before the first one runs
      }
    }
  }
  std::vector<FleetRow> rows;
  for (FleetSpec& spec : specs) {
    FleetRow& row = rows.emplace_back();
    row.nodes = spec.nodes;
    row.load = spec.load;
    row.policy = spec.policy;
    for (uint32_t i = 0; i < scenario.seeds; ++i) {
      spec.seed = scenario.first_seed + i;
      CKV_ASSIGN_OR_RETURN(const FleetStats run,
                           RunFleet(spec, MakeFleetRequests(spec), scenario.topology, done));
      AddRun(run, scenario.seeds, row.mean);
      row.latency_ms_by_seed.push_back(run.latency_ms.mean);
    }
  }
  return rows;
}

std::vector<FleetComparison> CompareFleet(const std::vector<FleetRow>& rows) {
  std::vector<FleetComparison> comparisons;
  for (const FleetRow& row : rows) {
    if (row.policy != FleetPolicy::kAuto) continue;
    FleetComparison one = {.nodes = row.nodes, .load = row.load};
    one.auto_ms = row.mean.latency_ms.mean;
    for (const FleetRow& other : rows) {
      if (other.nodes != row.nodes || other.load != row.load || other.policy == row.policy)
        continue;
      if (one.best_ms > 0 && other.mean.latency_ms.mean >= one.best_ms) continue;
      one.best = other.policy;
      one.best_ms = other.mean.latency_ms.mean;
    }
    if (one.best_ms > 0) comparisons.push_back(one);
  }
  return comparisons;
}

std::vector<FleetVerdict> JudgeFleet(const std::vector<FleetComparison>& comparisons) {
  std::vector<FleetVerdict> verdicts;
  for (const FleetComparison& one : comparisons) {
    if (verdicts.empty() || verdicts.back().nodes != one.nodes)
      verdicts.push_back({.nodes = one.nodes});
    FleetVerdict& verdict = verdicts.back();
    ++verdict.loads;
    verdict.better += one.Ratio() <= kFleetBetter ? 1 : 0;
    verdict.worst_ratio = std::max(verdict.worst_ratio, one.Ratio());
  }
  return verdicts;
}

}  // namespace ckv::ctl
