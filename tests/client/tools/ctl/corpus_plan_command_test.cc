// Goal: `ckvctl plan corpus` plans its own example, writes every table as CSV, and names the file
// and line of a profile that is wrong.

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cost/profile_file.h"
#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/plan/corpus_command.h"
#include "client/tools/ctl/plan/corpus_example.h"
#include "client/tools/ctl/plan/corpus_profile.h"
#include "client/tools/ctl/plan/corpus_report.h"
#include "client/tools/ctl/plan/profile_nodes.h"
#include "client/tools/ctl/result_folder.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

struct CorpusPlanRun {
  int code = 0;
  std::string out, err;
};
CorpusPlanRun RunPlanVerb(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  arguments.insert(arguments.begin(), {"plan", "corpus"});
  const int code = RunCtl(ctl, std::move(arguments));
  return {code, out.str(), err.str()};
}

std::string LinesOf(const std::string& path, size_t* count) {
  std::ifstream file(path);
  std::string first, line;
  std::getline(file, first);
  for (*count = 0; std::getline(file, line);) ++*count;
  return first;
}

TEST(CorpusPlanCommand, TheExampleIsPlannedAndTheFolderGetsEveryTable) {
  const std::string path = test::TempPath("corpus.yaml"), folder = test::TempPath("corpus/plan");
  std::ofstream(path) << RunPlanVerb({"--example"}).out;
  const CorpusPlanRun run = RunPlanVerb({"--profile", path, "--dir", folder, "-o", "json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["cheapest"]["machine"], "cpu-core");
  EXPECT_EQ(json["cheapest"]["primitive"], "route");
  EXPECT_TRUE(json["cheapest"]["meets_goal"]);
  for (const char* table : {"machines", "holders", "choices", "changes"}) {
    SCOPED_TRACE(table);
    size_t lines = 0;
    const std::string titles = LinesOf(folder + "/" + table + ".csv", &lines);
    EXPECT_EQ(lines, json[table].size());
    EXPECT_EQ(titles.substr(0, titles.find(',')), json[table][0].begin().key());
  }
  std::stringstream page;
  page << std::ifstream(folder + "/plan.html").rdbuf();
  const bool has_matplotlib = run.err.find("is not drawn") == std::string::npos;
  EXPECT_EQ(page.str().find("<svg") != std::string::npos, has_matplotlib) << run.err;
}

TEST(CorpusPlanCommand, TheFirstLineIsTheAnswer) {
  const std::string path = test::TempPath("answer.yaml");
  std::string text = kCorpusExampleProfile;
  std::ofstream(path) << text;
  EXPECT_EQ(RunPlanVerb({"--profile", path}).out.substr(0, 5), "Take ");
  const std::string goal = "p99_us: 2000";
  text.replace(text.find(goal), goal.size(), "p99_us: 20");
  std::ofstream(path) << text;
  const CorpusPlanRun none = RunPlanVerb({"--profile", path});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.out.substr(0, 35), "No machine on offer meets the goal.");
  EXPECT_NE(none.out.find("256 x gpu: p99 goal: 3"), std::string::npos) << none.out;
  EXPECT_NE(none.out.find("More holders do not help: a call that never waits takes"),
            std::string::npos);
}

// Replaces the first `from` of the example by `to`.
std::string CorpusErrorOf(const std::string& from, const std::string& to) {
  std::string text = kCorpusExampleProfile;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return std::string(ParseCorpusProfile("c.yaml", text).status().message());
}

TEST(CorpusPlanCommand, AWrongLineIsNamed) {
  EXPECT_EQ(CorpusErrorOf("agents: 256", "agent: 256").substr(0, 48),
            "c.yaml:10: load.agent: unknown key; known are: a");
  EXPECT_EQ(CorpusErrorOf("  replicas: 2", "  # replicas: 2"),
            "c.yaml:3: corpus.replicas: missing");
  EXPECT_EQ(CorpusErrorOf("domains_lost: 1", "domains_lost: 2"),
            "c.yaml:8: corpus.domains_lost: not a count of 0 to 1");
  EXPECT_EQ(CorpusErrorOf("model: deepseek-v2-lite", "model: gpt").substr(0, 49),
            "c.yaml:3: corpus.model: no model is named 'gpt'; ");
  EXPECT_EQ(CorpusErrorOf("dtype: bf16 ", "row_bytes: 1000 "),
            "c.yaml:4: corpus.row_bytes: 1000, but rows of these widths have 1152 (bf16) or 656 "
            "(fp8_ds_mla)");
  EXPECT_EQ(CorpusErrorOf("tokens: 1e8", "tokens: 1000"),
            "c.yaml:14: load.context_tokens: 32768, must be 1 to 1000");
  EXPECT_EQ(CorpusErrorOf("near_share: 0.25", "near_share: 25"),
            "c.yaml:17: load.near_share: 25, must be 0 to 1");
  EXPECT_EQ(CorpusErrorOf("near_share: 0.25", "near_share: nan"),
            "c.yaml:17: load.near_share: nan, must be 0 to 1");
  EXPECT_EQ(CorpusErrorOf("selected: 2048", "selected: 2048.5"),
            "c.yaml:16: load.selected: 2048.5, must be whole");
  EXPECT_EQ(CorpusErrorOf("batch: 1 ", "query_rows: 1, batch: 2 ").substr(0, 10), "c.yaml:12:");
  EXPECT_EQ(CorpusErrorOf("per: layer", "per: token"), "c.yaml:22: goal.per: not layer or step");
  EXPECT_EQ(CorpusErrorOf("{query_rows: 1, us", "{query_rows: 16, us"),
            "c.yaml:67: machines[1].kernel.anchors[1].query_rows: not above that of the point "
            "before");
  EXPECT_EQ(CorpusErrorOf("name: cpu-core", "name: gpu"),
            "c.yaml:54: machines[1].name: another machine has this name");
  EXPECT_EQ(CorpusErrorOf("    round_trip_us: 16\n", ""),
            "c.yaml:42: machines[0].round_trip_us: missing");
  EXPECT_EQ(CorpusErrorOf("policy: auto", "policy: guess"),
            "c.yaml:71: policy: not auto, route, fetch or local");
  EXPECT_EQ(CorpusErrorOf("goal: ", "goal: [").substr(0, 7), "c.yaml:");
  EXPECT_EQ(RunPlanVerb({"--profile", "/no/such.yaml"}).code, 3);
  EXPECT_NE(RunPlanVerb({}).err.find("--example"), std::string::npos);
}

std::string WithCalibration(const std::string& lane) {
  std::string text = kCorpusExampleProfile;
  const size_t at = text.find("# - name: measured");
  text.insert(at,
              "  - name: own\n    count_max: 8\n    memory_GiB: 1\n    network_Gbps: 10\n"
              "    price_per_hour: 1\n    calibration: fleet.json\n" +
                  lane);
  return text;
}

TEST(CorpusPlanCommand, ACalibrationGivesALane) {
  Profile measured;
  measured.subject = "m@r 27x576 (512+64) bf16 interleaved from x to h0 h1, quick";
  for (const char* holder : {"h0", "h1"}) {
    LaneProfile lane;
    lane.holder = holder;
    lane.fabric = "tcp";
    lane.constants = {30, 2e9, 1e9};
    lane.compute.anchor_count = 1;
    lane.compute.anchors[0] = {16, 0.1};
    lane.wire_share = 0.25;
    measured.lanes.push_back(lane);
  }
  const std::string path = test::TempPath("own.yaml");
  ASSERT_TRUE(WriteProfile(test::TempPath("fleet.json"), measured).ok());
  const auto input =
      ParseCorpusProfile(path, WithCalibration("    lane: {holder: h1, fabric: tcp}\n"));
  ASSERT_TRUE(input.ok()) << input.status();
  const Candidate& lane = input->machines[2].lane;
  EXPECT_EQ(lane.fabric, measured.lanes[1].constants);
  EXPECT_EQ(lane.wire_share, 0.25);
  const auto far = ParseCorpusProfile(
      path, WithCalibration("    lane: {holder: h1, fabric: tcp}\n    round_trip_us: 99\n"));
  EXPECT_EQ(far->machines[2].lane.fabric->t_probe_us, 99);
  EXPECT_EQ(ParseCorpusProfile(path, WithCalibration("")).status().message(),
            path +
                ":73: machines[2].calibration: choose one: lane: {holder: NAME, fabric: NAME}; "
                "it has h0 over tcp; it has h1 over tcp");
  EXPECT_EQ(ParseCorpusProfile(path, WithCalibration("    lane: {holder: h2, fabric: tcp}\n"))
                .status()
                .message(),
            path +
                ":74: machines[2].lane: the calibration has none of these names; it has h0 over "
                "tcp; it has h1 over tcp");
  measured.subject = "m@r 27x320 (256+64) bf16 interleaved from x to h0 h1, quick";
  ASSERT_TRUE(WriteProfile(test::TempPath("fleet.json"), measured).ok());
  const std::string other(ParseCorpusProfile(path, WithCalibration("")).status().message());
  EXPECT_NE(other.find(":73: machines[2].calibration: it is of"), std::string::npos) << other;
}

TEST(CorpusPlanCommand, CellsOfCsvAreQuotedIfTheyNeedIt) {
  EXPECT_EQ(CsvOf(Json::parse(R"([{"a": "x, \"y\"", "b": 1.5, "c": null}, {"a": "z", "b": 2}])")),
            "a,b,c\n\"x, \"\"y\"\"\",1.5,\nz,2,\n");
  EXPECT_EQ(CsvOf(Json::array()), "");
}

}  // namespace
}  // namespace ckv::ctl
