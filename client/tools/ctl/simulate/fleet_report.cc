// Prints the rows of a fleet, and auto beside the best of the other policies. The answer is the
// first line: whether auto keeps its bar.

#include "client/tools/ctl/simulate/fleet_report.h"

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

std::string PercentText(double share) { return absl::StrFormat("%.0f %%", 100 * share); }
std::string MsText(double ms) {
  return ms < 10 ? absl::StrFormat("%.2f ms", ms) : absl::StrFormat("%.0f ms", ms);
}

std::string FleetAnswerText(const FleetScenario& scenario, const FleetVerdict& one) {
  const char* const hint = scenario.spec.hint == FleetHint::kExact ? "known" : "unknown";
  return absl::StrFormat(
      "%d nodes, steps %s: auto takes at most %.3f x the best other policy, and is 10 %% better at "
      "%d of %d loads\n",
      one.nodes, hint, one.worst_ratio, one.better, one.loads);
}

std::string RowsTable(const std::vector<FleetRow>& rows) {
  Table table({{.title = "NODES", .right = true, .key = true},
               {.title = "LOAD", .right = true, .key = true},
               {.title = "POLICY", .key = true},
               {.title = "MEAN", .right = true},
               {.title = "P50", .right = true},
               {.title = "P99", .right = true},
               {.title = "FIRST", .right = true},
               {.title = "STEP", .right = true},
               {.title = "STEP P99", .right = true},
               {.title = "ROUTED", .right = true},
               {.title = "FETCHED", .right = true},
               {.title = "CACHED", .right = true},
               {.title = "KERNELS", .right = true},
               {.title = "LINKS", .right = true}});
  for (const FleetRow& row : rows) {
    const FleetStats& mean = row.mean;
    table.AddRow({absl::StrFormat("%d", row.nodes), PercentText(row.load),
                  std::string(FleetPolicyName(row.policy)), MsText(mean.latency_ms.mean),
                  MsText(mean.latency_ms.p50), MsText(mean.latency_ms.p99),
                  MsText(mean.first_ms.mean), MsText(mean.token_ms.mean), MsText(mean.token_ms.p99),
                  FormatBytes(static_cast<uint64_t>(mean.routed_bytes)),
                  FormatBytes(static_cast<uint64_t>(mean.fetched_bytes)),
                  PercentText(mean.cached_share), PercentText(mean.kernel_share),
                  PercentText(mean.nic_share)});
  }
  return table.Render();
}

std::string ComparisonTable(const std::vector<FleetComparison>& comparisons) {
  Table table({{.title = "NODES", .right = true, .key = true},
               {.title = "LOAD", .right = true, .key = true},
               {.title = "BEST", .key = true},
               {.title = "MEAN", .right = true},
               {.title = "AUTO", .right = true},
               {.title = "RATIO", .right = true}});
  for (const FleetComparison& one : comparisons) {
    table.AddRow({absl::StrFormat("%d", one.nodes), PercentText(one.load),
                  std::string(FleetPolicyName(one.best)), MsText(one.best_ms), MsText(one.auto_ms),
                  absl::StrFormat("%.3f", one.Ratio())});
  }
  return table.Render();
}

Json QuantilesJson(const FleetQuantiles& of) {
  return {{"mean", of.mean}, {"p50", of.p50}, {"p99", of.p99}};
}

Json RowJson(const FleetRow& row) {
  const FleetStats& mean = row.mean;
  return {{"nodes", row.nodes},
          {"load", row.load},
          {"policy", FleetPolicyName(row.policy)},
          {"requests", mean.requests},
          {"latency_ms", QuantilesJson(mean.latency_ms)},
          {"latency_ms_by_seed", row.latency_ms_by_seed},
          {"first_token_ms", QuantilesJson(mean.first_ms)},
          {"step_ms", QuantilesJson(mean.token_ms)},
          {"seconds", mean.seconds},
          {"routed_bytes", mean.routed_bytes},
          {"fetched_bytes", mean.fetched_bytes},
          {"recomputed_tokens", mean.recomputed_tokens},
          {"copies", mean.copies},
          {"evictions", mean.evictions},
          {"cached_share", mean.cached_share},
          {"own_share", mean.own_share},
          {"kernel_share", mean.kernel_share},
          {"kernel_share_max", mean.kernel_share_max},
          {"link_share", mean.nic_share},
          {"link_share_max", mean.nic_share_max},
          {"events", mean.events}};
}

Json SpecJson(const FleetScenario& scenario) {
  const FleetSpec& spec = scenario.spec;
  return {{"model", spec.geometry.ToString()},
          {"query_rows", spec.query_rows},
          {"probe_us", spec.costs.probe_us},
          {"link_bytes_per_s", spec.costs.nic_bytes_per_s},
          {"workers", spec.workers},
          {"replicas", spec.replicas},
          {"documents_per_holder", spec.documents_per_holder},
          {"document_chunks", spec.document_chunks},
          {"chunk_tokens", spec.chunk_tokens},
          {"cache_bytes", spec.cache_bytes},
          {"batch_max", spec.batch_max},
          {"zipf", spec.zipf},
          {"steps_max", spec.steps_max},
          {"steps_mean", spec.steps_mean},
          {"steps_known", spec.hint == FleetHint::kExact},
          {"learns_here", spec.learns_here},
          {"requests_per_requester", spec.requests_per_requester},
          {"seeds", scenario.seeds},
          {"first_seed", scenario.first_seed}};
}

}  // namespace

std::vector<std::string> FleetAssumptions() {
  return {
      "times are what ckv adds: an engine's other work of a step takes none",
      "100 % load is the rate that fills the holders' kernels, if each step is computed alone",
      "batches make room for more: a batch reads a chunk once for all its requests",
      "a step is one round of L-fold times: means stay, but waits vary more than those of L rounds",
      "waits within a step are exponential, where a context keeps the second least of 16 calls",
      "a node's kernels serve its holder and its requester, in the order of arrival",
      "own attends of a requester's contexts are batched, as in an engine's call of many sequences",
      "requesters learn the time of own batches, without waits, as calls do",
      "constants of links and kernels are measured before; loads and fetches are learned live",
      "without known steps, auto is the product's rule: it prefetches what has lost enough",
      "auto decides after each step, and takes each chunk as a range of its own",
      "Rank sees the rows in a local row cache, not those of a node's own holder",
      "no refusals, hedges, failures, or leased copies of hot chunks",
      "steps are steps_max^(u^4) for u in [0, 1], as those of tests/bench/prefetch/agents_mix.h",
      "the first quarter of the requests is not measured; all others count, however late they end",
  };
}

std::string FleetText(const FleetScenario& scenario, const std::vector<FleetRow>& rows) {
  const std::vector<FleetComparison> comparisons = CompareFleet(rows);
  std::string text;
  for (const FleetVerdict& one : JudgeFleet(comparisons)) text += FleetAnswerText(scenario, one);
  if (!text.empty()) text += "\n" + ComparisonTable(comparisons) + "\n";
  text += RowsTable(rows) + "\nAssumed:\n";
  for (const std::string& one : FleetAssumptions()) text += "* " + one + "\n";
  return text;
}

Json FleetJson(const FleetScenario& scenario, const std::vector<FleetRow>& rows) {
  const std::vector<FleetComparison> comparisons = CompareFleet(rows);
  Json json = {{"kind", "fleet"},           {"fleet", SpecJson(scenario)},
               {"verdicts", Json::array()}, {"comparisons", Json::array()},
               {"rows", Json::array()},     {"assumptions", FleetAssumptions()}};
  for (const FleetVerdict& one : JudgeFleet(comparisons)) {
    json["verdicts"].push_back({{"nodes", one.nodes},
                                {"loads", one.loads},
                                {"better", one.better},
                                {"worst_ratio", one.worst_ratio},
                                {"holds", one.Holds()}});
  }
  for (const FleetComparison& one : comparisons) {
    json["comparisons"].push_back({{"nodes", one.nodes},
                                   {"load", one.load},
                                   {"best", FleetPolicyName(one.best)},
                                   {"best_ms", one.best_ms},
                                   {"auto_ms", one.auto_ms},
                                   {"ratio", one.Ratio()}});
  }
  for (const FleetRow& row : rows) json["rows"].push_back(RowJson(row));
  return json;
}

std::vector<CsvFile> FleetCsv(const std::vector<FleetRow>& rows) {
  CsvFile table = {"fleet.csv",
                   "nodes,load,policy,requests,latency_ms_mean,latency_ms_p50,latency_ms_p99,"
                   "first_token_ms_mean,first_token_ms_p50,first_token_ms_p99,step_ms_mean,"
                   "step_ms_p50,step_ms_p99,routed_bytes,fetched_bytes,cached_share,"
                   "kernel_share,kernel_share_max,link_share,link_share_max\n"};
  for (const FleetRow& row : rows) {
    const FleetStats& mean = row.mean;
    table.text += absl::StrFormat("%d,%g,%s,%d", row.nodes, row.load, FleetPolicyName(row.policy),
                                  mean.requests);
    for (const FleetQuantiles& of : {mean.latency_ms, mean.first_ms, mean.token_ms})
      table.text += absl::StrFormat(",%.6g,%.6g,%.6g", of.mean, of.p50, of.p99);
    for (const double value :
         {mean.routed_bytes, mean.fetched_bytes, mean.cached_share, mean.kernel_share,
          mean.kernel_share_max, mean.nic_share, mean.nic_share_max}) {
      table.text += absl::StrFormat(",%.6g", value);
    }
    table.text += "\n";
  }
  CsvFile compared = {"comparison.csv", "nodes,load,best,best_ms,auto_ms,ratio\n"};
  for (const FleetComparison& one : CompareFleet(rows)) {
    compared.text +=
        absl::StrFormat("%d,%g,%s,%.6g,%.6g,%.6g\n", one.nodes, one.load, FleetPolicyName(one.best),
                        one.best_ms, one.auto_ms, one.Ratio());
  }
  return {table, compared};
}

}  // namespace ckv::ctl
