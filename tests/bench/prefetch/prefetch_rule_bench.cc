// Question: how close does the prefetch rule come to the best policy in hindsight?
// Bounds: 1.02 x the best fixed threshold, 1.35 x the offline optimum, 1.02 x the better static
// policy if the cache is small, 1.15 x the best threshold of each half if the uses change tenfold,
// 2.05 x the clairvoyant for the first 50 uses, 1.05 x the optimum with exact hints and 1.10 x the
// rule without them if they are wrong by 10.
//
// The input is a trace of a chat service (CKV_TRACE). Request i belongs to requester i mod 8, each
// with its own rule, and attends its chunk ranges for as many steps as it decodes. All ranges of a
// request open together and close together. A routed step costs 1, a prefetch k, a step over cached
// rows nothing. The number of steps is unknown in advance. Thresholds are counted in whole steps,
// for the rule and for its competitors.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <optional>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "benchmark/benchmark.h"
#include "client/cost/prefetch_rule.h"
#include "proto/base/status.h"
#include "tests/bench/prefetch/trace.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kRequesters = 8;
constexpr double kPrices[] = {2, 6, 20, 60, 200, 350, 700, 2000, 6000};
constexpr uint64_t kUnlimited = uint64_t{1} << 40;

enum class Change { kNone, kTenTimes, kATenth };
enum class Hints { kNone, kExact, kTenTimes, kATenth, kEither };

const std::vector<TraceRequest>& Trace() {
  static const std::vector<TraceRequest> trace = [] {
    const char* const path = std::getenv("CKV_TRACE");
    if (path == nullptr) {
      std::fputs(
          "act: set CKV_TRACE to conversation_trace.jsonl of kvcache-ai/Mooncake, "
          "FAST25-release/traces; it may be compressed by xz\n",
          stderr);
      std::exit(2);
    }
    return ReadTrace(path);
  }();
  return trace;
}

std::vector<TraceRequest> Changed(Change change) {
  std::vector<TraceRequest> trace = Trace();
  for (size_t i = trace.size() / 2; i < trace.size(); ++i) {
    if (change == Change::kTenTimes) trace[i].steps *= 10;
    if (change == Change::kATenth) trace[i].steps = std::max(1u, trace[i].steps / 10);
  }
  return trace;
}

// Locally cached rows: evicts the range unused for longest.
class CachedRuns {
 public:
  explicit CachedRuns(uint64_t capacity) : capacity_(capacity) {}
  bool Touch(uint64_t run) {
    const auto known = places_.find(run);
    if (known == places_.end()) return false;
    runs_.splice(runs_.begin(), runs_, known->second);
    return true;
  }
  // Returns the evicted range.
  std::optional<uint64_t> Add(uint64_t run) {
    std::optional<uint64_t> gone;
    if (runs_.size() >= capacity_) {
      gone = runs_.back();
      places_.erase(*gone);
      runs_.pop_back();
    }
    runs_.push_front(run);
    places_[run] = runs_.begin();
    return gone;
  }

 private:
  const uint64_t capacity_;
  std::list<uint64_t> runs_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

// The cache size of each requester: a tenth of the ranges that it touches, or no limit.
std::array<uint64_t, kRequesters> CapacitiesOf(const std::vector<TraceRequest>& trace, bool tenth) {
  std::array<uint64_t, kRequesters> capacities;
  capacities.fill(kUnlimited);
  if (!tenth) return capacities;
  std::array<std::unordered_set<uint64_t>, kRequesters> touched;
  for (size_t i = 0; i < trace.size(); ++i)
    touched[i % kRequesters].insert(trace[i].runs.begin(), trace[i].runs.end());
  for (uint32_t r = 0; r < kRequesters; ++r)
    capacities[r] = std::max<size_t>(1, touched[r].size() / 10);
  return capacities;
}

// One requester under a fixed threshold.
class Fixed {
 public:
  Fixed(double threshold, double price, uint64_t capacity)
      : threshold_(std::ceil(threshold)), price_(price), cached_(capacity) {}
  double Attend(uint64_t run, double steps) {
    if (cached_.Touch(run)) return 0;
    double& lost = lost_[run];
    const double left = std::max(0.0, threshold_ - lost);
    if (steps <= left) {
      lost += steps;
      return steps;
    }
    lost = 0;
    cached_.Add(run);
    return left + price_;
  }

 private:
  const double threshold_, price_;
  CachedRuns cached_;
  std::unordered_map<uint64_t, double> lost_;
};

double FixedCost(const std::vector<TraceRequest>& trace, size_t begin, size_t end, double threshold,
                 double price, const std::array<uint64_t, kRequesters>& capacities) {
  std::vector<Fixed> requesters;
  for (const uint64_t capacity : capacities) requesters.emplace_back(threshold, price, capacity);
  double cost = 0;
  for (size_t i = begin; i < end; ++i) {
    for (const uint32_t run : trace[i].runs)
      cost += requesters[i % kRequesters].Attend(run, trace[i].steps);
  }
  return cost;
}

double BestFixed(const std::vector<TraceRequest>& trace, size_t begin, size_t end, double price) {
  double best = std::numeric_limits<double>::infinity();
  for (const double factor : PrefetchRule::kFactors) {
    best = std::min(
        best, FixedCost(trace, begin, end, factor * price, price, CapacitiesOf(trace, false)));
  }
  return best;
}

// The minimal cost if all steps of all requests were known, and the cache held all of them.
double Optimum(const std::vector<TraceRequest>& trace, double price) {
  std::array<std::unordered_map<uint64_t, double>, kRequesters> steps;
  for (size_t i = 0; i < trace.size(); ++i) {
    for (const uint32_t run : trace[i].runs) steps[i % kRequesters][run] += trace[i].steps;
  }
  double cost = 0;
  for (const auto& of : steps) {
    for (const auto& [run, all] : of) cost += std::min(all, price);
  }
  return cost;
}

// One requester with the product's rule.
class Learning {
 public:
  Learning(double price, uint64_t capacity)
      : price_(price),
        rule_({.capacity_bytes = capacity, .item_count_max = 1u << 20}),
        cached_(capacity) {}

  double Attend(const TraceRequest& request, std::optional<double> hint) {
    const Instant now = {request.ms * 1'000'000 + 1'000'000'000};
    uses_.clear();
    for (const uint32_t run : request.runs)
      uses_.push_back(rule_.Open(run, "corpus", {price_, 1}, hint, now));
    double cost = 0;
    for (size_t i = 0; i < uses_.size(); ++i) {
      cached_.Touch(request.runs[i]);
      cost += Decode(uses_[i], request.runs[i], request.steps, now);
    }
    for (const PrefetchRule::UseId use : uses_) rule_.Close(use);
    return cost;
  }

 private:
  double Decode(PrefetchRule::UseId use, uint64_t run, double steps, Instant now) {
    if (rule_.Verdict(use, now) == PrefetchVerdict::kCached) {
      rule_.Lose(use, steps, now);
      return 0;
    }
    const double left = std::ceil(rule_.LeftUs(use, now));
    if (left > 0) rule_.Lose(use, std::min(left, steps), now);
    if (steps <= left) return steps;
    rule_.PrefetchBegan(use, now);
    if (const auto gone = cached_.Add(run)) rule_.Evicted(*gone);
    rule_.Lose(use, steps - left, now);
    return left + price_;
  }

  const double price_;
  PrefetchRule rule_;
  CachedRuns cached_;
  std::vector<PrefetchRule::UseId> uses_;
};

double LearnedCost(const std::vector<TraceRequest>& trace, double price, bool tenth,
                   Hints hints = Hints::kNone) {
  std::deque<Learning> requesters;
  for (const uint64_t capacity : CapacitiesOf(trace, tenth))
    requesters.emplace_back(price, capacity);
  std::mt19937 rng(1);
  double cost = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    std::optional<double> hint;
    if (hints != Hints::kNone) {
      const bool more = hints == Hints::kTenTimes || (hints == Hints::kEither && rng() % 2 == 0);
      hint = hints == Hints::kExact ? trace[i].steps : trace[i].steps * (more ? 10.0 : 0.1);
    }
    cost += requesters[i % kRequesters].Attend(trace[i], hint);
  }
  return cost;
}

void ForPrices(benchmark::internal::Benchmark* b) {
  for (const double price : kPrices) b->Arg(static_cast<int64_t>(price));
  b->ArgName("k")->Iterations(1)->Unit(benchmark::kMillisecond);
}

void BM_Trace(benchmark::State& state) {
  const auto price = static_cast<double>(state.range(0));
  for (auto _ : state) {
    const double cost = LearnedCost(Trace(), price, false);
    state.counters["of_best"] = cost / BestFixed(Trace(), 0, Trace().size(), price);
    state.counters["of_optimum"] = cost / Optimum(Trace(), price);
  }
}
BENCHMARK(BM_Trace)->Apply(ForPrices);

void BM_TraceTenth(benchmark::State& state) {
  const auto price = static_cast<double>(state.range(0));
  const auto capacities = CapacitiesOf(Trace(), true);
  for (auto _ : state) {
    const double route = FixedCost(Trace(), 0, Trace().size(), 1e30, price, capacities);
    const double at_once = FixedCost(Trace(), 0, Trace().size(), 0, price, capacities);
    state.counters["of_static"] = LearnedCost(Trace(), price, true) / std::min(route, at_once);
  }
}
BENCHMARK(BM_TraceTenth)->Apply(ForPrices);

void BM_TraceChanges(benchmark::State& state) {
  const auto price = static_cast<double>(state.range(0));
  for (auto _ : state) {
    double worst = 0;
    for (const Change change : {Change::kTenTimes, Change::kATenth}) {
      const std::vector<TraceRequest> trace = Changed(change);
      const size_t half = trace.size() / 2;
      worst = std::max(
          worst, LearnedCost(trace, price, false) / (BestFixed(trace, 0, half, price) +
                                                     BestFixed(trace, half, trace.size(), price)));
    }
    state.counters["of_halves"] = worst;
  }
}
BENCHMARK(BM_TraceChanges)->Apply(ForPrices);

void BM_TraceHints(benchmark::State& state) {
  const auto price = static_cast<double>(state.range(0));
  for (auto _ : state) {
    state.counters["of_optimum"] =
        LearnedCost(Trace(), price, false, Hints::kExact) / Optimum(Trace(), price);
    const double plain = LearnedCost(Trace(), price, false);
    double worst = 0;
    for (const Hints hints : {Hints::kTenTimes, Hints::kATenth, Hints::kEither})
      worst = std::max(worst, LearnedCost(Trace(), price, false, hints) / plain);
    state.counters["of_plain"] = worst;
  }
}
BENCHMARK(BM_TraceHints)->Apply(ForPrices);

// Uses of fresh items from a seed: lognormal, heavy-tailed, constant or of two lengths.
std::vector<double> SeededUses(uint64_t seed, double price, size_t count) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  std::normal_distribution<double> normal;
  const uint64_t kind = rng() % 4;
  const double median = price * std::pow(10, unit(rng) * 3 - 1.5);
  const double spread = 0.2 + 1.8 * unit(rng), share = unit(rng);
  const double change = rng() % 2 == 0 ? 10 : 0.1;
  std::vector<double> uses(count);
  for (size_t i = 0; i < count; ++i) {
    double steps = median;
    if (kind == 0) steps *= std::exp(spread * normal(rng));
    if (kind == 1) steps *= std::pow(unit(rng), -1 / (0.5 + spread)) / 2;
    if (kind == 2) steps *= 1;
    if (kind == 3) steps *= unit(rng) < share ? 0.1 : 3;
    if (i >= count / 2) steps *= change;
    uses[i] = std::clamp(std::floor(steps), 1.0, 1e6);
  }
  return uses;
}

double FixedCostOf(double steps, double threshold, double price) {
  return steps <= std::ceil(threshold) ? steps : std::ceil(threshold) + price;
}

TraceRequest OneRun(uint32_t run, double steps) {
  TraceRequest request;
  request.steps = static_cast<uint32_t>(steps);
  request.runs = {run};
  return request;
}

constexpr uint64_t kSeeds = 10'000;
constexpr size_t kSeedUses = 8'000;  // what one requester of the trace sees

// Uses that change tenfold half-way.
void BM_Seeds(benchmark::State& state) {
  for (auto _ : state) {
    double worst = 0, worst_early = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const double price = kPrices[seed % std::size(kPrices)];
      const std::vector<double> uses = SeededUses(seed, price, kSeedUses);
      Learning requester(price, kUnlimited);
      std::array<std::array<double, PrefetchRule::kFactors.size()>, 2> fixed{};
      double cost = 0, clairvoyant = 0;
      for (size_t i = 0; i < uses.size(); ++i) {
        cost += requester.Attend(OneRun(static_cast<uint32_t>(i), uses[i]), {});
        for (size_t e = 0; e < PrefetchRule::kFactors.size(); ++e) {
          fixed[i >= kSeedUses / 2][e] +=
              FixedCostOf(uses[i], PrefetchRule::kFactors[e] * price, price);
        }
        clairvoyant += std::min(uses[i], price);
        if (i < PrefetchRule::kLearnUseCount)
          worst_early = std::max(worst_early, cost / clairvoyant);
      }
      double best = 0;
      for (const auto& half : fixed) best += *std::min_element(half.begin(), half.end());
      worst = std::max(worst, cost / best);
    }
    state.counters["of_halves"] = worst;
    state.counters["of_clairvoyant"] = worst_early;
  }
}
BENCHMARK(BM_Seeds)->Iterations(1)->Unit(benchmark::kMillisecond);

// An adversary that uses the rule: each use ends when it hurts most, with some chance.
void BM_Adversaries(benchmark::State& state) {
  for (auto _ : state) {
    double worst_early = 0, worst = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      std::mt19937_64 rng(seed);
      const double price = kPrices[seed % std::size(kPrices)];
      const double chance = static_cast<double>(rng() % 101) / 100;
      PrefetchRule rule({.capacity_bytes = kUnlimited});
      double cost = 0, clairvoyant = 0;
      for (uint64_t item = 0; item < 1000; ++item) {
        const PrefetchRule::UseId use = rule.Open(item, "corpus", {price, 1}, {}, {});
        const double left = std::ceil(std::min(rule.LeftUs(use, {}), 20 * price));
        const bool hurts = static_cast<double>(rng() % 100) < chance * 100;
        const double steps = hurts ? left + 1 : double(1 + rng() % uint64_t(3 * price));
        rule.Lose(use, std::min(left, steps), {});
        cost += std::min(left, steps);
        if (steps > left && rule.Verdict(use, {}) == PrefetchVerdict::kPrefetch) {
          rule.PrefetchBegan(use, {});
          cost += price;
        }
        if (steps > left) rule.Lose(use, steps - left, {});
        rule.Close(use);
        clairvoyant += std::min(steps, price);
        if (item < PrefetchRule::kLearnUseCount)
          worst_early = std::max(worst_early, cost / clairvoyant);
      }
      worst = std::max(worst, cost / clairvoyant);
    }
    state.counters["of_clairvoyant"] = worst_early;
    state.counters["of_clairvoyant_later"] = worst;
  }
}
BENCHMARK(BM_Adversaries)->Iterations(1)->Unit(benchmark::kMillisecond);

// The rule's own time for a use: opened, 400 steps of 27 layers counted in 16 parts, closed.
void BM_Use(benchmark::State& state) {
  PrefetchRule rule({.capacity_bytes = 1000});
  uint64_t item = 0;
  for (auto _ : state) {
    const PrefetchRule::UseId use = rule.Open(item++ % 5000, "corpus", {350, 1}, {}, {});
    for (int i = 0; i < 16; ++i) {
      if (rule.Lose(use, 25, {}) == PrefetchVerdict::kPrefetch) rule.PrefetchBegan(use, {});
    }
    rule.Close(use);
  }
}
BENCHMARK(BM_Use);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
