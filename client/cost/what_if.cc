// Searches the inputs for changes of the decision. Every search turns one knob and calls Decide:
//   BreakEven      the last crossing of two costs, from the top of the range down, then by
//                  bisection
//   Sensitivities  the change of the chosen cost for a small step of each knob
//   Flips          the nearest value of each knob, up or down, that changes the choice
// Turned scales one input, always relative to the original, so that errors do not add up.

#include "client/cost/what_if.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

struct KnobSpec {
  std::string_view name;
  std::string_view unit;
  KnobRange range;
  double unit_step;  // the first step of a search from 0, and the least step of a count
  bool counts;
};

// Rows to 2^20: a prompt of 8,192 tokens at 128 heads, which an engine cuts into several calls.
// Bandwidth from 1 MB/s to 10 TB/s, probes and queues to 10 s.
constexpr KnobSpec kKnobs[kKnobCount] = {
    {"steps", "steps", {1, 1 << 20}, 1, true},
    {"query rows", "rows", {1, 1 << 20}, 1, true},
    {"tokens", "tokens", {1, 1 << 30}, 1, true},
    {"agents", "agents", {1, 1 << 16}, 1, true},
    {"bandwidth", "B/s", {1e6, 1e13}, 1e6, false},
    {"probe", "us", {0, 1e7}, 0.01, false},
    {"queue", "us", {0, 1e7}, 0.01, false},
    {"cache room", "tokens", {0, double(uint64_t{1} << 40)}, 1, true},
};
const KnobSpec& SpecOf(Knob knob) { return kKnobs[size_t(knob)]; }

// The factor of a step: 8 steps to a doubling, so a search does not step over a window of 9 %.
const double kSearchFactor = std::exp2(1.0 / 8);
constexpr int kBisectCountMax = 60;

// The candidate whose values represent all of them: the slowest of route, or the first.
const Candidate* Reference(const DecisionInput& input) {
  if (input.candidates.empty()) return nullptr;
  const uint32_t index = Decide(input).cost(Primitive::kRoute).candidate;
  return &input.candidates[std::min<size_t>(index, input.candidates.size() - 1)];
}

double ReferenceValue(const Candidate& candidate, Knob knob) {
  switch (knob) {
    case Knob::kBandwidth:
      if (candidate.fabric) return CleanCost(candidate.fabric->bandwidth_bytes_per_s);
      return candidate.path ? CleanCost(candidate.path->bandwidth_bytes_per_s) : 0;
    case Knob::kProbe:
      if (candidate.fabric) return CleanCost(candidate.fabric->t_probe_us);
      return candidate.path ? 2 * CleanCost(candidate.path->latency_us) : 0;
    default:
      return CleanCost(candidate.queue_us);
  }
}

void TurnCandidates(DecisionInput& input, Knob knob, double from, double to) {
  // A value of 0 cannot be scaled, so all values change by the same amount.
  const auto turn = [from, to](double& value, double by) {
    value = from > 0 ? CleanCost(value) * (to / from) : CleanCost(value) + by;
  };
  for (Candidate& candidate : input.candidates) {
    if (knob == Knob::kQueue) {
      candidate.queue_us = CleanCost(CleanCost(candidate.queue_us) + (to - from));
    } else if (knob == Knob::kBandwidth) {
      if (candidate.fabric) {
        turn(candidate.fabric->bandwidth_bytes_per_s, to);
        turn(candidate.fabric->fetch_bandwidth_bytes_per_s, to);
      }
      if (candidate.path) turn(candidate.path->bandwidth_bytes_per_s, to);
    } else {
      if (candidate.fabric) turn(candidate.fabric->t_probe_us, to);
      if (candidate.path) turn(candidate.path->latency_us, to / 2);
    }
  }
}

// An input with one knob that is set again and again, always relative to the original input.
class Turned {
 public:
  // `input` must outlive it.
  Turned(const DecisionInput& input, Knob knob)
      : original_(input), input_(input), knob_(knob), from_(KnobValue(input, knob).value_or(0)) {}

  void LeaveOutRoom() { input_.cache_room_tokens = std::numeric_limits<uint64_t>::max(); }

  const DecisionInput& At(double value) {
    const KnobRange range = RangeOf(knob_);
    value = std::clamp(std::isnan(value) ? range.min : value, range.min, range.max);
    switch (knob_) {
      case Knob::kSteps:
        input_.steps = static_cast<uint32_t>(value);
        break;
      case Knob::kQueryRows:
        input_.query_rows = static_cast<uint32_t>(value);
        break;
      case Knob::kTokens:
        input_.tokens = static_cast<uint64_t>(value);
        break;
      case Knob::kAgents:
        input_.agents = static_cast<uint32_t>(value);
        break;
      case Knob::kCacheRoom:
        input_.cache_room_tokens = static_cast<uint64_t>(value);
        break;
      default:
        input_.candidates = original_.candidates;
        TurnCandidates(input_, knob_, from_, value);
    }
    return input_;
  }

 private:
  const DecisionInput& original_;
  DecisionInput input_;
  const Knob knob_;
  const double from_;
};

// The value next to `value` on the way up or down. Returns nothing beyond the range.
std::optional<double> NextValue(const KnobSpec& spec, double value, bool up) {
  double next = up ? value * kSearchFactor : value / kSearchFactor;
  if (spec.counts)
    next = up ? std::max(std::floor(next), value + 1) : std::min(std::ceil(next), value - 1);
  if (up && next < spec.unit_step) next = spec.unit_step;
  if (!up && next < spec.unit_step && value > 0) next = spec.range.min;
  if (up ? value >= spec.range.max : value <= spec.range.min) return std::nullopt;
  return std::clamp(next, spec.range.min, spec.range.max);
}

class FlipSearch {
 public:
  FlipSearch(const DecisionInput& input, Knob knob)
      : knob_(knob), choice_(Decide(input).choice), turned_(input, knob) {}

  bool Flipped(double value) { return Decide(turned_.At(value)).choice != choice_; }

  // The nearest flip in one direction.
  std::optional<Flip> Look(double from, bool up) {
    double same = from;
    while (const auto next = NextValue(SpecOf(knob_), same, up)) {
      if (Flipped(*next)) return Narrow(from, same, *next);
      same = *next;
    }
    return std::nullopt;
  }

 private:
  // `same` makes the present choice, `other` does not.
  Flip Narrow(double from, double same, double other) {
    for (int i = 0; i < kBisectCountMax; ++i) {
      double middle = same + (other - same) / 2;
      if (SpecOf(knob_).counts) middle = std::floor(middle);
      if (middle == same || middle == other) break;
      (Flipped(middle) ? other : same) = middle;
    }
    return {knob_, from, other, Decide(turned_.At(other)).choice};
  }

  const Knob knob_;
  const std::optional<Primitive> choice_;
  Turned turned_;
};

// How far two values are apart; from 0 as far as from the least step.
double RatioDistance(const Flip& flip) {
  const double floor = SpecOf(flip.knob).unit_step;
  return std::abs(std::log(std::max(flip.to, floor)) - std::log(std::max(flip.from, floor)));
}

// Three digits, trailing zeros too: two times that are compared show as much of each.
std::string ThreeDigits(double value) {
  if (value < 1) return absl::StrFormat("%.3g", value);
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

std::string FormatUs(double us) {
  if (us < 999.5) return ThreeDigits(us) + " us";
  if (us < 999.5e3) return ThreeDigits(us / 1e3) + " ms";
  return ThreeDigits(us / 1e6) + " s";
}

std::string FormatKnob(Knob knob, double value) {
  const KnobSpec& spec = SpecOf(knob);
  if (spec.counts) return absl::StrFormat("%.0f", value);
  if (knob != Knob::kBandwidth) return FormatUs(value);
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  return value < kGiB ? absl::StrFormat("%.3g MiB/s", value / kMiB)
                      : absl::StrFormat("%.3g GiB/s", value / kGiB);
}

}  // namespace

std::string_view KnobName(Knob knob) { return SpecOf(knob).name; }
std::string_view KnobUnit(Knob knob) { return SpecOf(knob).unit; }
KnobRange RangeOf(Knob knob) noexcept { return SpecOf(knob).range; }

std::optional<double> KnobValue(const DecisionInput& input, Knob knob) noexcept {
  switch (knob) {
    case Knob::kSteps:
      return input.steps;
    case Knob::kQueryRows:
      return input.query_rows;
    case Knob::kTokens:
      return double(input.tokens);
    case Knob::kAgents:
      return input.agents;
    case Knob::kCacheRoom:
      return double(input.cache_room_tokens);
    default:
      break;
  }
  const Candidate* reference = Reference(input);
  if (reference == nullptr || (!reference->fabric && !reference->path)) return std::nullopt;
  const double value = ReferenceValue(*reference, knob);
  if (std::isinf(value) || (knob == Knob::kBandwidth && value == 0)) return std::nullopt;
  return value;
}

DecisionInput WithKnob(const DecisionInput& input, Knob knob, double value) {
  if (!KnobValue(input, knob)) return input;
  return Turned(input, knob).At(value);
}

std::optional<uint64_t> BreakEven(const DecisionInput& input, Knob knob, Primitive winner,
                                  Primitive loser) {
  const KnobSpec& spec = SpecOf(knob);
  if (!spec.counts || knob == Knob::kCacheRoom) return std::nullopt;
  Turned turned(input, knob);
  turned.LeaveOutRoom();
  const auto wins = [&](double value) {
    const Decision decision = Decide(turned.At(value));
    const CostBreakdown &a = decision.cost(winner), &b = decision.cost(loser);
    return a.offered && b.offered && a.total_us < b.total_us;
  };
  double low = spec.range.min - 1, high = spec.range.max;  // not at low, or it is no value
  if (!wins(high)) return std::nullopt;
  // Two straight lines cross once at most. Bent ones may cross again below a crossing, so the
  // search for the last crossing starts from above.
  if (knob == Knob::kQueryRows || knob == Knob::kTokens) {
    for (auto next = NextValue(spec, high, /*up=*/false); next;
         next = NextValue(spec, *next, /*up=*/false)) {
      if (!wins(*next)) {
        low = *next;
        break;
      }
      high = *next;
    }
  }
  while (high - low > 1) {
    const double middle = std::floor(low + (high - low) / 2);
    (wins(middle) ? high : low) = middle;
  }
  return static_cast<uint64_t>(high);
}

std::optional<uint64_t> BreakEvenSteps(const DecisionInput& input) {
  return BreakEven(input, Knob::kSteps, Primitive::kFetch, Primitive::kRoute);
}

std::vector<Flip> Flips(const DecisionInput& input) {
  std::vector<Flip> flips;
  for (size_t i = 0; i < kKnobCount; ++i) {
    const auto knob = static_cast<Knob>(i);
    const auto value = KnobValue(input, knob);
    if (!value) continue;
    const KnobRange range = RangeOf(knob);
    const double from = std::clamp(*value, range.min, range.max);
    FlipSearch search(input, knob);
    // A value beyond the range means more space than anyone has, or an empty request.
    if (search.Flipped(from)) continue;
    const auto up = search.Look(from, /*up=*/true);
    const auto down = search.Look(from, /*up=*/false);
    if (!up && !down) continue;
    flips.push_back(!down || (up && RatioDistance(*up) <= RatioDistance(*down)) ? *up : *down);
    flips.back().from = *value;
  }
  return flips;
}

std::string DescribeFlip(const Flip& flip) {
  const std::string_view choice = flip.choice ? PrimitiveName(*flip.choice) : "none is offered";
  const std::string to = FormatKnob(flip.knob, flip.to);
  const std::string where = flip.to > flip.from ? absl::StrFormat("from %s on", to)
                                                : absl::StrFormat("at %s and below", to);
  return absl::StrFormat("%s: %s %s (now %s)", KnobName(flip.knob), choice, where,
                         FormatKnob(flip.knob, flip.from));
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
  std::string text =
      absl::StrFormat("%s: %s", PrimitiveName(choice), FormatUs(decision.cost(choice).total_us));
  if (decision.runner_up) {
    absl::StrAppendFormat(&text, " against %s %s", PrimitiveName(*decision.runner_up),
                          FormatUs(decision.cost(*decision.runner_up).total_us));
  } else {
    absl::StrAppendFormat(&text, ", the only one offered (fetch: %s)", decision.costs[1].why_not);
  }
  if (decision.costs[0].offered && decision.costs[1].offered) {
    const auto steps = BreakEvenSteps(input);
    if (steps == 1) {
      text += "; fetch at any number of steps";
    } else if (steps) {
      absl::StrAppendFormat(&text, "; fetch from %d steps on", *steps);
    } else {
      text += "; fetch at no number of steps";
    }
  }
  return text + gone;
}

}  // namespace ckv
