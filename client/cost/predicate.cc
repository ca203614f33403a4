// Computes the cost of each primitive, and takes the cheapest. Decide, in order:
//   1. WorkloadOf counts rows, bytes and rounds of the input.
//   2. RouteCost, FetchCost and LocalCost each take the best replica of every group, and sum terms.
//      One that cannot be done has the reason in why_not.
//   3. The smallest total is the choice, the second smallest the runner-up.
// RankCandidates sorts the replicas of each group for one primitive.

#include "client/cost/predicate.h"

#include <algorithm>
#include <limits>

namespace ckv {
namespace {

constexpr const char* kNoHolder = "no holder reachable";
constexpr const char* kDoesNotFit = "does not fit the local cache";

using CostOf = RoundCost (*)(const Workload&, const Candidate&) noexcept;

double SpliceUs(const DecisionInput& input, const Workload& work) {
  // A rotation that is the identity is left out (arXiv:2606.01502 section 6.3). A selection is
  // never rotated.
  if (input.canonical || work.selected || work.tokens == 0) return 0;
  const double layer_us = CleanCost(input.here.splice_per_layer_us) +
                          TimesCost(work.tokens, CleanCost(input.here.splice_per_token_layer_us));
  return TimesCost(work.layers, layer_us);
}

Workload WorkloadOf(const DecisionInput& input) {
  Workload work;
  work.layers = input.geometry.layers;
  work.rounds = double(input.steps) * double(input.agents) * work.layers;
  work.rows = input.query_rows;
  work.tokens = double(input.tokens);
  if (input.tokens > 0)
    work.far_share = 1 - double(std::min(input.cached_tokens, input.tokens)) / work.tokens;
  work.selected = input.selected > 0;
  work.attended = double(work.selected ? std::min(input.selected, input.tokens) : input.tokens);
  work.row_bytes = input.geometry.row_bytes();
  work.query_bytes = double(input.geometry.query_row_bytes());
  work.exchange_bytes =
      work.query_bytes + double(input.geometry.partial_row_bytes(input.f32_partials));
  if (input.lane_shape)
    work.frame = FrameRowsOf(input.geometry, input.f32_partials, *input.lane_shape);
  work.splice_us = SpliceUs(input, work);
  return work;
}

bool Cheaper(const RoundCost& a, const RoundCost& b) {
  if (a.why_not != nullptr || b.why_not != nullptr) return b.why_not != nullptr && !a.why_not;
  return a.total_us < b.total_us;
}

// Calls `take(index, cost)` with the best replica of each group, in order. Returns null if every
// group has a replica that can be queried, else why one has none.
template <typename Take>
const char* ForEachBest(const DecisionInput& input, const Workload& work, CostOf cost_of,
                        Take take) {
  const std::span<const Candidate> all = input.candidates;
  if (all.empty()) return kNoHolder;
  for (size_t begin = 0; begin < all.size();) {
    size_t best = begin, end = begin + 1;
    RoundCost least = cost_of(work, all[begin]);
    for (; end < all.size() && all[end].group == all[begin].group; ++end) {
      const RoundCost cost = cost_of(work, all[end]);
      if (!Cheaper(cost, least)) continue;
      least = cost;
      best = end;
    }
    if (least.why_not != nullptr) return least.why_not;
    take(best, least);
    begin = end;
  }
  return nullptr;
}

void Sum(CostBreakdown& cost) {
  cost.offered = true;
  cost.total_us = cost.probe_us + cost.transfer_us + cost.compute_us + cost.queue_us +
                  cost.shared_us + cost.merge_us + cost.splice_us + cost.prefill_us + cost.evict_us;
}

const char* WhyNoHolder(const DecisionInput& input, const char* why) {
  return input.gone_holder.empty() ? why : "a holder is not registered with the directory";
}

CostBreakdown RouteCost(const DecisionInput& input, const Workload& work) {
  CostBreakdown cost;
  RoundCost slowest;
  double parts = 0;
  HostLoads loads;
  const char* why = ForEachBest(input, work, RouteRound, [&](size_t i, const RoundCost& round) {
    if (parts == 0 || round.total_us > slowest.total_us) {
      slowest = round;
      cost.candidate = static_cast<uint32_t>(i);
    }
    ++parts;
    loads.Add(input.candidates[i].seat, round.busy_us);
  });
  if (why != nullptr || !input.gone_holder.empty()) {
    cost.why_not = WhyNoHolder(input, why);
    return cost;
  }
  cost.probe_us = TimesCost(work.rounds, slowest.probe_us);
  cost.transfer_us = TimesCost(work.rounds, slowest.transfer_us);
  cost.compute_us = TimesCost(work.rounds, slowest.compute_us);
  cost.queue_us = TimesCost(work.rounds, slowest.queue_us);
  cost.shared_us = TimesCost(work.rounds, CleanCost(loads.LongestUs() - slowest.total_us));
  cost.merge_us =
      TimesCost(work.rounds, TimesCost(work.rows * parts, CleanCost(input.here.merge_per_row_us)));
  Sum(cost);
  return cost;
}

double AttendHereUs(const DecisionInput& input, const Workload& work) {
  return TimesCost(work.rounds, AttendHereTime(input.here, work.rows, work.attended).Us());
}

// Charges what must be evicted so that the rows can be kept here. Returns null, or why they cannot
// be kept.
const char* MakeRoom(const DecisionInput& input, const Workload& work, CostBreakdown& cost) {
  const auto free_tokens = double(input.cache_room_tokens);
  const double needed = work.attended * work.far_share;
  if (needed == 0 || (free_tokens > 0 && free_tokens >= needed)) return nullptr;
  if (!input.eviction || double(input.eviction->capacity_tokens) < needed ||
      input.eviction->capacity_tokens == 0) {
    return kDoesNotFit;
  }
  cost.evict_us = TimesCost(needed - free_tokens, CleanCost(input.eviction->per_token_us));
  return nullptr;
}

CostBreakdown FetchCost(const DecisionInput& input, const Workload& work) {
  CostBreakdown cost;
  double dearest_us = -1;
  const double times = work.selected ? work.rounds : 1;
  const char* why = ForEachBest(input, work, FetchRound, [&](size_t i, const RoundCost& fetch) {
    cost.probe_us += TimesCost(times, fetch.probe_us);
    cost.transfer_us += TimesCost(times, fetch.transfer_us);
    cost.splice_us += fetch.splice_us;
    if (fetch.total_us > dearest_us) cost.candidate = static_cast<uint32_t>(i);
    dearest_us = std::max(dearest_us, fetch.total_us);
  });
  const bool gone = !input.gone_holder.empty();
  if (why != nullptr || gone) {
    why = WhyNoHolder(input, why);
  } else {
    why = MakeRoom(input, work, cost);
  }
  if (why != nullptr) {
    cost = {};
    cost.why_not = why;
    return cost;
  }
  cost.compute_us = AttendHereUs(input, work);
  Sum(cost);
  return cost;
}

CostBreakdown LocalCost(const DecisionInput& input, const Workload& work) {
  CostBreakdown cost;
  if (!input.here.prefill_per_token_layer_us) {
    cost.why_not =
        "the cost of prefill is not known: the engine has not reported it (ckv_report_prefill), "
        "and no profile of ckvctl calibrate --prefill-us has it";
  } else if (work.selected) {
    cost.why_not = "a selection is not recomputed";
  } else if (const char* why = MakeRoom(input, work, cost)) {
    cost.why_not = why;
  } else {
    cost.prefill_us = TimesCost(work.tokens * work.far_share * work.layers,
                                CleanCost(*input.here.prefill_per_token_layer_us));
    cost.compute_us = AttendHereUs(input, work);
    Sum(cost);
  }
  return cost;
}

uint64_t SaturatingUint64(double value) {
  return value < 1.8e19 ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
}

}  // namespace

std::string_view PrimitiveName(Primitive primitive) {
  switch (primitive) {
    case Primitive::kRoute:
      return "route";
    case Primitive::kFetch:
      return "fetch";
    case Primitive::kLocal:
      return "local";
  }
  return "unknown";
}

Decision Decide(const DecisionInput& input) noexcept {
  const Workload work = WorkloadOf(input);
  Decision decision;
  decision.costs = {RouteCost(input, work), FetchCost(input, work), LocalCost(input, work)};
  decision.route_bytes = SaturatingUint64(work.rows * work.exchange_bytes);
  decision.fetch_bytes = SaturatingUint64(work.attended * work.row_bytes);
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    const CostBreakdown& cost = decision.costs[i];
    if (!cost.offered) continue;
    const auto candidate = static_cast<Primitive>(i);
    if (!decision.choice || cost.total_us < decision.cost(*decision.choice).total_us) {
      decision.runner_up = decision.choice;
      decision.choice = candidate;
    } else if (!decision.runner_up || cost.total_us < decision.cost(*decision.runner_up).total_us) {
      decision.runner_up = candidate;
    }
  }
  return decision;
}

size_t RankCandidates(const DecisionInput& input, Primitive primitive,
                      std::span<RankedCandidate> ranked) noexcept {
  const Workload work = WorkloadOf(input);
  const CostOf cost_of = primitive == Primitive::kFetch ? FetchRound : RouteRound;
  const size_t count = std::min(ranked.size(), input.candidates.size());
  size_t group_begin = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0 && input.candidates[i].group != input.candidates[i - 1].group) group_begin = i;
    const RankedCandidate next = {static_cast<uint32_t>(i), cost_of(work, input.candidates[i])};
    // A handful of replicas: inserting beats sorting, and is stable.
    size_t place = i;
    for (; place > group_begin && Cheaper(next.cost, ranked[place - 1].cost); --place)
      ranked[place] = ranked[place - 1];
    ranked[place] = next;
  }
  return count;
}

}  // namespace ckv
