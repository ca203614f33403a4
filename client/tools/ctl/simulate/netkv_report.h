// The results of ckvctl simulate netkv, as tables for people, JSON and CSV.

#pragma once

#include <string>
#include <vector>

#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/simulate/netkv_paper.h"
#include "client/tools/ctl/simulate/netkv_scenarios.h"

namespace ckv::ctl {

// The assumptions of the simulation where the paper is silent; a line each.
std::vector<std::string> NetkvAssumptions();

std::string NetkvText(const std::vector<NetkvRow>& rows, const std::vector<PaperCell>& paper);
Json NetkvJson(const std::vector<NetkvRow>& rows, const std::vector<PaperCell>& paper);

// SCENARIO.csv for each scenario, and paper.csv; the first line has titles.
std::vector<CsvFile> NetkvCsv(const std::vector<NetkvRow>& rows,
                              const std::vector<PaperCell>& paper);

}  // namespace ckv::ctl
