#include "client/cost_model.h"

#include <algorithm>
#include <limits>

namespace ckv {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;

// What others leave of the tier, before this requester's own transfers.
double ResidualBandwidth(const PathCost& path) {
  return TimesCost(CleanCost(path.bandwidth_bytes_per_s),
                   1 - std::min(CleanCost(path.congestion), 1.0));
}

// 0: nobody knows.
double BytesPerUs(const Candidate& candidate, bool pull) {
  double bandwidth = 0, in_flight = CleanCost(candidate.in_flight);
  if (candidate.fabric) {
    bandwidth = CleanCost(candidate.fabric->bandwidth_bytes_per_s);
    if (pull && candidate.fabric->pull_bandwidth_bytes_per_s > 0)
      bandwidth = candidate.fabric->pull_bandwidth_bytes_per_s;
  }
  if (candidate.path && candidate.path->bandwidth_bytes_per_s > 0) {
    const double residual = ResidualBandwidth(*candidate.path);
    bandwidth = candidate.fabric ? std::min(bandwidth, residual) : residual;
    in_flight = std::max(in_flight, std::min(CleanCost(candidate.path->in_flight), kInFlightMax));
  }
  return CleanCost(bandwidth / (1 + in_flight)) / kMicrosecondsPerSecond;
}

double ProbeUs(const Candidate& candidate) {
  if (candidate.fabric) return CleanCost(candidate.fabric->t_probe_us);
  return candidate.path ? 2 * CleanCost(candidate.path->latency_us) : 0;
}

double TransferUs(double bytes, double bytes_per_us) {
  if (bytes == 0) return 0;
  if (!(bytes_per_us > 0)) return std::numeric_limits<double>::infinity();
  return CleanCost(bytes / bytes_per_us);  // an infinity over another: no time
}

double ComputeUs(const ComputeConstants& compute, const Workload& work, double attended,
                 double requesters) {
  const double gather = work.selected && compute.gather_factor > 0 ? compute.gather_factor : 1;
  if (!compute.curve.empty())
    return compute.curve.Us(TimesCost(work.rows, requesters), TimesCost(attended, gather));
  double load = TimesCost(TimesCost(work.rows, attended), requesters);
  load = TimesCost(load, gather);
  const double paid = CleanCost(load - CleanCost(compute.free_row_tokens));
  return CleanCost(compute.base_us) + TimesCost(paid, CleanCost(compute.per_row_token_us));
}

// What stands in the way of asking it at all; null: nothing.
const char* WhyNot(const Candidate& candidate, double bytes_per_us) {
  if (!candidate.fabric && !candidate.path) return "no holder reachable";
  return bytes_per_us > 0 ? nullptr : "bandwidth not measured";
}

}  // namespace

double EffectiveBandwidth(const PathCost& path) noexcept {
  return CleanCost(ResidualBandwidth(path) /
                   (1 + std::min(CleanCost(path.in_flight), kInFlightMax)));
}

double StalenessTolerance(const PathCost& faster, const PathCost& slower) noexcept {
  const double sum =
      CleanCost(faster.bandwidth_bytes_per_s) + CleanCost(slower.bandwidth_bytes_per_s);
  return sum > 0 ? (ResidualBandwidth(faster) - ResidualBandwidth(slower)) / sum : 0;
}

RoundCost RouteRound(const Workload& work, const Candidate& candidate) noexcept {
  RoundCost cost;
  const double bytes_per_us = BytesPerUs(candidate, /*pull=*/false);
  cost.why_not = WhyNot(candidate, bytes_per_us);
  if (cost.why_not != nullptr) return cost;
  const double attended = TimesCost(work.attended, CleanCost(candidate.token_share));
  cost.probe_us = ProbeUs(candidate);
  cost.transfer_us = TransferUs(work.rows * work.exchange_bytes, bytes_per_us);
  cost.compute_us =
      ComputeUs(candidate.compute, work, attended, 1 + CleanCost(candidate.concurrent));
  const double ahead_us = TimesCost(CleanCost(candidate.queue_requests),
                                    ComputeUs(candidate.compute, work, attended, 1));
  cost.queue_us = CleanCost(candidate.queue_us) + ahead_us;
  cost.total_us = cost.probe_us + cost.transfer_us + cost.compute_us + cost.queue_us;
  return cost;
}

RoundCost PullFrom(const Workload& work, const Candidate& candidate) noexcept {
  RoundCost cost;
  const double bytes_per_us = BytesPerUs(candidate, /*pull=*/true);
  cost.why_not = WhyNot(candidate, bytes_per_us);
  if (cost.why_not != nullptr) return cost;
  const double share = CleanCost(candidate.token_share);
  if (work.selected) cost.probe_us = ProbeUs(candidate);
  const double rows = work.selected ? work.attended : TimesCost(work.tokens, work.layers);
  cost.transfer_us = TransferUs(TimesCost(rows, share) * work.row_bytes, bytes_per_us);
  cost.total_us = cost.probe_us + cost.transfer_us;
  return cost;
}

}  // namespace ckv
