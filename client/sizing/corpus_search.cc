// ChooseHolders counts holders up from one. More holders are not always better: with more, a call
// may take part of its rows from each of more, which loads requesters' links. So it neither jumps
// nor bisects, and the first number that meets all limits is the fewest.

#include "client/sizing/corpus_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ckv {
namespace {

constexpr PlanLimit kSpaceLimits[] = {PlanLimit::kDomains, PlanLimit::kMemory, PlanLimit::kDisk};

bool HasRoom(const HolderPlan& plan) {
  return std::all_of(std::begin(kSpaceLimits), std::end(kSpaceLimits),
                     [&](PlanLimit limit) { return plan.use(limit).Ratio() <= 1; });
}

// The first number of holders with room for the corpus. Room only grows with holders, except where
// domains become uneven, by one holder.
uint32_t FirstWithRoom(const CorpusPlanInput& input, uint32_t machine) {
  const PlanMachine& kind = input.machines[machine];
  const double bytes = input.corpus.tokens * double(input.corpus.geometry.token_bytes());
  const double room = std::min(kind.memory_bytes, kind.disk_bytes.value_or(kind.memory_bytes));
  for (uint32_t holders = 1; holders < kind.count_max; ++holders) {
    const uint32_t largest = (holders + input.corpus.domains - 1) / input.corpus.domains;
    const bool alive = holders > largest * input.corpus.domains_lost;
    if (alive && FullestShare(input.corpus, holders) * bytes <= room) return holders;
  }
  return kind.count_max;
}

// The waits are what more holders shorten. Without them, only the parts of a call are left.
bool TooSlowAlone(const CorpusPlanInput& input, const HolderPlan& plan) {
  const PlanGoal& goal = input.goal;
  const PlanTerms& terms = plan.terms;
  const double layer_us = terms.probe_us + terms.transfer_us + terms.compute_us + terms.merge_us;
  const double alone = goal.per_step ? layer_us * input.corpus.geometry.layers : layer_us;
  return (goal.p50_us && alone > *goal.p50_us) || (goal.p99_us && alone > *goal.p99_us);
}

std::vector<HolderPlan> PlansBetween(const CorpusPlanInput& input, const MachineChoice& choice) {
  std::vector<uint32_t> counts = {choice.least.holders};
  if (choice.best) counts.push_back(choice.best->holders);
  const double first = choice.least.holders;
  const double last = choice.most.holders;
  constexpr uint32_t kSteps = MachineChoice::kShownCount - 2;
  for (uint32_t i = 1; i <= kSteps; ++i) {
    counts.push_back(
        static_cast<uint32_t>(std::lround(first * std::pow(last / first, double(i) / kSteps))));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  std::vector<HolderPlan> plans;
  plans.reserve(counts.size());
  for (const uint32_t holders : counts)
    plans.push_back(PlanHolders(input, choice.machine, holders));
  return plans;
}

// Without `shown`.
MachineChoice Fewest(const CorpusPlanInput& input, uint32_t machine) {
  MachineChoice choice;
  choice.machine = machine;
  const uint32_t count_max = input.machines[machine].count_max;
  choice.most = PlanHolders(input, machine, count_max);
  const uint32_t least = FirstWithRoom(input, machine);
  choice.least = PlanHolders(input, machine, least);
  for (uint32_t holders = least; HasRoom(choice.least) && holders <= count_max; ++holders) {
    const HolderPlan plan = PlanHolders(input, machine, holders);
    if (!plan.meets()) continue;
    choice.best = plan;
    break;
  }
  if (!choice.best) {
    choice.binds = choice.most.Tightest();
    choice.too_slow = TooSlowAlone(input, choice.most);
  } else if (choice.best->holders == 1) {
    choice.binds = choice.best->Tightest();
  } else {
    choice.binds = PlanHolders(input, machine, choice.best->holders - 1).Tightest();
  }
  return choice;
}

template <typename Choices>
std::optional<uint32_t> CheapestOf(const Choices& choices) {
  std::optional<uint32_t> cheapest;
  for (uint32_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].best) continue;
    if (!cheapest || choices[i].best->price_per_hour < choices[*cheapest].best->price_per_hour)
      cheapest = i;
  }
  return cheapest;
}

PlanChange Changed(const char* name, const CorpusPlanInput& input) {
  PlanChange change;
  change.change = name;
  std::vector<MachineChoice> choices;
  for (uint32_t i = 0; i < input.machines.size(); ++i) choices.push_back(Fewest(input, i));
  if (const auto cheapest = CheapestOf(choices)) {
    change.best = choices[*cheapest].best;
    change.binds = choices[*cheapest].binds;
  } else {
    // The kind that is nearest to the goal.
    const auto nearest = std::min_element(
        choices.begin(), choices.end(), [](const MachineChoice& a, const MachineChoice& b) {
          return a.most.use(a.binds).Ratio() < b.most.use(b.binds).Ratio();
        });
    change.binds = nearest->binds;
  }
  return change;
}

// Doubles every link. A calibrated lane is limited by its link, so its bandwidth doubles, too.
void DoubleNetwork(CorpusPlanInput& input) {
  input.requesters.network_bytes_per_s *= 2;
  if (input.network_bytes_per_s) *input.network_bytes_per_s *= 2;
  for (PlanMachine& machine : input.machines) {
    machine.network_bytes_per_s *= 2;
    machine.lane.fabric->bandwidth_bytes_per_s *= 2;
    machine.lane.fabric->fetch_bandwidth_bytes_per_s *= 2;
  }
}

std::vector<PlanChange> ChangesOf(const CorpusPlanInput& input) {
  std::vector<PlanChange> changes;
  CorpusPlanInput changed = input;
  ++changed.corpus.replicas;
  changed.corpus.domains = std::max(changed.corpus.domains, changed.corpus.replicas);
  changes.push_back(Changed("one replica more", changed));
  changed = input;
  if (changed.goal.p50_us) *changed.goal.p50_us *= 0.9;
  if (changed.goal.p99_us) *changed.goal.p99_us *= 0.9;
  changes.push_back(Changed("goal -10 %", changed));
  changed = input;
  changed.load.steps_per_s *= 1.1;
  changes.push_back(Changed("load +10 %", changed));
  changed = input;
  DoubleNetwork(changed);
  changes.push_back(Changed("network x 2", changed));
  changed = input;
  changed.corpus.tokens *= 2;
  changes.push_back(Changed("corpus x 2", changed));
  return changes;
}

}  // namespace

MachineChoice ChooseHolders(const CorpusPlanInput& input, uint32_t machine) {
  MachineChoice choice = Fewest(input, machine);
  choice.shown = PlansBetween(input, choice);
  return choice;
}

CorpusPlan MakeCorpusPlan(const CorpusPlanInput& input) {
  CorpusPlan plan;
  for (uint32_t i = 0; i < input.machines.size(); ++i)
    plan.machines.push_back(ChooseHolders(input, i));
  plan.cheapest = CheapestOf(plan.machines);
  plan.changes = ChangesOf(input);
  return plan;
}

}  // namespace ckv
