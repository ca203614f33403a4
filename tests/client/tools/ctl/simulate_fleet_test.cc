// Goal: `ckvctl simulate fleet` runs a fleet under each policy, compares auto with the others in
// all forms of output, and names the file, line or option that is wrong.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/result_folder.h"
#include "client/tools/ctl/simulate/fleet_command.h"
#include "client/tools/ctl/simulate/fleet_report.h"
#include "client/tools/ctl/simulate/fleet_scenario.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

struct FleetCommandRun {
  int code = 0;
  std::string out, err;
};
FleetCommandRun RunFleetVerb(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  arguments.insert(arguments.begin(), {"simulate", "fleet"});
  const int code = RunCtl(ctl, std::move(arguments));
  return {code, out.str(), err.str()};
}

FleetRow RowOf(uint32_t nodes, double load, FleetPolicy policy, double ms) {
  FleetRow row;
  row.nodes = nodes;
  row.load = load;
  row.policy = policy;
  row.mean.latency_ms.mean = ms;
  return row;
}

TEST(SimulateFleet, AutoIsComparedWithTheBestOtherPolicy) {
  const std::vector<FleetRow> rows = {
      RowOf(8, 1, FleetPolicy::kRoute, 10),  RowOf(8, 1, FleetPolicy::kFetch, 8),
      RowOf(8, 1, FleetPolicy::kAuto, 9),    RowOf(8, 2, FleetPolicy::kRoute, 10),
      RowOf(8, 2, FleetPolicy::kAuto, 9),    RowOf(64, 1, FleetPolicy::kFetch, 10),
      RowOf(64, 1, FleetPolicy::kAuto, 10.1)};
  const std::vector<FleetComparison> comparisons = CompareFleet(rows);
  ASSERT_EQ(comparisons.size(), 3u);
  EXPECT_EQ(comparisons[0].best, FleetPolicy::kFetch);
  EXPECT_EQ(comparisons[0].Ratio(), 9.0 / 8);
  const std::vector<FleetVerdict> verdicts = JudgeFleet(comparisons);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].worst_ratio, 9.0 / 8);
  EXPECT_EQ(verdicts[0].better, 1u);
  EXPECT_FALSE(verdicts[0].Holds());
  EXPECT_FALSE(verdicts[1].Holds()) << "it is not better at three loads";
  EXPECT_TRUE((FleetVerdict{.nodes = 8, .loads = 9, .better = 3, .worst_ratio = 1.02}.Holds()));
  EXPECT_TRUE(CompareFleet({rows[2]}).empty());
}

TEST(SimulateFleet, PrintsTablesAndJsonAndFillsTheFolder) {
  const std::string folder = test::TempPath("simulate/fleet");
  const FleetCommandRun text = RunFleetVerb(
      {"--nodes", "8", "--load", "50", "--load", "200", "--requests", "16", "--dir", folder});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.find("8 nodes, steps unknown: auto takes at most "), 0u) << text.out;
  EXPECT_NE(text.out.find("\nAssumed:\n"), std::string::npos);
  for (const char* file : {"simulation.json", "fleet.csv", "comparison.csv", "simulate_figures.py"})
    EXPECT_TRUE(std::ifstream(folder + "/" + file)) << file;
  const FleetCommandRun json =
      RunFleetVerb({"--nodes", "8", "--load", "50", "--requests", "16", "--seeds", "2",
                    "--prefill-us", "1", "--steps-known", "-o", "json"});
  const Json parsed = Json::parse(json.out);
  ASSERT_EQ(parsed["rows"].size(), 4u) << "local, too";
  EXPECT_EQ(parsed["rows"][2]["policy"], "local");
  EXPECT_GT(parsed["rows"][2]["recomputed_tokens"], 0);
  EXPECT_EQ(parsed["rows"][0]["latency_ms_by_seed"].size(), 2u);
  EXPECT_EQ(parsed["verdicts"].size(), 1u);
  EXPECT_EQ(parsed["fleet"]["steps_known"], true);
  EXPECT_EQ(FleetCsv({})[0].name, "fleet.csv");
}

TEST(SimulateFleet, ErrorsNameTheirOptionOrLine) {
  const auto error = [](std::vector<std::string> arguments) {
    const FleetCommandRun run = RunFleetVerb(std::move(arguments));
    EXPECT_NE(run.code, 0);
    return run.err;
  };
  EXPECT_NE(error({"--model", "gpt"}).find("no model"), std::string::npos);
  EXPECT_NE(error({"--replicas", "9"}).find("replicas: 9, must be 1 to 8"), std::string::npos);
  EXPECT_NE(error({"--cache-gib", "0"}).find("cache_bytes: 0, but a document has"),
            std::string::npos);
  EXPECT_NE(error({"--policy", "local"}).find("local: the cost of prefill is not given"),
            std::string::npos);
  const std::string path = test::TempPath("cut.yaml");
  std::ofstream(path) << "servers: [a]\n";
  EXPECT_NE(error({"--topology", path}).find(path + ":1: server_GBps: missing"), std::string::npos);
  EXPECT_NE(error({"--calibration", path}).find(path), std::string::npos);
  EXPECT_NE(error({"--topology", path, "--nodes", "8"}).find("--nodes"), std::string::npos);
  for (const char* wrong : {"-1", "0", "nan", "inf"})
    EXPECT_NE(error({"--load", wrong}).find("is not a number above 0"), std::string::npos);
  EXPECT_NE(error({"--prefill-us", "-1"}).find("is not a number from 0 on"), std::string::npos);
  EXPECT_NE(error({"--workers", "-1"}).find("--workers"), std::string::npos);
  EXPECT_NE(error({"--cache-gib", "1e12"}).find("--cache-gib: 1e+12, at most"), std::string::npos);
  // All policies are checked before the first one runs.
  EXPECT_NE(error({"--policy", "route", "--policy", "local", "--requests", "15625"})
                .find("local: the cost"),
            std::string::npos);
}

}  // namespace
}  // namespace ckv::ctl
