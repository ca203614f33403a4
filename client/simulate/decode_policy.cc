#include "client/simulate/decode_policy.h"

#include <algorithm>

namespace ckv {
namespace {

// A load breaks ties between caches: it is less than one token of a prompt.
constexpr double kTieBreak = 1e-9;

}  // namespace

std::string_view DecodePolicyName(DecodePolicy policy) {
  switch (policy) {
    case DecodePolicy::kRoundRobin:
      return "RR";
    case DecodePolicy::kLoad:
      return "LA";
    case DecodePolicy::kCache:
      return "CA";
    case DecodePolicy::kCacheLoad:
      return "CLA*";
    case DecodePolicy::kTopology:
      return "NetKV-Topo";
    case DecodePolicy::kStatic:
      return "NetKV-Static";
    case DecodePolicy::kFull:
      return "NetKV-Full";
  }
  return "?";
}

double DecodeChooser::Score(const RankRequest& request, const RankCandidate& candidate,
                            const CandidateRank& cost) const {
  const double hit = candidate.matched_tokens / request.tokens;
  const double load = (candidate.queued + candidate.batch) / candidate.batch_max;
  switch (policy_) {
    case DecodePolicy::kLoad:
      return -(cost.queue_us + cost.decode_us);
    case DecodePolicy::kCache:
      return hit - kTieBreak * load;
    case DecodePolicy::kCacheLoad:
      return weights_.cache * hit - weights_.load * load;
    default:
      return 0;  // the first in turn
  }
}

std::optional<size_t> DecodeChooser::Choose(const RankRequest& request,
                                            std::span<const RankCandidate> candidates) {
  const size_t count = candidates.size();
  turned_.clear();
  for (size_t i = 0; i < count; ++i) {
    RankCandidate& one = turned_.emplace_back(candidates[(turn_ + i) % count]);
    if (policy_ != DecodePolicy::kFull) one.path.congestion = 0;
    if (policy_ == DecodePolicy::kTopology) one.path.in_flight = 0;
  }
  Rank(request, turned_, ranking_);
  size_t best = ranking_.best.value_or(count);
  if (policy_ < DecodePolicy::kTopology) {
    double highest = 0;
    best = count;
    for (size_t i = 0; i < count; ++i) {
      if (!ranking_.candidates[i].has_room) continue;
      const double score = Score(request, turned_[i], ranking_.candidates[i]);
      if (best < count && score <= highest) continue;
      best = i;
      highest = score;
    }
  }
  if (best == count) return std::nullopt;
  const size_t chosen = (turn_ + best) % count;
  turn_ = (chosen + 1) % count;
  return chosen;
}

}  // namespace ckv
