// What would change a decision: break-evens, sensitivities, and the nearest flip of each input.
//
// Everything here asks Decide with one input changed and all others as they are. For people and
// tools: up to a millisecond, and it allocates.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/predicate.h"
#include "proto/geometry.h"

namespace ckv {

// An input that can be turned. Those of holders are turned for all candidates alike, and counted at
// the one that tells route's time.
enum class Knob : uint8_t {
  kSteps = 0,
  kQueryRows,
  kTokens,
  kAgents,
  kBandwidth,  // of lanes and tiers, by the same factor
  kProbe,      // by the same factor
  kQueue,      // by the same time
  kCacheRoom,
};
inline constexpr size_t kKnobCount = 8;
std::string_view KnobName(Knob knob);  // "query rows"
std::string_view KnobUnit(Knob knob);  // "rows"; "B/s", "us"

// The knob's value; nothing where it means nothing: bandwidth, probe and queue without a holder, or
// without a measurement.
std::optional<double> KnobValue(const DecisionInput& input, Knob knob) noexcept;
// `input` with the knob at `value`, which is brought within the limits below and, where the input
// counts something, down to a whole number.
DecisionInput WithKnob(const DecisionInput& input, Knob knob, double value);

// What a deployment can be: beyond it nobody asks whether the choice would change.
struct KnobRange {
  double min = 0;
  double max = 0;
};
KnobRange RangeOf(Knob knob) noexcept;

// The least steps, query rows, tokens or agents from which on `winner` costs less than `loser`, as
// far as costs are straight lines of it. Of steps and agents they are; of query rows and tokens not
// where a calibrated curve or a pipeline of frames bends them, a holder has compute to spare, or
// replicas change places: then it is one of the crossings, of a `winner` that wins at the end of
// the range. Room and evictions are left out. Nothing: at no value of the range, or
// one of them is not offered. Another knob: nothing.
std::optional<uint64_t> BreakEven(const DecisionInput& input, Knob knob, Primitive winner,
                                  Primitive loser);
// Fetch against route.
std::optional<uint64_t> BreakEvenSteps(const DecisionInput& input);
// The query rows from which on routing moves more bytes than fetching a layer:
// c_t b_kv / (q + p), arXiv:2606.01502 section 5.2; 1080 at 2048 DeepSeek tokens.
uint64_t BreakEvenQueryRows(const Geometry& geometry, uint64_t tokens, bool f32_partials) noexcept;

// d ln T / d ln x of the chosen cost, by knob: 1 means that the cost grows in proportion, 0 that it
// does not depend on it. All 0 where nothing is chosen or it costs nothing.
std::array<double, kKnobCount> Sensitivities(const DecisionInput& input);

// The nearest value of one input, by ratio, at which the choice is another.
struct Flip {
  Knob knob = Knob::kSteps;
  double from = 0;
  double to = 0;                    // here `choice` is made; just before it, the present one still
  std::optional<Primitive> choice;  // nothing: none would be offered any more
};
// One for each knob that has any within its range. A choice that comes and goes again within 9 % of
// an input is not seen.
std::vector<Flip> Flips(const DecisionInput& input);
// "steps: fetch from 6 on (now 1)".
std::string DescribeFlip(const Flip& flip);

// "route: 1.9 ms against fetch 5.6 ms; fetch from 6 steps on".
std::string DescribeDecision(const Decision& decision, const DecisionInput& input);

}  // namespace ckv
