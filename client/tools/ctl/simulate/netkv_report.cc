// Prints rows and the paper's cells in three forms: a table for people, JSON, and CSV.
// Reasons are numbered, because many cells share one.

#include "client/tools/ctl/simulate/netkv_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

std::string WorkloadName(const NetkvRow& row) {
  return std::string(kNetkvProfiles[row.cell.workload].name);
}

std::string NumberText(double value) {
  return std::abs(value) >= 100 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.3g", value);
}

// Tuning has 300 rows, of which the best of each workload are shown.
std::vector<const NetkvRow*> ShownRows(const std::vector<NetkvRow>& rows) {
  std::vector<const NetkvRow*> shown;
  std::map<size_t, const NetkvRow*> best;
  for (const NetkvRow& row : rows) {
    if (row.cell.scenario != "tune") {
      shown.push_back(&row);
      continue;
    }
    const NetkvRow*& least = best[row.cell.workload];
    if (least == nullptr || row.mean.ttft_ms_mean < least->mean.ttft_ms_mean) least = &row;
  }
  for (const auto& [workload, row] : best) shown.push_back(row);
  return shown;
}

// The share of transfers by tier, and of each level's links.
std::string ShareTitles() {
  std::string titles;
  for (size_t tier = 0; tier < FabricTree::kTiersMax; ++tier)
    titles += absl::StrFormat(",tier%d_share", tier);
  for (size_t level = 1; level < FabricTree::kTiersMax; ++level)
    titles += absl::StrFormat(",link%d_share", level);
  return titles + "\n";
}

Table ScenarioTable() {
  return Table({{.title = "SCENARIO", .key = true},
                {.title = "WORKLOAD", .key = true},
                {.title = "SETTING", .key = true},
                {.title = "POLICY", .key = true},
                {.title = "TTFT", .right = true},
                {.title = "+-", .right = true},
                {.title = "P99", .right = true},
                {.title = "TBT", .right = true},
                {.title = "SLO", .right = true},
                {.title = "TRANSFER", .right = true},
                {.title = "POD", .right = true}});
}

std::string PaperTable(const std::vector<PaperCell>& paper) {
  Table table({{.title = "TABLE", .key = true},
               {.title = "FIGURE", .key = true},
               {.title = "PAPER", .right = true},
               {.title = "HERE", .right = true},
               {.title = "DIFFERENCE", .right = true},
               {.title = "REASON", .right = true}});
  std::vector<std::string> reasons;
  for (const PaperCell& one : paper) {
    std::string reason;
    if (!one.reason.empty()) {
      auto at = std::find(reasons.begin(), reasons.end(), one.reason);
      if (at == reasons.end()) at = reasons.insert(at, one.reason);
      reason = absl::StrFormat("%d", at - reasons.begin() + 1);
    }
    const std::string difference =
        one.paper == 0 ? "-" : absl::StrFormat("%+.0f %%", 100 * (one.here / one.paper - 1));
    table.AddRow(
        {one.table, one.name, NumberText(one.paper), NumberText(one.here), difference, reason});
  }
  std::string text = table.Render();
  if (!reasons.empty()) text += "\nFigures that differ by more than 15 %:\n";
  for (size_t i = 0; i < reasons.size(); ++i)
    text += absl::StrFormat("%d  %s.\n", i + 1, reasons[i]);
  return text;
}

}  // namespace

std::vector<std::string> NetkvAssumptions() {
  return {
      "prefill takes 89.2 us a token and never waits: TTFT less transfer is 977 ms in table II",
      "an iteration takes 12.37 ms and 0.114 ms a request, from the TBT of RR in table II",
      "the first rack of every fourth has the prefill instances, so RR sends 1/3 within the pod",
      "the four flows of a transfer take one path; an instance has one card of 100 Gbps",
      "64 links of 50 Gbps lead up from a rack, and 128 of 25 Gbps from a pod",
      "background traffic is 5 % of each link and moves by 4 points; the oracle sees that",
      "10 chatbot, 6.1 RAG and 1.4 long-context requests/s are 100 % load",
      "without a trace: lengths are log-normal, outputs have 350 tokens",
      "without a trace's own prefixes: 16 shared prefixes of 4,096 tokens",
      "load in CLA* is (queued + batch) / batch_max, and equal candidates take turns",
      "all requests of the measured 15 s count, however late they end",
      "of some twenty choices of card, uplinks and background, these agree best with tables II, IV",
      "agreement with these two tables is therefore no evidence",
  };
}

std::string NetkvText(const std::vector<NetkvRow>& rows, const std::vector<PaperCell>& paper) {
  Table table = ScenarioTable();
  for (const NetkvRow* row : ShownRows(rows)) {
    const NetkvStats& mean = row->mean;
    table.AddRow(
        {row->cell.scenario, WorkloadName(*row), row->cell.setting,
         std::string(DecodePolicyName(row->cell.policy)),
         absl::StrFormat("%.0f ms", mean.ttft_ms_mean),
         absl::StrFormat("%.0f", row->ttft_ms_stddev), absl::StrFormat("%.0f ms", mean.ttft_ms_p99),
         absl::StrFormat("%.2f ms", mean.tbt_ms_mean), absl::StrFormat("%.3f", mean.slo_share),
         absl::StrFormat("%.0f ms", mean.transfer_ms_mean),
         absl::StrFormat("%.1f %%", 100 * mean.tier_share[2])});
  }
  std::string text = table.Render();
  if (!paper.empty()) text += "\n" + PaperTable(paper);
  text += "\nAssumed, because the paper is silent:\n";
  for (const std::string& one : NetkvAssumptions()) text += "* " + one + "\n";
  return text;
}

Json NetkvJson(const std::vector<NetkvRow>& rows, const std::vector<PaperCell>& paper) {
  Json json = {{"rows", Json::array()}, {"paper", Json::array()}};
  for (const NetkvRow& row : rows) {
    const NetkvStats& mean = row.mean;
    json["rows"].push_back({{"scenario", row.cell.scenario},
                            {"workload", WorkloadName(row)},
                            {"setting", row.cell.setting},
                            {"value", row.cell.value},
                            {"second_value", row.cell.second},
                            {"policy", DecodePolicyName(row.cell.policy)},
                            {"requests", mean.requests},
                            {"rejected", mean.rejected},
                            {"ttft_ms_mean", mean.ttft_ms_mean},
                            {"ttft_ms_stddev", row.ttft_ms_stddev},
                            {"ttft_ms_by_seed", row.ttft_ms_by_seed},
                            {"ttft_ms_p50", mean.ttft_ms_p50},
                            {"ttft_ms_p95", mean.ttft_ms_p95},
                            {"ttft_ms_p99", mean.ttft_ms_p99},
                            {"tbt_ms_mean", mean.tbt_ms_mean},
                            {"tbt_ms_p95", mean.tbt_ms_p95},
                            {"slo_share", mean.slo_share},
                            {"goodput_per_s", mean.goodput_per_s},
                            {"transfer_ms_mean", mean.transfer_ms_mean},
                            {"cached_share", mean.hit_share},
                            {"tier_share", mean.tier_share},
                            {"link_share", mean.link_share}});
  }
  for (const PaperCell& one : paper) {
    json["paper"].push_back({{"table", one.table},
                             {"figure", one.name},
                             {"paper", one.paper},
                             {"here", one.here},
                             {"reason", one.reason}});
  }
  json["assumptions"] = NetkvAssumptions();
  return json;
}

std::vector<CsvFile> NetkvCsv(const std::vector<NetkvRow>& rows,
                              const std::vector<PaperCell>& paper) {
  std::vector<CsvFile> files;
  for (const NetkvRow& row : rows) {
    const std::string name = row.cell.scenario + ".csv";
    if (files.empty() || files.back().name != name) {
      files.push_back(
          {name,
           "workload,setting,value,second_value,policy,requests,rejected,ttft_ms_mean,"
           "ttft_ms_stddev,ttft_ms_p50,ttft_ms_p95,ttft_ms_p99,tbt_ms_mean,tbt_ms_p95,slo_share,"
           "goodput_per_s,transfer_ms_mean,cached_share" +
               ShareTitles()});
    }
    const NetkvStats& mean = row.mean;
    files.back().text += absl::StrFormat(
        "%s,\"%s\",%g,%g,%s,%d,%d", WorkloadName(row), row.cell.setting, row.cell.value,
        row.cell.second, DecodePolicyName(row.cell.policy), mean.requests, mean.rejected);
    for (const double value :
         {mean.ttft_ms_mean, row.ttft_ms_stddev, mean.ttft_ms_p50, mean.ttft_ms_p95,
          mean.ttft_ms_p99, mean.tbt_ms_mean, mean.tbt_ms_p95, mean.slo_share, mean.goodput_per_s,
          mean.transfer_ms_mean, mean.hit_share}) {
      files.back().text += absl::StrFormat(",%.6g", value);
    }
    for (const double share : mean.tier_share) files.back().text += absl::StrFormat(",%.6g", share);
    for (size_t level = 1; level < mean.link_share.size(); ++level)
      files.back().text += absl::StrFormat(",%.6g", mean.link_share[level]);
    files.back().text += "\n";
  }
  if (!paper.empty()) files.push_back({"paper.csv", "table,figure,paper,here,reason\n"});
  for (const PaperCell& one : paper) {
    files.back().text += absl::StrFormat("%s,\"%s\",%g,%.6g,\"%s\"\n", one.table, one.name,
                                         one.paper, one.here, one.reason);
  }
  return files;
}

}  // namespace ckv::ctl
