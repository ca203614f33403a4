// Shows which changes would change a decision: break-evens, and the nearest flips.
//
// Every function here calls Decide with one input changed and all others unchanged. They are for
// people and tools: each takes up to a millisecond and allocates.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cost/predicate.h"

namespace ckv {

// An input that can be changed. A holder's input changes for all candidates alike. Its value is
// that of the candidate that determines the time of a route.
enum class Knob : uint8_t {
  kSteps = 0,
  kQueryRows,
  kTokens,
  kAgents,
  kBandwidth,  // scales lanes and tiers by one factor
  kProbe,      // scales all candidates by one factor
  kQueue,      // adds the same time to all candidates
  kCacheRoom,
};
inline constexpr size_t kKnobCount = 8;
std::string_view KnobName(Knob knob);  // "query rows"
std::string_view KnobUnit(Knob knob);  // "rows"; "B/s", "us"

// Returns the knob's value. Bandwidth, probe and queue have none if there is no holder or no
// measurement.
std::optional<double> KnobValue(const DecisionInput& input, Knob knob) noexcept;
// Returns `input` with the knob at `value`, limited to RangeOf(knob) and rounded down if the knob
// counts something. If the knob has no value, returns `input` unchanged.
DecisionInput WithKnob(const DecisionInput& input, Knob knob, double value);

// The range that deployments can have. Choices beyond it are of no interest.
struct KnobRange {
  double min = 0;
  double max = 0;
};
KnobRange RangeOf(Knob knob) noexcept;

// Returns the least steps, query rows, tokens or agents from which on `winner` costs less than
// `loser`. Costs are straight lines of steps and agents. Over query rows and tokens they bend where
// a kernel is no longer limited by memory, and at the anchors of its curve. They also bend in a
// pipeline of frames, and if a holder has spare compute or replicas change places. The result is
// then the last crossing, unless `loser` wins again within 9 % of the input.
//
// Ignores room and evictions. The result is empty if `winner` does not win at the end of the range,
// or if one of the two is not offered. It is also empty for any other knob.
std::optional<uint64_t> BreakEven(const DecisionInput& input, Knob knob, Primitive winner,
                                  Primitive loser);
// Returns the steps from which on fetch costs less than route.
std::optional<uint64_t> BreakEvenSteps(const DecisionInput& input);

// The nearest value of one input, by ratio, at which the choice changes.
struct Flip {
  Knob knob = Knob::kSteps;
  double from = 0;
  // The first value at which `choice` is made; just before it the present choice still applies.
  double to = 0;
  std::optional<Primitive> choice;  // if unset, nothing would be offered
};
// Returns one flip for each knob that has one within its range. Misses a choice that appears and
// disappears within 9 % of an input.
std::vector<Flip> Flips(const DecisionInput& input);
// Returns, for example, "steps: fetch from 6 on (now 1)".
std::string DescribeFlip(const Flip& flip);

// Returns, for example, "route: 1.9 ms against fetch 5.6 ms; fetch from 6 steps on".
std::string DescribeDecision(const Decision& decision, const DecisionInput& input);

}  // namespace ckv
