// Goal: `ckvctl simulate netkv` runs the source's experiments, prints its figures next to those
// found here with a reason where they differ, and names the line of a file that is wrong.

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/simulate/input_files.h"
#include "client/tools/ctl/simulate/netkv_paper.h"
#include "client/tools/ctl/simulate/netkv_report.h"
#include "client/tools/ctl/simulate/netkv_scenarios.h"
#include "client/tools/ctl/simulate/simulate_figures.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

struct SimulateRun {
  int code = 0;
  std::string out, err;
};
SimulateRun RunSimulate(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  arguments.insert(arguments.begin(), {"simulate", "netkv"});
  const int code = RunCtl(ctl, std::move(arguments));
  return {code, out.str(), err.str()};
}

std::string FileOf(const std::string& name, const std::string& text) {
  std::string path = test::TempPath(name);
  std::ofstream(path) << text;
  return path;
}

std::vector<NetkvRow> RowsOf(const std::string& scenario, uint32_t seeds) {
  std::vector<NetkvRow> rows;
  const std::vector<NetkvCell> cells = CellsOf(scenario).value();
  for (const NetkvCell& cell : cells) rows.push_back(RunCell(cell, {.seeds = seeds}).value());
  return rows;
}

TEST(Simulate, TheLadderOfTableFourHasItsOrder) {
  const std::vector<NetkvRow> rows = RowsOf("ablation", 10);
  for (size_t workload = 0; workload < kNetkvProfiles.size(); ++workload) {
    const auto ttft = [&](DecodePolicy policy) {
      return FindRow(rows, "ablation", workload, 100, policy)->mean.ttft_ms_mean;
    };
    // The first step is nearly all of the gain; the last one is noise (0.2 % in the source).
    EXPECT_LT(ttft(DecodePolicy::kTopology), 0.96 * ttft(DecodePolicy::kCacheLoad)) << workload;
    EXPECT_LT(ttft(DecodePolicy::kStatic), 1.005 * ttft(DecodePolicy::kTopology)) << workload;
    EXPECT_LT(ttft(DecodePolicy::kFull), 1.015 * ttft(DecodePolicy::kStatic)) << workload;
  }
  const std::vector<PaperCell> paper = CompareWithNetkv(rows);
  EXPECT_EQ(paper.size(), 33u);
  for (const PaperCell& cell : paper) {
    const double difference = std::abs(cell.here - cell.paper);
    EXPECT_EQ(cell.reason.empty(), difference <= 0.15 * std::abs(cell.paper)) << cell.name;
    if (cell.name.ends_with("TTFT ms")) {
      EXPECT_LE(difference, 0.15 * cell.paper) << cell.name << ": " << cell.here;
    }
  }
}

TEST(Simulate, EveryScenarioHasItsRuns) {
  const struct {
    const char* name;
    size_t cells;
  } expected[] = {{"load", 108},   {"length", 24},   {"topology", 180}, {"staleness", 18},
                  {"sharing", 18}, {"ablation", 12}, {"scale", 10},     {"tune", 300}};
  for (const auto& one : expected) EXPECT_EQ(CellsOf(one.name)->size(), one.cells) << one.name;
  EXPECT_EQ(CellsOf("speed").status().message(),
            "no scenario is named speed; there are load, length, topology, staleness, sharing, "
            "ablation, scale, tune");
}

TEST(Simulate, PrintsTablesAndJsonAndFillsTheFolder) {
  const std::string folder = test::TempPath("simulate/out");
  const SimulateRun text = RunSimulate(
      {"--scenario", "staleness", "--scenario", "ablation", "--seeds", "2", "--dir", folder});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("Assumed, because the paper is silent:"), std::string::npos);
  for (const char* file :
       {"simulation.json", "staleness.csv", "ablation.csv", "paper.csv", "simulate_figures.py"})
    EXPECT_TRUE(std::ifstream(folder + "/" + file)) << file;
  const SimulateRun json = RunSimulate({"--scenario", "ablation", "--seeds", "2", "-o", "json"});
  const Json parsed = Json::parse(json.out);
  EXPECT_EQ(parsed["rows"].size(), 12u);
  EXPECT_EQ(parsed["rows"][0]["policy"], "CLA*");
  EXPECT_EQ(parsed["rows"][0]["ttft_ms_by_seed"].size(), 2u);
  EXPECT_EQ(parsed["paper"].size(), 33u);
  EXPECT_NE(kSimulateFiguresScript.find("simulation.json"), std::string_view::npos);
  EXPECT_EQ(NetkvCsv({}, {}).size(), 0u);
}

TEST(Simulate, ATopologyIsReadAndItsErrorsHaveALine) {
  const std::string path = FileOf("tree.yaml", RunSimulate({"--example"}).out);
  EXPECT_EQ(ReadTopology(path)->Bandwidth(0, 7), 3.125e9);
  const SimulateRun run =
      RunSimulate({"--topology", path, "--scenario", "ablation", "--seeds", "1"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(RunSimulate({"--topology", path}).err.find("the scenario topology changes"),
            std::string::npos);
  const std::string cut =
      "server_GBps: 450\n"
      "tier_latency_us: [1, 3]\n"
      "servers:\n"
      "  - a\n"
      "  - b\n"
      "links:\n"
      "  - {from: a, to: r0, Gbps: 100}\n"
      "  - {from: b, to: r1, Gbps: 100}\n";
  EXPECT_EQ(ParseTopology("cut.yaml", cut).status().message(),
            "cut.yaml:5: servers[1]: b is not connected to a: its links end at r1, not r0");
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } changes[] = {
      {"Gbps: 100}\n  - {from: b", "Gbps: x}\n  - {from: b", "t:7: links[0].Gbps: not a number"},
      {"r1", "a", "t:8: links[1]: a is a server; links lead up from servers"},
      {"to: r1, Gbps: 100", "to: r0, Gbps: 100, count: -1", "t:8: links[1].count: not a count"},
      {"to: r1", "two: r1", "t:8: links[1]: unknown key; known are: from, to, Gbps, count"},
      {"servers:\n  - a\n  - b\n", "", "t:1: servers: missing"},
      {"Gbps: 100}\n  - {from: b", "Gbps: 0.01}\n  - {from: b",
       "t:7: links[0].Gbps: 0.01, must be 0.1 to 1e+06"},
      {"[1, 3]", "[1, 3e7]", "t:2: tier_latency_us: 3e+07, at most 1e+06"},
      {"server_GBps: 450", "server_GBps: 450\nserver_GBps: 45",
       "t:2: topology: server_GBps occurs twice"},
      {"r1, Gbps: 100}\n", "r0, Gbps: 100}\n  - {from: r2, to: r3, Gbps: 100}\n",
       "t:7: links: r2 has no server below it"},
      {"450\n", "450\n---\n", "t: 2 documents, must be one"},
      {"450", "[", "t:3: end of sequence flow not found"},
  };
  for (const auto& one : changes) {
    std::string text = cut;
    text.replace(text.find(one.from), std::string(one.from).size(), one.to);
    const std::string error(ParseTopology("t", text).status().message());
    EXPECT_EQ(error, one.error);
  }
  EXPECT_EQ(ReadTopology(test::TempPath("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Simulate, ARunWithoutAResultIsRefused) {
  const SimulateRun few =
      RunSimulate({"--scenario", "ablation", "--seeds", "1", "--requests", "1"});
  EXPECT_NE(few.err.find("of 1 requests none is measured"), std::string::npos) << few.err;
  EXPECT_NE(RunSimulate({"--seed", "18446744073709551615"}).code, 0);
  EXPECT_NE(RunSimulate({"--own-prefixes"}).err.find("--trace"), std::string::npos);
}

TEST(Simulate, ATraceOfAnotherShapeIsRefusedWithItsLine) {
  const std::string good =
      R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]})";
  const struct {
    const char* line;
    const char* error;
  } lines[] = {
      {"[]", ":2: not a JSON object"},
      {R"({"timestamp": 5, "input_length": 600, "output_length": 5})",
       ":2: hash_ids: missing or not a list"},
      {R"({"timestamp": 5, "input_length": "6", "output_length": 5, "hash_ids": []})",
       ":2: input_length: missing or not a number"},
      {R"({"timestamp": -5, "input_length": 6, "output_length": 5, "hash_ids": [1]})",
       ":2: timestamp: -5 ms, before that of the line above"},
      {R"({"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [1]})",
       ":2: hash_ids: 1 ids, but 600 tokens are 2 blocks of 512"},
      {R"({"timestamp": 5, "input_length": 6, "output_length": 5, "hash_ids": [-1]})",
       ":2: hash_ids: not a whole number of 0 or above"},
      {R"({"timestamp": 5, "input_length": 0, "output_length": 5, "hash_ids": []})",
       ":2: input_length: 0, must be 1 to 1e8"},
  };
  for (const auto& one : lines) {
    const std::string path = FileOf("trace.jsonl", good + "\n" + one.line + "\n");
    EXPECT_EQ(ReadTrace(path).status().message(), path + one.error);
  }
  const std::string path = FileOf("short.jsonl", good + "\n\n" + good + "\n");
  EXPECT_EQ(ReadTrace(path)->size(), 2u);
  const SimulateRun run = RunSimulate({"--trace", path, "--scenario", "load"});
  EXPECT_NE(run.code, 0);
  EXPECT_NE(run.err.find("requests of 128 to 8192 tokens last"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace ckv::ctl
