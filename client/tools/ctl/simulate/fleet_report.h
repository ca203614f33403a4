// The results of ckvctl simulate fleet, as tables for people, JSON and CSV.

#pragma once

#include <string>
#include <vector>

#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/simulate/fleet_scenario.h"

namespace ckv::ctl {

// The assumptions of the simulation; a line each.
std::vector<std::string> FleetAssumptions();

std::string FleetText(const FleetScenario& scenario, const std::vector<FleetRow>& rows);
Json FleetJson(const FleetScenario& scenario, const std::vector<FleetRow>& rows);
// fleet.csv with a line for each row, and comparison.csv; the first line has titles.
std::vector<CsvFile> FleetCsv(const std::vector<FleetRow>& rows);

}  // namespace ckv::ctl
