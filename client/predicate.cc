#include "client/predicate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

constexpr uint32_t kBreakEvenStepsMax = 1u << 20;
constexpr double kMicrosecondsPerSecond = 1e6;

// Constants come from measurements: a negative or NaN one counts as 0, so that every
// cost is a number (infinity included) and comparisons are total.
double Clean(double value) { return value > 0 ? value : 0; }

// 0 x infinity is 0 here: nothing to move costs nothing, however slow the link.
double Times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

struct Volumes {
  double rounds = 0;  // S x A x L dependent round trips
  double rows = 0;    // M_q
  double attended = 0;
  double bytes_per_us = 0;  // bandwidth left beside what is in flight; 0: not measured
};

Volumes VolumesOf(const DecisionInput& input) {
  Volumes v;
  v.rounds = double(input.steps) * double(input.agents) * double(input.geometry.layers);
  v.rows = input.query_rows;
  v.attended = double(input.selected > 0 ? std::min(input.selected, input.tokens) : input.tokens);
  if (input.fabric) {
    v.bytes_per_us = Clean(input.fabric->bandwidth_bytes_per_s) / kMicrosecondsPerSecond /
                     (1 + Clean(input.in_flight));
  }
  return v;
}

double RouteBytes(const DecisionInput& input) {
  return double(input.query_rows) * (double(input.geometry.query_row_bytes()) +
                                     double(input.geometry.partial_row_bytes(input.f32_partials)));
}

double TransferUs(double bytes, double bytes_per_us) {
  if (bytes == 0) return 0;
  return bytes_per_us > 0 ? bytes / bytes_per_us : std::numeric_limits<double>::infinity();
}

void Sum(CostBreakdown& cost) {
  cost.offered = true;
  cost.total_us = cost.probe_us + cost.transfer_us + cost.compute_us + cost.queue_us +
                  cost.merge_us + cost.splice_us + cost.prefill_us;
}

// What stands in the way of any primitive that talks to a holder; null: nothing.
const char* WhyNoHolder(const DecisionInput& input, const Volumes& v) {
  if (!input.fabric) {
    return input.gone_holder.empty() ? "no holder reachable"
                                     : "a holder is not registered with the directory";
  }
  if (!(v.bytes_per_us > 0)) return "bandwidth not measured";
  return nullptr;
}

CostBreakdown RouteCost(const DecisionInput& input, const Volumes& v) {
  CostBreakdown cost;
  if (const char* why = WhyNoHolder(input, v)) {
    cost.why_not = why;
    return cost;
  }
  cost.probe_us = Times(v.rounds, Clean(input.fabric->t_probe_us));
  cost.transfer_us = Times(v.rounds, TransferUs(RouteBytes(input), v.bytes_per_us));
  const double compute_us =
      Clean(input.holder_compute.base_us) +
      Times(v.rows * v.attended, Clean(input.holder_compute.per_row_token_us));
  cost.compute_us = Times(v.rounds, compute_us);
  cost.queue_us = Times(v.rounds, Clean(input.queue_us));
  cost.merge_us = Times(v.rounds, Times(v.rows, Clean(input.here.merge_per_row_us)));
  Sum(cost);
  return cost;
}

double AttendHereUs(const DecisionInput& input, const Volumes& v) {
  return Times(v.rounds, Times(v.rows * v.attended, Clean(input.here.attend_per_row_token_us)));
}

CostBreakdown FetchCost(const DecisionInput& input, const Volumes& v) {
  CostBreakdown cost;
  if (const char* why = WhyNoHolder(input, v)) {
    cost.why_not = why;
    return cost;
  }
  if (input.cache_room_tokens == 0 || double(input.cache_room_tokens) < v.attended) {
    cost.why_not = "does not fit the local cache";
    return cost;
  }
  const double row_bytes = input.geometry.row_bytes();
  const double layers = input.geometry.layers;
  if (input.selected > 0) {
    // The choice changes every step and layer, so each is a round trip of its own.
    cost.probe_us = Times(v.rounds, Clean(input.fabric->t_probe_us));
    cost.transfer_us = Times(v.rounds, TransferUs(v.attended * row_bytes, v.bytes_per_us));
  } else {
    cost.transfer_us = TransferUs(double(input.tokens) * layers * row_bytes, v.bytes_per_us);
    cost.splice_us =
        Times(double(input.tokens) * layers, Clean(input.here.splice_per_token_layer_us));
  }
  cost.compute_us = AttendHereUs(input, v);
  Sum(cost);
  return cost;
}

CostBreakdown LocalCost(const DecisionInput& input, const Volumes& v) {
  CostBreakdown cost;
  if (!input.here.prefill_per_token_layer_us) {
    cost.why_not = "no engine attached to recompute with";
    return cost;
  }
  if (input.selected > 0) {
    cost.why_not = "a selection is not recomputed";
    return cost;
  }
  if (input.cache_room_tokens == 0 || double(input.cache_room_tokens) < v.attended) {
    cost.why_not = "does not fit the local cache";
    return cost;
  }
  cost.prefill_us = Times(double(input.tokens) * double(input.geometry.layers),
                          Clean(*input.here.prefill_per_token_layer_us));
  cost.compute_us = AttendHereUs(input, v);
  Sum(cost);
  return cost;
}

uint64_t SaturatingUint64(double value) {
  return value < 1.8e19 ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
}

std::string FormatUs(double us) {
  if (us < 1000) return absl::StrFormat("%.3g us", us);
  if (us < 1e6) return absl::StrFormat("%.3g ms", us / 1e3);
  return absl::StrFormat("%.3g s", us / 1e6);
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
  const Volumes v = VolumesOf(input);
  Decision decision;
  decision.costs = {RouteCost(input, v), FetchCost(input, v), LocalCost(input, v)};
  decision.route_bytes = SaturatingUint64(RouteBytes(input));
  decision.fetch_bytes = SaturatingUint64(v.attended * double(input.geometry.row_bytes()));
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    const CostBreakdown& cost = decision.costs[i];
    if (!cost.offered) continue;
    const auto candidate = static_cast<Primitive>(i);
    const auto total = [&](Primitive p) { return decision.costs[size_t(p)].total_us; };
    if (!decision.choice || cost.total_us < total(*decision.choice)) {
      decision.runner_up = decision.choice;
      decision.choice = candidate;
    } else if (!decision.runner_up || cost.total_us < total(*decision.runner_up)) {
      decision.runner_up = candidate;
    }
  }
  return decision;
}

std::optional<uint32_t> BreakEvenSteps(const DecisionInput& input) noexcept {
  DecisionInput probe = input;
  const auto fetch_wins = [&probe](uint32_t steps) {
    probe.steps = steps;
    const Volumes v = VolumesOf(probe);
    const CostBreakdown route = RouteCost(probe, v), fetch = FetchCost(probe, v);
    return route.offered && fetch.offered && fetch.total_us < route.total_us;
  };
  // Both costs are linear in the steps, so "fetch wins" changes sides once at most: bisect.
  if (!fetch_wins(kBreakEvenStepsMax - 1)) return std::nullopt;
  uint32_t low = 0, high = kBreakEvenStepsMax - 1;  // loses (or is no step) at low, wins at high
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (fetch_wins(middle) ? high : low) = middle;
  }
  return high;
}

uint64_t BreakEvenQueryRows(const Geometry& geometry, uint64_t tokens, bool f32_partials) noexcept {
  const uint64_t row_bytes =
      uint64_t{geometry.query_row_bytes()} + geometry.partial_row_bytes(f32_partials);
  return SaturatingUint64(double(tokens) * geometry.row_bytes() / double(row_bytes));
}

std::string DescribeDecision(const Decision& decision, const DecisionInput& input) {
  const std::string gone =
      input.gone_holder.empty() ? "" : absl::StrFormat("; gone: %s", input.gone_holder);
  if (!decision.choice) {
    return absl::StrFormat("nothing is offered: route: %s; fetch: %s; local: %s%s",
                           decision.costs[0].why_not, decision.costs[1].why_not,
                           decision.costs[2].why_not, gone);
  }
  const Primitive choice = *decision.choice;
  std::string text = absl::StrFormat("%s: %s", PrimitiveName(choice),
                                     FormatUs(decision.costs[size_t(choice)].total_us));
  if (decision.runner_up) {
    absl::StrAppendFormat(&text, " against %s %s", PrimitiveName(*decision.runner_up),
                          FormatUs(decision.costs[size_t(*decision.runner_up)].total_us));
  } else {
    absl::StrAppendFormat(&text, ", the only one offered (fetch: %s)", decision.costs[1].why_not);
  }
  if (decision.costs[0].offered && decision.costs[1].offered) {
    if (const auto steps = BreakEvenSteps(input)) {
      absl::StrAppendFormat(&text, "; fetch from %d steps on", *steps);
    } else {
      text += "; fetch at no number of steps";
    }
  }
  return text + gone;
}

}  // namespace ckv
