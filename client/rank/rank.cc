#include "client/rank/rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ckv {
namespace {

constexpr double kUsPerSecond = 1e6;

double ResidualOf(const PathCost& path) {
  return path.bandwidth_bytes_per_s * (1 - path.congestion);
}

// T_transfer if the congestion of the path were `congestion`; infinite from 1 on.
double TransferUsAt(const PathCost& path, double bytes, double congestion) {
  if (bytes <= 0 || path.bandwidth_bytes_per_s <= 0) return bytes <= 0 ? 0 : path.latency_us;
  if (congestion >= 1) return std::numeric_limits<double>::infinity();
  const double residual = path.bandwidth_bytes_per_s * (1 - std::max(0.0, congestion));
  const double own = 1 + std::clamp(path.in_flight, 0.0, kInFlightMax);
  return bytes * own / residual * kUsPerSecond + path.latency_us;
}

CandidateRank RankedCostOf(const RankRequest& request, const RankCandidate& candidate) {
  CandidateRank out;
  const double matched = std::clamp(candidate.matched_tokens, 0.0, request.tokens);
  out.missing_bytes = request.cache_bytes * (1 - matched / request.tokens);
  out.has_room = candidate.free_bytes >= out.missing_bytes + request.reserve_bytes;
  const PathCost& path = candidate.path;
  out.bandwidth_bytes_per_s =
      ResidualOf(path) / (1 + std::clamp(path.in_flight, 0.0, kInFlightMax));
  out.transfer_us = TransferUsAt(path, out.missing_bytes, path.congestion);
  const auto iteration = [&](double batch) {
    return candidate.iteration_base_us + candidate.iteration_request_us * batch;
  };
  const double blocked = candidate.queued - (candidate.batch_max - candidate.batch);
  out.queue_us = std::max(0.0, blocked) * iteration(candidate.batch);
  out.decode_us = iteration(candidate.batch + 1);
  out.total_us = out.transfer_us + out.queue_us + out.decode_us;
  return out;
}

}  // namespace

void AssumeIterationTimes(std::span<RankCandidate> candidates) {
  const auto is_known = [](const RankCandidate& candidate) {
    return candidate.iteration_base_us > 0 || candidate.iteration_request_us > 0;
  };
  double known = 0, base_us = 0, request_us = 0;
  for (const RankCandidate& candidate : candidates) {
    if (!is_known(candidate)) continue;
    ++known;
    base_us += candidate.iteration_base_us;
    request_us += candidate.iteration_request_us;
  }
  if (known == 0) return;
  for (RankCandidate& candidate : candidates) {
    if (is_known(candidate)) continue;
    candidate.iteration_base_us = base_us / known;
    candidate.iteration_request_us = request_us / known;
  }
}

void Rank(const RankRequest& request, std::span<const RankCandidate> candidates, Ranking& out) {
  out.candidates.clear();
  out.candidates.reserve(candidates.size());
  out.best.reset();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const CandidateRank& cost = out.candidates.emplace_back(RankedCostOf(request, candidates[i]));
    if (!cost.has_room) continue;
    if (!out.best || cost.total_us < out.candidates[*out.best].total_us) out.best = i;
  }
}

double ToleratedCongestionError(std::span<const RankCandidate> candidates, const Ranking& ranking) {
  const size_t best = *ranking.best;
  // By how much candidate `i` would be cheaper than the best, if both congestions were off by
  // `error` against the best. It rises with the error.
  const auto lead = [&](size_t i, double error) {
    const auto total = [&](size_t at, double congestion) {
      const CandidateRank& cost = ranking.candidates[at];
      return TransferUsAt(candidates[at].path, cost.missing_bytes, congestion) + cost.queue_us +
             cost.decode_us;
    };
    return total(best, candidates[best].path.congestion + error) -
           total(i, candidates[i].path.congestion - error);
  };
  double tolerated = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == best || !ranking.candidates[i].has_room) continue;
    // Beyond 1 no congestion can be off.
    if (lead(i, 1) <= 0) continue;
    double low = 0, high = 1;
    for (int step = 0; step < 50; ++step) {
      const double middle = (low + high) / 2;
      (lead(i, middle) <= 0 ? low : high) = middle;
    }
    tolerated = std::min(tolerated, low);
  }
  return tolerated;
}

double ToleratedTierError(const PathCost& fast, const PathCost& slow) {
  return (ResidualOf(fast) - ResidualOf(slow)) /
         (fast.bandwidth_bytes_per_s + slow.bandwidth_bytes_per_s);
}

double LeadOfNear(const NearAgainstFar& input) {
  const double k = input.near.bandwidth_bytes_per_s / input.far.bandwidth_bytes_per_s;
  const double congestion = (1 - input.near.congestion) / (1 - input.far.congestion);
  const double queues_s = (input.far_queue_us - input.near_queue_us) / kUsPerSecond;
  const double right =
      k * congestion * (1 - input.far_hit) + ResidualOf(input.near) / input.cache_bytes * queues_s;
  return right - (1 - input.near_hit);
}

}  // namespace ckv
