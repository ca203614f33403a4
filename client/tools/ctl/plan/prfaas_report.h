// The results of ckvctl plan prfaas, as tables for people, JSON and CSV.

#pragma once

#include <string>
#include <vector>

#include "client/sizing/prfaas_model.h"
#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/plan/prfaas_profile.h"

namespace ckv::ctl {

struct PrfaasPlan {
  PrfaasThroughput best;
  PrfaasThroughput naive;        // every prefill offloaded
  PrfaasThroughput homogeneous;  // without a PrfaaS cluster; no rate if none is compared with
  std::vector<Sensitivity> sensitivities;
  // Equations 7 and 8: how thresholds and splits change the throughput of the best.
  std::vector<PrfaasThroughput> by_threshold, by_split;
};

// Searches the best split and everything around it.
PrfaasPlan MakePlan(const PrfaasProfile& profile);

std::string PlanText(const PrfaasProfile& profile, const PrfaasPlan& plan);
Json PlanJson(const PrfaasProfile& profile, const PrfaasPlan& plan);

// systems.csv, thresholds.csv, splits.csv and changes.csv, with a line of titles each.
std::vector<CsvFile> PlanCsv(const PrfaasPlan& plan);

// A figure of the source's tables 5 and 6 and its text, beside the one computed here.
struct PaperFigure {
  std::string name;
  double paper = 0, here = 0;
  std::string reason;  // why it does not follow from the source's own numbers; empty if it does
};
// `plan` is that of kPrfaasPaperProfile.
std::vector<PaperFigure> CompareWithPaper(const PrfaasProfile& profile, const PrfaasPlan& plan);
CsvFile PaperCsv(const std::vector<PaperFigure>& figures);
std::string PaperText(const std::vector<PaperFigure>& figures);
Json PaperJson(const std::vector<PaperFigure>& figures);

}  // namespace ckv::ctl
