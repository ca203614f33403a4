// CellList makes the cells of a scenario. RunCell makes the requests of each seed once, and
// averages.

#include "client/tools/ctl/simulate/netkv_scenarios.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

using enum DecodePolicy;

constexpr double kWarmupS = 5, kMeasureS = 15;
// The measured window of section VI-A begins at second 60 of the trace.
constexpr double kTraceFromS = 60 - kWarmupS;
constexpr size_t kRag = 1;

CacheLoadWeights TunedWeights(size_t workload) {
  return workload == 2 ? CacheLoadWeights{1.5, 0.7} : CacheLoadWeights{1, 1};
}

class CellList {
 public:
  explicit CellList(std::string scenario) { base_.scenario = std::move(scenario); }

  // Adds one cell for each policy. `set` changes the run.
  template <typename Set>
  void Add(size_t workload, const std::string& setting, double value, double second,
           std::initializer_list<DecodePolicy> policies, Set set) {
    for (const DecodePolicy policy : policies) {
      NetkvCell& cell = cells_.emplace_back(base_);
      cell.workload = workload;
      cell.setting = setting;
      cell.value = value;
      cell.second = second;
      cell.policy = policy;
      cell.weights = TunedWeights(workload);
      set(cell);
    }
  }
  std::vector<NetkvCell> Take() { return std::move(cells_); }

 private:
  NetkvCell base_;
  std::vector<NetkvCell> cells_;
};

void AddLoads(CellList& cells) {
  for (size_t workload = 0; workload < kNetkvProfiles.size(); ++workload) {
    for (const double percent : {50.0, 75.0, 100.0, 150.0, 200.0, 250.0}) {
      cells.Add(workload, absl::StrFormat("load %.0f %%", percent), percent, 0,
                {kRoundRobin, kLoad, kCache, kCacheLoad, kStatic, kFull},
                [&](NetkvCell& cell) { cell.load = percent / 100; });
    }
  }
}

void AddTopologies(CellList& cells) {
  for (size_t workload = 0; workload < kNetkvProfiles.size(); ++workload) {
    for (const double ratio : {1.0, 2.0, 4.0, 8.0}) {
      for (const double background : {0.0, 0.05, 0.1, 0.2, 0.4}) {
        cells.Add(workload, absl::StrFormat("%.0f:1, %.0f %%", ratio, 100 * background), ratio,
                  background, {kCacheLoad, kStatic, kFull}, [&](NetkvCell& cell) {
                    cell.tree.pod_bytes_per_s = cell.tree.nic_bytes_per_s / ratio;
                    // A rack's link is never the narrower one: at 1:1 all tiers are equal.
                    cell.tree.rack_bytes_per_s =
                        std::max(cell.tree.rack_bytes_per_s, cell.tree.pod_bytes_per_s);
                    cell.system.background = background;
                  });
      }
    }
  }
}

void AddScales(CellList& cells) {
  for (const uint32_t gpus : {64u, 128u, 256u, 512u, 1024u}) {
    cells.Add(kRag, absl::StrFormat("%d GPUs", gpus), gpus, 0, {kCacheLoad, kFull},
              [&](NetkvCell& cell) {
                cell.load = gpus / 64.0;
                cell.tree.pods = gpus / 32;
              });
  }
}

void AddTuning(CellList& cells) {
  for (size_t workload = 0; workload < kNetkvProfiles.size(); ++workload) {
    for (int cache = 0; cache < 10; ++cache) {
      for (int load = 0; load < 10; ++load) {
        // Ten equal steps from 0.1 to 2.0.
        const CacheLoadWeights weights = {0.1 + 1.9 / 9 * cache, 0.1 + 1.9 / 9 * load};
        cells.Add(workload, absl::StrFormat("%.2f, %.2f", weights.cache, weights.load),
                  weights.cache, weights.load, {kCacheLoad}, [&](NetkvCell& cell) {
                    cell.load = 0.8;
                    cell.weights = weights;
                  });
      }
    }
  }
}

void AddOthers(const std::string& scenario, CellList& cells) {
  if (scenario == "length") {
    for (const double tokens : {1024.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0}) {
      cells.Add(kRag, absl::StrFormat("%.0f tokens", tokens), tokens, 0,
                {kRoundRobin, kCache, kCacheLoad, kFull},
                [&](NetkvCell& cell) { cell.fixed_tokens = tokens; });
    }
  } else if (scenario == "staleness") {
    for (const double seconds : {0.1, 1.0, 5.0, 10.0, 30.0, 60.0}) {
      cells.Add(kRag, absl::StrFormat("%g s", seconds), seconds, 0, {kCacheLoad, kStatic, kFull},
                [&](NetkvCell& cell) { cell.system.oracle_period_s = seconds; });
    }
  } else if (scenario == "sharing") {
    for (const double share : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9}) {
      cells.Add(kRag, absl::StrFormat("p %.1f", share), share, 0, {kCache, kCacheLoad, kFull},
                [&](NetkvCell& cell) { cell.share_probability = share; });
    }
  } else if (scenario == "ablation") {
    for (size_t workload = 0; workload < kNetkvProfiles.size(); ++workload) {
      cells.Add(workload, "load 100 %", 100, 0, {kCacheLoad, kTopology, kStatic, kFull},
                [](NetkvCell&) {});
    }
  }
}

// Adds the fields of `from` to `sum`.
void AddStats(const NetkvStats& from, NetkvStats& sum) {
  sum.requests += from.requests;
  sum.rejected += from.rejected;
  for (const auto field :
       {&NetkvStats::ttft_ms_mean, &NetkvStats::ttft_ms_p50, &NetkvStats::ttft_ms_p95,
        &NetkvStats::ttft_ms_p99, &NetkvStats::tbt_ms_mean, &NetkvStats::tbt_ms_p95,
        &NetkvStats::slo_share, &NetkvStats::goodput_per_s, &NetkvStats::transfer_ms_mean,
        &NetkvStats::hit_share}) {
    sum.*field += from.*field;
  }
  for (size_t i = 0; i < sum.tier_share.size(); ++i) {
    sum.tier_share[i] += from.tier_share[i];
    sum.link_share[i] += from.link_share[i];
  }
}

void DivideStats(double by, NetkvStats& sum) {
  for (const auto field :
       {&NetkvStats::ttft_ms_mean, &NetkvStats::ttft_ms_p50, &NetkvStats::ttft_ms_p95,
        &NetkvStats::ttft_ms_p99, &NetkvStats::tbt_ms_mean, &NetkvStats::tbt_ms_p95,
        &NetkvStats::slo_share, &NetkvStats::goodput_per_s, &NetkvStats::transfer_ms_mean,
        &NetkvStats::hit_share}) {
    sum.*field /= by;
  }
  for (size_t i = 0; i < sum.tier_share.size(); ++i) {
    sum.tier_share[i] /= by;
    sum.link_share[i] /= by;
  }
}

}  // namespace

absl::StatusOr<std::vector<NetkvCell>> CellsOf(const std::string& scenario) {
  std::string names;
  bool known = false;
  for (const char* one : kNetkvScenarios) {
    known = known || scenario == one;
    names += (names.empty() ? "" : ", ") + std::string(one);
  }
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrFormat("no scenario is named %s; there are %s", scenario, names));
  }
  CellList cells(scenario);
  if (scenario == "load") AddLoads(cells);
  if (scenario == "topology") AddTopologies(cells);
  if (scenario == "scale") AddScales(cells);
  if (scenario == "tune") AddTuning(cells);
  AddOthers(scenario, cells);
  return cells.Take();
}

absl::StatusOr<NetkvRow> RunCell(const NetkvCell& cell, const NetkvOptions& options) {
  WorkloadSpec work = {.profile = kNetkvProfiles[cell.workload], .shape = {}};
  work.requests_per_s = work.profile.requests_per_s * cell.load;
  work.duration_s = options.requests > 0
                        ? static_cast<double>(options.requests) / work.requests_per_s
                        : kWarmupS + kMeasureS;
  work.fixed_tokens = cell.fixed_tokens;
  if (cell.share_probability >= 0) work.profile.share_probability = cell.share_probability;
  absl::StatusOr<FabricTree> made = FabricTree::Create(SpecOf(cell.tree));
  CKV_RETURN_IF_ERROR(made.status());
  const FabricTree& tree = options.topology != nullptr ? *options.topology : *made;
  NetkvRow row = {.cell = cell, .mean = {}, .ttft_ms_by_seed = {}};
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    work.seed = seed;
    CKV_ASSIGN_OR_RETURN(
        const std::vector<SimRequest> requests,
        options.trace != nullptr
            ? TakeRequests(work, *options.trace,
                           cell.scenario == "tune" || options.requests > 0 ? 0 : kTraceFromS,
                           options.own_prefixes)
            : MakeRequests(work));
    const NetkvSpec spec = {.system = cell.system,
                            .policy = cell.policy,
                            .weights = cell.weights,
                            .warmup_s = kWarmupS,
                            .slo_s = work.profile.slo_s,
                            .seed = seed};
    CKV_ASSIGN_OR_RETURN(const NetkvStats stats, RunNetkv(spec, tree, requests));
    if (stats.requests == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "of %d requests none is measured: the first %g s are a warm-up. Take more "
          "requests, or a longer trace",
          requests.size(), kWarmupS));
    }
    if (stats.rejected == stats.requests) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "all %d requests were rejected: no instance has room for one", stats.requests));
    }
    AddStats(stats, row.mean);
    row.ttft_ms_by_seed.push_back(stats.ttft_ms_mean);
  }
  DivideStats(options.seeds, row.mean);
  double squares = 0;
  for (const double one : row.ttft_ms_by_seed)
    squares += (one - row.mean.ttft_ms_mean) * (one - row.mean.ttft_ms_mean);
  row.ttft_ms_stddev = options.seeds > 1 ? std::sqrt(squares / (options.seeds - 1)) : 0;
  return row;
}

const NetkvRow* FindRow(const std::vector<NetkvRow>& rows, std::string_view scenario,
                        size_t workload, double value, DecodePolicy policy) {
  for (const NetkvRow& row : rows) {
    if (row.cell.scenario == scenario && row.cell.workload == workload && row.cell.value == value &&
        row.cell.policy == policy) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace ckv::ctl
