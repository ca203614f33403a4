// MakePlan computes everything. The other functions print it: as text, JSON and CSV, and beside the
// source's figures, which CompareWithPaper lists in their order.

#include "client/tools/ctl/plan/prfaas_report.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

constexpr double kGbit = 1e9 / 8;
// Thresholds in thresholds.csv, each the same factor above the one before.
constexpr int kThresholdsShown = 200;

std::string TokensText(double tokens) { return absl::StrFormat("%.0f", tokens); }
std::string RateText(double requests_per_s) {
  return requests_per_s > 0 ? absl::StrFormat("%.2f", requests_per_s) : "-";
}
std::string SecondsText(double seconds) { return absl::StrFormat("%.2f s", seconds); }

struct NamedSystem {
  const char* name;
  const PrfaasThroughput* at;
  uint32_t prfaas_instances;
};

std::vector<NamedSystem> SystemsOf(const PrfaasPlan& plan, uint32_t prfaas_instances) {
  std::vector<NamedSystem> systems = {{"best", &plan.best, prfaas_instances},
                                      {"all offloaded", &plan.naive, prfaas_instances}};
  if (plan.homogeneous.requests_per_s > 0)
    systems.push_back({"none offloaded", &plan.homogeneous, 0});
  return systems;
}

std::string InstancesText(const NamedSystem& one) {
  return absl::StrFormat("%d / %d / %d", one.prfaas_instances, one.at->split.pd_prefill,
                         one.at->split.pd_decode);
}

Json ThroughputJson(const PrfaasThroughput& at) {
  return {{"threshold_tokens", at.split.threshold},
          {"pd_prefill_instances", at.split.pd_prefill},
          {"pd_decode_instances", at.split.pd_decode},
          {"share_offloaded", at.share_offloaded},
          {"long_tokens", at.long_tokens},
          {"short_tokens", at.short_tokens},
          {"prfaas_requests_per_s", at.prfaas},
          {"pd_prefill_requests_per_s", at.pd_prefill},
          {"pd_decode_requests_per_s", at.pd_decode},
          {"requests_per_s", at.requests_per_s},
          {"limit", NameOf(at.limit)},
          {"egress_Gbps", at.egress_bytes_per_s / kGbit},
          {"mean_prefill_s", at.mean_prefill_s},
          {"p90_prefill_s", at.p90_prefill_s}};
}

std::string Row(const std::string& name, const PrfaasThroughput& at) {
  return absl::StrFormat("%s,%.6g,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%s,%.6g,%.6g,%.6g", name,
                         at.split.threshold, at.split.pd_prefill, at.split.pd_decode,
                         at.share_offloaded, at.prfaas, at.pd_prefill, at.pd_decode,
                         at.requests_per_s, NameOf(at.limit), at.egress_bytes_per_s / kGbit,
                         at.mean_prefill_s, at.p90_prefill_s);
}

constexpr char kCsvTitles[] =
    "name,threshold_tokens,pd_prefill,pd_decode,share_offloaded,prfaas_requests_per_s,"
    "pd_prefill_requests_per_s,pd_decode_requests_per_s,requests_per_s,limit,egress_Gbps,"
    "mean_prefill_s,p90_prefill_s";

std::string SystemsText(const PrfaasProfile& profile, const PrfaasPlan& plan) {
  Table table({{.title = "SYSTEM", .key = true},
               {.title = "PRFAAS/PREFILL/DECODE", .right = true},
               {.title = "REQ/S", .right = true},
               {.title = "LIMITED BY"},
               {.title = "STAGES (REQ/S)"},
               {.title = "EGRESS", .right = true},
               {.title = "MEAN PREFILL", .right = true},
               {.title = "P90", .right = true}});
  for (const NamedSystem& one : SystemsOf(plan, profile.system.prfaas_instances)) {
    const PrfaasThroughput& at = *one.at;
    table.AddRow(
        {one.name, InstancesText(one), RateText(at.requests_per_s), NameOf(at.limit),
         RateText(at.prfaas) + " / " + RateText(at.pd_prefill) + " / " + RateText(at.pd_decode),
         absl::StrFormat("%.1f Gbps", at.egress_bytes_per_s / kGbit),
         SecondsText(at.mean_prefill_s), SecondsText(at.p90_prefill_s)});
  }
  return table.Render();
}

std::string ChangesText(const PrfaasPlan& plan) {
  Table table({{.title = "CHANGE", .key = true},
               {.title = "REQ/S", .right = true},
               {.title = "GAIN", .right = true},
               {.title = "THRESHOLD", .right = true},
               {.title = "PREFILL/DECODE", .right = true},
               {.title = "LIMITED BY"}});
  for (const Sensitivity& one : plan.sensitivities) {
    table.AddRow({one.change, RateText(one.best.requests_per_s),
                  absl::StrFormat("%+.1f %%", 100 * one.gain), TokensText(one.best.split.threshold),
                  absl::StrFormat("%d / %d", one.best.split.pd_prefill, one.best.split.pd_decode),
                  NameOf(one.best.limit)});
  }
  return table.Render();
}

}  // namespace

PrfaasPlan MakePlan(const PrfaasProfile& profile) {
  const PrfaasSystem& system = profile.system;
  PrfaasPlan plan;
  plan.best = BestSplit(system);
  plan.naive = NaiveHeterogeneous(system);
  if (profile.homogeneous_instances > 0)
    plan.homogeneous = BestHomogeneous(system, profile.homogeneous_instances);
  plan.sensitivities = Sensitivities(system);
  const double first = std::max(1.0, system.lengths.tokens_min());
  const double ratio = std::log(system.lengths.tokens_max() / first);
  for (int i = 0; i < kThresholdsShown; ++i) {
    PrfaasSplit split = plan.best.split;
    split.threshold = first * std::exp(ratio * i / kThresholdsShown);
    plan.by_threshold.push_back(ThroughputOf(system, split));
  }
  for (uint32_t prefill = 1; prefill < system.pd_instances; ++prefill) {
    plan.by_split.push_back(
        ThroughputOf(system, {plan.best.split.threshold, prefill, system.pd_instances - prefill}));
  }
  return plan;
}

std::string PlanText(const PrfaasProfile& profile, const PrfaasPlan& plan) {
  const PrfaasThroughput& best = plan.best;
  const LengthDistribution& lengths = profile.system.lengths;
  std::string text = absl::StrFormat(
      "Offload inputs longer than %s tokens, and give %d of the %d PD instances to prefill: %s "
      "requests/s.\n\n",
      TokensText(best.split.threshold), best.split.pd_prefill, profile.system.pd_instances,
      RateText(best.requests_per_s));
  text += RenderFields(
      {{"lengths", absl::StrFormat("mean %s tokens, 90 %% have at most %s",
                                   TokensText(lengths.Mean()), TokensText(lengths.Quantile(0.9)))},
       {"offloaded", absl::StrFormat("%.1f %% of requests, mean %s tokens; the others have %s",
                                     100 * best.share_offloaded, TokensText(best.long_tokens),
                                     TokensText(best.short_tokens))},
       {"egress", absl::StrFormat("%.1f of %.0f Gbps", best.egress_bytes_per_s / kGbit,
                                  profile.system.egress_bytes_per_s / kGbit)},
       {"limited by", NameOf(best.limit)}});
  text += "\n" + SystemsText(profile, plan) + "\n" + ChangesText(plan);
  return text + "\nTimes are of prefills alone: the model has no queues.\n";
}

Json PlanJson(const PrfaasProfile& profile, const PrfaasPlan& plan) {
  Json json = {{"lengths",
                {{"mean_tokens", profile.system.lengths.Mean()},
                 {"p90_tokens", profile.system.lengths.Quantile(0.9)}}},
               {"prfaas_instances", profile.system.prfaas_instances},
               {"egress_limit_Gbps", profile.system.egress_bytes_per_s / kGbit},
               {"best", ThroughputJson(plan.best)},
               {"all_offloaded", ThroughputJson(plan.naive)},
               {"changes", Json::array()},
               {"by_threshold", Json::array()},
               {"by_split", Json::array()}};
  if (plan.homogeneous.requests_per_s > 0)
    json["none_offloaded"] = ThroughputJson(plan.homogeneous);
  for (const Sensitivity& one : plan.sensitivities) {
    Json change = {{"change", one.change}, {"gain", one.gain}};
    change.update(ThroughputJson(one.best));
    json["changes"].push_back(std::move(change));
  }
  for (const PrfaasThroughput& at : plan.by_threshold)
    json["by_threshold"].push_back(ThroughputJson(at));
  for (const PrfaasThroughput& at : plan.by_split) json["by_split"].push_back(ThroughputJson(at));
  return json;
}

std::vector<CsvFile> PlanCsv(const PrfaasPlan& plan) {
  const std::string titles = std::string(kCsvTitles) + "\n";
  std::vector<CsvFile> files = {{"systems.csv", titles},
                                {"thresholds.csv", titles},
                                {"splits.csv", titles},
                                {"changes.csv", std::string(kCsvTitles) + ",gain\n"}};
  for (const NamedSystem& one : SystemsOf(plan, 0)) files[0].text += Row(one.name, *one.at) + "\n";
  for (const PrfaasThroughput& at : plan.by_threshold)
    files[1].text += Row(TokensText(at.split.threshold), at) + "\n";
  for (const PrfaasThroughput& at : plan.by_split)
    files[2].text += Row(std::to_string(at.split.pd_prefill), at) + "\n";
  for (const Sensitivity& one : plan.sensitivities)
    files[3].text += Row(one.change, one.best) + absl::StrFormat(",%.6g\n", one.gain);
  return files;
}

CsvFile PaperCsv(const std::vector<PaperFigure>& figures) {
  CsvFile file = {"paper.csv", "figure,paper,here,reason\n"};
  for (const PaperFigure& one : figures) {
    file.text +=
        absl::StrFormat("\"%s\",%.6g,%.6g,\"%s\"\n", one.name, one.paper, one.here, one.reason);
  }
  return file;
}

std::vector<PaperFigure> CompareWithPaper(const PrfaasProfile& profile, const PrfaasPlan& plan) {
  const PrfaasSystem& system = profile.system;
  std::vector<PaperFigure> figures;
  const auto add = [&](std::string name, double paper, double here, std::string reason = "") {
    figures.push_back({std::move(name), paper, here, std::move(reason)});
  };
  const std::pair<double, double> table5[] = {
      {1000, 3.61}, {8000, 3.59}, {32000, 3.19}, {128000, 2.62}};
  for (const auto& [tokens, gbps] : table5) {
    add(absl::StrFormat("table 5: Phi_kv at %.0fK tokens, Gbps", tokens / 1000), gbps,
        KvBytesPerSecond(system.kv_bytes, system.prfaas_prefill_s, tokens) / kGbit);
  }
  const PrfaasThroughput& best = plan.best;
  add("4.1: mean length, tokens", 27000, system.lengths.Mean());
  add("table 6: threshold, tokens", 19400, best.split.threshold);
  add("table 6: N_p", 3, best.split.pd_prefill);
  add("table 6: N_d", 5, best.split.pd_decode);
  add("4.3.1: share offloaded", 0.496, best.share_offloaded);
  add("4.3.1: l_long, tokens", 44000, best.long_tokens);
  add("table 6: Theta_prfaas, req/s", 1.61, best.prfaas);
  add("table 6: Theta_pd-p, req/s", 1.64, best.pd_prefill);
  add("table 6: Theta_pd-d, req/s", 3.91, best.pd_decode);
  add("table 6: Lambda_max, req/s", 3.24, best.requests_per_s);
  add("4.3.1: egress, Gbps", 13, best.egress_bytes_per_s / kGbit,
      "3.24 requests/s x 0.496 x S_kv(44K) are 12.3 Gbps. 13.0 is the egress if every prefill is "
      "offloaded");
  add("table 6: mean TTFT, s", 2.22, best.mean_prefill_s);
  add("table 6: P90 TTFT, s", 3.51, best.p90_prefill_s,
      "the time of a prefill of the P90 length, 62K tokens, is 3.39 s by table 5; queues and "
      "transfers are in no equation");
  add("table 6: homogeneous N_p", 9, plan.homogeneous.split.pd_prefill);
  add("table 6: homogeneous Theta_pd-p, req/s", 2.11, plan.homogeneous.pd_prefill);
  add("table 6: homogeneous Theta_pd-d, req/s", 2.35, plan.homogeneous.pd_decode);
  add("table 6: homogeneous Lambda_max, req/s", 2.11, plan.homogeneous.requests_per_s);
  add("table 6: homogeneous mean TTFT, s", 4.44, plan.homogeneous.mean_prefill_s);
  add("table 6: homogeneous P90 TTFT, s", 9.73, plan.homogeneous.p90_prefill_s);
  add("table 6: naive Theta_prfaas, req/s", 2.45, plan.naive.prfaas);
  add("table 6: naive Theta_pd-d, req/s", 6.25, plan.naive.pd_decode);
  add("table 6: naive Lambda_max, req/s", 2.45, plan.naive.requests_per_s);
  add("table 6: naive mean TTFT, s", 1.74, plan.naive.mean_prefill_s,
      "the mean of table 5's prefill times over the lengths is 1.67 s; queues and transfers are in "
      "no equation");
  add("table 6: naive P90 TTFT, s", 3.51, plan.naive.p90_prefill_s, "as P90 TTFT");
  add("table 6: ratio to homogeneous", 1.54, best.requests_per_s / plan.homogeneous.requests_per_s);
  add("table 6: ratio of naive", 1.16, plan.naive.requests_per_s / plan.homogeneous.requests_per_s);
  // Table 3 gives the examples of section 2.3. An instance has 8 GPUs: 512 are 64 instances.
  add("2.3: 512 GPUs, MiniMax-M2.5 at 32K, Tbps", 3.8, 64 * 59.93 / 1000);
  add("2.3: 512 GPUs, Qwen3-235B at 32K, Tbps", 2.1, 64 * 33.35 / 1000);
  add("2.3: 512 GPUs, Ring-2.5-1T at 32K, Gbps", 170, 64 * 2.59);
  add("2.3: 10,000 GPUs, Ring-2.5-1T at 128K, Tbps", 1.8, 1250 * 1.46 / 1000);
  return figures;
}

std::string PaperText(const std::vector<PaperFigure>& figures) {
  Table table({{.title = "FIGURE", .key = true},
               {.title = "SOURCE", .right = true},
               {.title = "HERE", .right = true},
               {.title = "DIFFERENCE", .right = true}});
  std::string reasons;
  for (const PaperFigure& one : figures) {
    table.AddRow({one.name, absl::StrFormat("%.4g", one.paper), absl::StrFormat("%.4g", one.here),
                  absl::StrFormat("%+.1f %%", 100 * (one.here / one.paper - 1))});
    if (!one.reason.empty()) reasons += absl::StrFormat("* %s: %s.\n", one.name, one.reason);
  }
  return table.Render() + "\nNot from the source's own numbers:\n" + reasons +
         "The source does not measure prefills of the PD cluster. The profile has them from the "
         "rates "
         "1.64 and 2.11\nand from the P90 of 9.73 s, so these three are no test.\n";
}

Json PaperJson(const std::vector<PaperFigure>& figures) {
  Json json = Json::array();
  for (const PaperFigure& one : figures) {
    json.push_back(
        {{"figure", one.name}, {"source", one.paper}, {"here", one.here}, {"reason", one.reason}});
  }
  return json;
}

}  // namespace ckv::ctl
