// Computes one HolderPlan. PlanHolders, in order:
//   1. Spread: where copies and calls are, with the domains lost that may be lost.
//   2. Decide without waits: the primitive, and the time of a call in a holder's kernel.
//   3. LoadRoute or LoadFetch: requests and bytes at each station, and the waits there.
//   4. Decide with the mean wait: the terms. Latency adds the tail of the waits.
//   5. The use of each limit, and the cost.

#include "client/sizing/corpus_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_format.h"
#include "client/sizing/queue_wait.h"

namespace ckv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUsPerSecond = 1e6;
constexpr double kSecondsPerHour = 3600;
// The 0.99 quantile of a normal distribution with deviation 1.
constexpr double kNormalP99 = 2.3263;

double TimeOnLinkUs(double bytes, double bytes_per_s) { return bytes / bytes_per_s * kUsPerSecond; }

// Bytes each way, of one link or of all.
struct Flow {
  double out = 0, in = 0;
  double Busier() const { return std::max(out, in); }
};

class OnePlan {
 public:
  OnePlan(const CorpusPlanInput& input, uint32_t machine, uint32_t holders)
      : input_(input), machine_(input.machines[machine]), layers_(input.corpus.geometry.layers) {
    plan_.machine = machine;
    plan_.holders = holders;
  }

  HolderPlan Make() {
    Spread();
    LimitSpace();
    if (plan_.holders_alive == 0) return Priced();
    const DecisionInput alone = Question(0);
    plan_.decision = Decide(alone);
    plan_.primitive = input_.policy.value_or(plan_.decision.choice.value_or(Primitive::kRoute));
    QueueWait wait;
    if (plan_.primitive == Primitive::kRoute) {
      wait = LoadRoute(alone);
    } else if (plan_.primitive == Primitive::kFetch) {
      LoadFetch();
    }
    const DecisionInput loaded = Question(wait.MeanOfLongestUs(plan_.holders_per_call));
    const Decision decision = Decide(loaded);
    plan_.loaded_choice = decision.choice;
    SetTerms(loaded, decision.cost(plan_.primitive));
    SetLatency(wait);
    LimitTimes();
    return Priced();
  }

 private:
  LimitUse& Use(PlanLimit limit) { return plan_.limits[static_cast<size_t>(limit)]; }

  void Spread() {
    const PlanCorpus& corpus = input_.corpus;
    const uint32_t largest = (plan_.holders + corpus.domains - 1) / corpus.domains;
    const uint32_t lost = std::min(plan_.holders, corpus.domains_lost * largest);
    plan_.holders_alive = plan_.holders - lost;
    plan_.shards = double(plan_.holders) / corpus.replicas;
    const double share = FullestShare(corpus, plan_.holders);
    plan_.memory_bytes = share * corpus.tokens * double(corpus.geometry.token_bytes());
    // As many holders as the context needs, if each gives all the rows that it has.
    const double needed =
        std::isfinite(share) && share > 0
            ? std::ceil(double(input_.load.context_tokens) / std::max(1.0, share * corpus.tokens))
            : 1;
    const double most = std::clamp(std::floor(plan_.shards), 1.0, double(kPlanCallHoldersMax));
    plan_.holders_per_call = static_cast<uint32_t>(
        std::min(std::max(double(input_.load.holders_per_call), needed), most));
  }

  void LimitSpace() {
    const PlanCorpus& corpus = input_.corpus;
    Use(PlanLimit::kDomains) = {double(std::max(corpus.domains, corpus.replicas)),
                                double(plan_.holders)};
    if (plan_.holders_alive == 0) Use(PlanLimit::kDomains).used = kInfinity;
    Use(PlanLimit::kMemory) = {plan_.memory_bytes, machine_.memory_bytes};
    if (machine_.disk_bytes) Use(PlanLimit::kDisk) = {plan_.memory_bytes, *machine_.disk_bytes};
  }

  // The predicate's question for a session of one requester.
  DecisionInput Question(double wait_us) const {
    const PlanLoad& load = input_.load;
    DecisionInput question;
    question.geometry = input_.corpus.geometry;
    question.tokens = load.context_tokens;
    question.selected = load.selected;
    question.query_rows = load.query_rows;
    question.steps = load.session_steps;
    question.agents = load.sharing;
    question.here = input_.requesters.here;
    question.cache_room_tokens =
        static_cast<uint64_t>(double(input_.requesters.cache_tokens) / SessionsHere());
    Candidate holder = machine_.lane;
    holder.token_share = 1.0 / plan_.holders_per_call;
    holder.queue_us = wait_us;
    // The frames of a call leave the requester by one link.
    double& bandwidth = holder.fabric->bandwidth_bytes_per_s;
    bandwidth = std::min({bandwidth, machine_.network_bytes_per_s,
                          input_.requesters.network_bytes_per_s / plan_.holders_per_call});
    double& fetch = holder.fabric->fetch_bandwidth_bytes_per_s;
    if (fetch > 0) {
      fetch =
          std::min({fetch, machine_.network_bytes_per_s, input_.requesters.network_bytes_per_s});
    }
    for (uint32_t i = 0; i < plan_.holders_per_call; ++i) {
      holder.group = i;
      question.candidates.push_back(holder);
    }
    return question;
  }

  double AgentsHere() const {
    return std::max(1.0, double(input_.load.agents) / input_.requesters.count);
  }
  // Contexts that the agents of a requester have open.
  double SessionsHere() const { return std::max(1.0, AgentsHere() / input_.load.sharing); }
  double StepsPerSecond() const { return input_.load.agents * input_.load.steps_per_s; }
  double FarCallsPerSecond() const {
    return StepsPerSecond() * layers_ * (1 - input_.load.near_share);
  }

  // The kernel's time for the part of a call that one holder has, and the bytes that it copies.
  StationLoad KernelLoad(const DecisionInput& alone) const {
    DecisionInput whole = alone;
    whole.lane_shape = std::nullopt;  // all frames of the call
    const CostBreakdown cost = Decide(whole).cost(Primitive::kRoute);
    const double rounds = Rounds();
    const double copied = (1 - std::clamp(machine_.lane.wire_share, 0.0, 1.0)) * cost.transfer_us;
    // A part of the service grows with the tokens, and so varies as they do.
    DecisionInput few = whole;
    few.tokens = 1;
    few.selected = std::min<uint64_t>(few.selected, 1);
    const double fixed = Decide(few).cost(Primitive::kRoute).compute_us;
    StationLoad load;
    load.service_us = (cost.compute_us + copied) / rounds;
    if (load.service_us > 0 && input_.load.selected == 0) {
      load.service_cv = input_.load.context_cv * std::max(0.0, cost.compute_us - fixed) / rounds /
                        load.service_us;
    }
    return load;
  }

  QueueWait LoadRoute(const DecisionInput& alone) {
    const PlanLoad& load = input_.load;
    const double h = plan_.holders_per_call, callers = load.agents;
    StationLoad kernel = KernelLoad(alone);
    kernel.requests_per_s = FarCallsPerSecond() * h / plan_.holders_alive;
    kernel.callers = callers;
    plan_.calls_per_s = kernel.requests_per_s;
    kernel.requests_per_s /= machine_.processors_per_holder;
    plan_.rows_per_s = plan_.calls_per_s * load.query_rows;
    plan_.rows_per_s_max =
        kernel.service_us > 0
            ? load.query_rows * kUsPerSecond * machine_.processors_per_holder / kernel.service_us
            : kInfinity;
    Use(PlanLimit::kKernel) = {UtilisationOf(kernel), input_.goal.utilisation_max};

    const Geometry& geometry = input_.corpus.geometry;
    const double q = double(load.query_rows) * geometry.query_row_bytes();
    const double p = double(load.query_rows) * geometry.partial_row_bytes(/*f32=*/false);
    const double all = FarCallsPerSecond();
    LimitLinks({all * h * p, all * h * q});

    QueueWait wait;
    wait.Add(kernel);
    const double here = all / input_.requesters.count;
    for (const double bytes : {q, p}) {
      wait.Add({.requests_per_s = here,
                .service_us = TimeOnLinkUs(h * bytes, input_.requesters.network_bytes_per_s),
                .callers = AgentsHere()});
      wait.Add({.requests_per_s = plan_.calls_per_s,
                .service_us = TimeOnLinkUs(bytes, machine_.network_bytes_per_s),
                .callers = callers});
    }
    return wait;
  }

  void LoadFetch() {
    const PlanLoad& load = input_.load;
    const double row_bytes = input_.corpus.geometry.row_bytes();
    double bytes_per_s = 0;
    if (load.selected > 0) {
      bytes_per_s =
          FarCallsPerSecond() * double(std::min(load.selected, load.context_tokens)) * row_bytes;
    } else {
      const double sessions_per_s =
          FarCallsPerSecond() / layers_ / load.session_steps / load.sharing;
      bytes_per_s = sessions_per_s * double(load.context_tokens) *
                    double(input_.corpus.geometry.token_bytes());
    }
    LimitLinks({bytes_per_s, 0});
    Use(PlanLimit::kCache) = {
        SessionsHere() * double(load.selected > 0 ? load.selected : load.context_tokens),
        double(input_.requesters.cache_tokens)};
    if (input_.requesters.cache_tokens == 0) Use(PlanLimit::kCache) = {kInfinity, 1};
  }

  // `all` leaves and enters the holders, all together.
  void LimitLinks(const Flow& all) {
    const double share = input_.goal.utilisation_max;
    Use(PlanLimit::kHolderNetwork) = {
        all.Busier() / plan_.holders_alive / machine_.network_bytes_per_s, share};
    Use(PlanLimit::kRequesterLink) = {
        all.Busier() / input_.requesters.count / input_.requesters.network_bytes_per_s, share};
    if (input_.network_bytes_per_s)
      Use(PlanLimit::kNetwork) = {all.Busier() / *input_.network_bytes_per_s, share};
  }

  double Rounds() const {
    return double(input_.load.session_steps) * input_.load.sharing * layers_;
  }

  void SetTerms(const DecisionInput& question, const CostBreakdown& cost) {
    PlanTerms& terms = plan_.terms;
    const double rounds = Rounds();
    if (!cost.offered) {  // no layer ever has its rows
      terms.compute_us = terms.once_us = kInfinity;
      return;
    }
    terms.compute_us = cost.compute_us / rounds;
    terms.merge_us = cost.merge_us / rounds;
    terms.wait_us = question.candidates.front().queue_us;
    const double moved = cost.transfer_us + cost.splice_us + cost.prefill_us + cost.evict_us;
    if (plan_.primitive == Primitive::kRoute || input_.load.selected > 0) {
      terms.probe_us = cost.probe_us / rounds;
      terms.transfer_us = moved / rounds;
    } else {
      terms.once_us = cost.probe_us + moved;
    }
  }

  void SetLatency(const QueueWait& wait) {
    const PlanTerms& terms = plan_.terms;
    const uint32_t h = plan_.holders_per_call;
    const double alone = terms.probe_us + terms.transfer_us + terms.compute_us + terms.merge_us;
    plan_.layer_us_mean = alone + terms.wait_us;
    plan_.layer_us_p50 = alone + wait.QuantileOfLongestUs(0.5, h);
    plan_.layer_us_p99 = alone + wait.QuantileOfLongestUs(0.99, h);
    plan_.step_us_p50 = layers_ * plan_.layer_us_mean;
    plan_.step_us_p99 =
        plan_.step_us_p50 + kNormalP99 * std::sqrt(layers_ * wait.VarianceOfLongest(h));
    // The first step of a session waits for its rows.
    const double first = 1.0 / input_.load.session_steps;
    if (first >= 0.5) AddOnce(plan_.layer_us_p50, plan_.step_us_p50);
    if (first >= 0.01) AddOnce(plan_.layer_us_p99, plan_.step_us_p99);
    plan_.layer_us_mean += terms.once_us * first / layers_;
  }

  void AddOnce(double& layer_us, double& step_us) const {
    layer_us += plan_.terms.once_us / layers_;
    step_us += plan_.terms.once_us;
  }

  void LimitTimes() {
    const PlanGoal& goal = input_.goal;
    if (goal.p50_us) {
      Use(PlanLimit::kP50) = {goal.per_step ? plan_.step_us_p50 : plan_.layer_us_p50, *goal.p50_us};
    }
    if (goal.p99_us) {
      Use(PlanLimit::kP99) = {goal.per_step ? plan_.step_us_p99 : plan_.layer_us_p99, *goal.p99_us};
    }
  }

  HolderPlan Priced() {
    plan_.price_per_hour = plan_.holders * machine_.price_per_hour;
    plan_.price_per_million_steps =
        plan_.price_per_hour / (StepsPerSecond() * kSecondsPerHour) * 1e6;
    return plan_;
  }

  const CorpusPlanInput& input_;
  const PlanMachine& machine_;
  const double layers_;
  HolderPlan plan_;
};

absl::Status Outside(const std::string& field, double value, double from, double to) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %g, must be %g to %g", field, value, from, to));
}

struct Ranged {
  const char* field;
  double value, from, to;
};

absl::Status ValidateMachine(const PlanMachine& machine, size_t index) {
  const std::string key = absl::StrFormat("machines[%d].", index);
  for (const Ranged& one :
       {Ranged{"count_max", double(machine.count_max), 1, kPlanHoldersMax},
        Ranged{"memory", machine.memory_bytes, 1, 1e18},
        Ranged{"disk", machine.disk_bytes.value_or(1), 1, 1e18},
        Ranged{"network", machine.network_bytes_per_s, 1e3, 1e15},
        Ranged{"price_per_hour", machine.price_per_hour, 0, 1e9},
        Ranged{"processors_per_holder", machine.processors_per_holder, 1e-3, 1}}) {
    if (!(one.value >= one.from && one.value <= one.to))
      return Outside(key + one.field, one.value, one.from, one.to);
  }
  if (!machine.lane.fabric || !(machine.lane.fabric->bandwidth_bytes_per_s > 0))
    return absl::InvalidArgumentError(key + "bandwidth: must be above 0");
  if (machine.lane.compute.curve.empty())
    return absl::InvalidArgumentError(key + "kernel: it has no anchors");
  return absl::OkStatus();
}

}  // namespace

const char* NameOf(PlanLimit limit) {
  switch (limit) {
    case PlanLimit::kDomains:
      return "failure domains";
    case PlanLimit::kMemory:
      return "memory of holders";
    case PlanLimit::kDisk:
      return "disk of holders";
    case PlanLimit::kKernel:
      return "kernels of holders";
    case PlanLimit::kHolderNetwork:
      return "links of holders";
    case PlanLimit::kRequesterLink:
      return "links of requesters";
    case PlanLimit::kNetwork:
      return "network";
    case PlanLimit::kCache:
      return "row caches of requesters";
    case PlanLimit::kP50:
      return "p50 goal";
    case PlanLimit::kP99:
      return "p99 goal";
  }
  return "unknown";
}

// A limit that is not kept makes those after it worse: without room for a copy memory is never
// enough, and without a free kernel or link every wait is long.
PlanLimit HolderPlan::Tightest() const {
  const auto by_ratio = [](const LimitUse& a, const LimitUse& b) { return a.Ratio() < b.Ratio(); };
  constexpr PlanLimit kGroupBegins[] = {PlanLimit::kDomains, PlanLimit::kMemory, PlanLimit::kKernel,
                                        PlanLimit::kP50};
  for (size_t i = 0; i < std::size(kGroupBegins); ++i) {
    const size_t begin = static_cast<size_t>(kGroupBegins[i]);
    const size_t end = i + 1 < std::size(kGroupBegins) ? static_cast<size_t>(kGroupBegins[i + 1])
                                                       : kPlanLimitCount;
    const auto most = std::max_element(limits.begin() + begin, limits.begin() + end, by_ratio);
    if (most->Ratio() > 1) return static_cast<PlanLimit>(most - limits.begin());
  }
  return static_cast<PlanLimit>(std::max_element(limits.begin(), limits.end(), by_ratio) -
                                limits.begin());
}

HolderPlan PlanHolders(const CorpusPlanInput& input, uint32_t machine, uint32_t holders) {
  return OnePlan(input, machine, holders).Make();
}

// A chunk has at most one copy in a domain. Copies are spread over holders evenly, except that a
// domain with too many holders gets one whole copy, and its holders less than the others.
double FullestShare(const PlanCorpus& corpus, uint32_t holders) {
  double copies = corpus.replicas, left = holders;
  uint32_t domains = corpus.domains;
  if (holders < corpus.domains || corpus.replicas > corpus.domains) return kInfinity;
  while (domains > 0) {
    const double largest = std::ceil(left / domains);
    if (largest * copies <= left) break;
    if (domains == 1) return copies / left;
    copies -= 1;
    left -= largest;
    --domains;
  }
  return copies > 0 ? copies / left : 1.0 / holders;
}

absl::Status ValidatePlanInput(const CorpusPlanInput& input) {
  const PlanCorpus& corpus = input.corpus;
  const PlanLoad& load = input.load;
  for (const Ranged& one :
       {Ranged{"corpus.layers", double(corpus.geometry.layers), 1, kLayerCountMax},
        Ranged{"corpus.d_qk", double(corpus.geometry.d_qk), 1, kRowWidthMax},
        Ranged{"corpus.d_v", double(corpus.geometry.d_v), 1, double(corpus.geometry.d_qk)},
        Ranged{"corpus.tokens", corpus.tokens, 1, 1e15},
        Ranged{"corpus.replicas", double(corpus.replicas), 1, kPlanReplicasMax},
        Ranged{"corpus.domains", double(corpus.domains), double(corpus.replicas), kPlanHoldersMax},
        Ranged{"corpus.domains_lost", double(corpus.domains_lost), 0, double(corpus.replicas) - 1},
        Ranged{"load.agents", double(load.agents), 1, 1e6},
        Ranged{"load.steps_per_s", load.steps_per_s, 1e-6, 1e6},
        Ranged{"load.query_rows", double(load.query_rows), 1, 1 << 20},
        Ranged{"load.context_tokens", double(load.context_tokens), 1, corpus.tokens},
        Ranged{"load.context_cv", load.context_cv, 0, 100},
        Ranged{"load.selected", double(load.selected), 0, double(load.context_tokens)},
        Ranged{"load.session_steps", double(load.session_steps), 1, 1 << 30},
        Ranged{"load.sharing", double(load.sharing), 1, double(load.agents)},
        Ranged{"load.near_share", load.near_share, 0, 1},
        Ranged{"load.holders_per_call", double(load.holders_per_call), 1, kPlanCallHoldersMax},
        Ranged{"goal.p50_us", input.goal.p50_us.value_or(1), 1e-3, 1e12},
        Ranged{"goal.p99_us", input.goal.p99_us.value_or(1), 1e-3, 1e12},
        Ranged{"goal.utilisation_max", input.goal.utilisation_max, 0.01, 1},
        Ranged{"requesters.count", double(input.requesters.count), 1, 1e6},
        Ranged{"requesters.network", input.requesters.network_bytes_per_s, 1e3, 1e15},
        Ranged{"network.total", input.network_bytes_per_s.value_or(1e3), 1e3, 1e18}}) {
    if (!(one.value >= one.from && one.value <= one.to))
      return Outside(one.field, one.value, one.from, one.to);
  }
  if (input.machines.empty() || input.machines.size() > kPlanMachinesMax)
    return Outside("machines", double(input.machines.size()), 1, kPlanMachinesMax);
  for (size_t i = 0; i < input.machines.size(); ++i) {
    absl::Status status = ValidateMachine(input.machines[i], i);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ckv
