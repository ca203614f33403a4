// Searches the cheapest holders that meet a goal, and what changes it.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/sizing/corpus_plan.h"

namespace ckv {

// One kind of machine.
struct MachineChoice {
  uint32_t machine = 0;            // index in CorpusPlanInput::machines
  std::optional<HolderPlan> best;  // the fewest holders that meet every limit
  // The plan with the fewest holders that have room for the corpus; with all on offer if none has.
  HolderPlan least;
  HolderPlan most;  // with all machines on offer
  // If `best` is set, the limit that one holder fewer does not keep. Otherwise the one that is
  // furthest from being kept with all machines on offer.
  PlanLimit binds = PlanLimit::kDomains;
  // No number of these machines helps: with all on offer, a call without any wait is too slow.
  bool too_slow = false;
  // Plans with `least` to `most` holders, kShownCount at most. `least` and `best` are among them,
  // and the others are nearly the same factor apart.
  static constexpr uint32_t kShownCount = 48;
  std::vector<HolderPlan> shown;
};

// The effect of one change on the cheapest plan.
struct PlanChange {
  const char* change = "";         // a static text: "load +10 %"
  std::optional<HolderPlan> best;  // the cheapest one
  PlanLimit binds = PlanLimit::kDomains;
};

struct CorpusPlan {
  std::vector<MachineChoice> machines;  // in the order of the input
  std::optional<uint32_t> cheapest;     // index in `machines`; of equal prices, the first
  std::vector<PlanChange> changes;      // one more replica; goal, load, network and corpus
};

// Returns the fewest holders of one kind that meet every limit. The input must be valid.
MachineChoice ChooseHolders(const CorpusPlanInput& input, uint32_t machine);

// Plans every kind of machine, and the changes. Takes a second for 64 kinds of 4096 each.
CorpusPlan MakeCorpusPlan(const CorpusPlanInput& input);

}  // namespace ckv
