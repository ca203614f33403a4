// Goal: `ckvctl plan prfaas` reproduces the source's tables 5 and 6, says which figures do not
// follow from its numbers, and names the line of a profile that is wrong.

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/plan/prfaas_profile.h"
#include "client/tools/ctl/plan/prfaas_report.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

struct PlanRun {
  int code = 0;
  std::string out, err;
};
PlanRun RunPlan(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  arguments.insert(arguments.begin(), {"plan", "prfaas"});
  const int code = RunCtl(ctl, std::move(arguments));
  return {code, out.str(), err.str()};
}

size_t LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  size_t lines = 0;
  while (std::getline(file, line)) ++lines;
  return lines;
}

TEST(PrfaasPlan, TheSourcesFiguresAreReproduced) {
  const auto profile = ParsePrfaasProfile("paper", kPrfaasPaperProfile);
  ASSERT_TRUE(profile.ok()) << profile.status();
  const PrfaasPlan plan = MakePlan(*profile);
  size_t reproduced = 0;
  for (const PaperFigure& figure : CompareWithPaper(*profile, plan)) {
    const double difference = std::abs(figure.here / figure.paper - 1);
    if (figure.reason.empty()) {
      EXPECT_LE(difference, 0.03) << figure.name << ": " << figure.here;
      ++reproduced;
    } else {
      EXPECT_GT(difference, 0.03) << figure.name << " follows after all: " << figure.here;
    }
  }
  EXPECT_EQ(reproduced, 30u);
}

TEST(PrfaasPlan, MoreInstancesServeMore) {
  const auto profile = ParsePrfaasProfile("paper", kPrfaasPaperProfile);
  ASSERT_TRUE(profile.ok());
  PrfaasProfile large = *profile;
  large.system.pd_instances = 12;
  EXPECT_GT(MakePlan(large).best.requests_per_s, MakePlan(*profile).best.requests_per_s);
}

TEST(PrfaasPlan, PrintsTablesAndJson) {
  const PlanRun text = RunPlan({"--paper"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.substr(0, 40), "Offload inputs longer than 19360 tokens,");
  EXPECT_NE(text.out.find("Not from the source's own numbers:\n* 4.3.1: egress"),
            std::string::npos);
  const PlanRun json = RunPlan({"--paper", "-o", "json"});
  const Json parsed = Json::parse(json.out);
  EXPECT_EQ(parsed["best"]["pd_prefill_instances"], 3);
  EXPECT_EQ(parsed["none_offloaded"]["pd_decode_instances"], 3);
  EXPECT_EQ(parsed["paper"].size(), 34u);
  EXPECT_EQ(parsed["changes"].size(), 9u);
  const std::string folder = test::TempPath("paper");
  EXPECT_EQ(RunPlan({"--paper", "--dir", folder}).code, 0);
  EXPECT_EQ(LinesOf(folder + "/paper.csv"), 35u);
}

TEST(PrfaasPlan, TheExampleIsAProfileAndTheFolderGetsFiles) {
  const std::string path = test::TempPath("cluster.yaml"), plan = test::TempPath("prfaas/plan");
  std::ofstream(path) << RunPlan({"--example"}).out;
  const PlanRun run = RunPlan({"--profile", path, "--dir", plan});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out.find("source"), std::string::npos);
  for (const char* file : {"plan.json", "systems.csv", "thresholds.csv", "splits.csv",
                           "changes.csv", "plan_figures.py"}) {
    EXPECT_TRUE(std::ifstream(plan + "/" + file).good()) << file;
  }
  std::stringstream page;
  page << std::ifstream(plan + "/plan.html").rdbuf();
  const bool has_matplotlib = run.err.find("is not drawn") == std::string::npos;
  EXPECT_EQ(page.str().find("<svg") != std::string::npos, has_matplotlib) << run.err;
  EXPECT_EQ(LinesOf(plan + "/thresholds.csv"), 201u);
}

TEST(PrfaasPlan, ATraceGivesTheLengths) {
  const std::string trace = test::TempPath("t.jsonl"), path = test::TempPath("p.yaml");
  std::ofstream(trace)
      << "{\"input_length\": 20000}\n\n{\"input_length\": 60000, \"output_length\": 5}\n";
  std::string text = kPrfaasPaperProfile;
  const size_t at = text.find("  log_normal"), end = text.find('\n', at);
  text.replace(at, end - at, "  trace: t.jsonl");
  const auto profile = ParsePrfaasProfile(path, text);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->system.lengths.Mean(), 40000);
  std::ofstream(trace) << "{\"input_length\": 20000}\n{\"length\": 1}\n";
  EXPECT_EQ(ParsePrfaasProfile(path, text).status().message(),
            trace + ":2: input_length: missing or not a number");
  std::ofstream(trace) << "\n";
  EXPECT_EQ(ParsePrfaasProfile(path, text).status().message(),
            trace + ": no line with an input_length");
  std::ofstream(trace) << "nonsense\n";
  EXPECT_EQ(ParsePrfaasProfile(path, text).status().message(), trace + ":1: not a JSON object");
}

// Replaces the first `from` of the example by `to`.
std::string ErrorOf(const std::string& from, const std::string& to) {
  std::string text = kPrfaasPaperProfile;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return std::string(ParsePrfaasProfile("p.yaml", text).status().message());
}

TEST(PrfaasPlan, AWrongLineIsNamed) {
  EXPECT_EQ(
      ErrorOf("egress_Gbps", "egres_Gbps"),
      "p.yaml:13: prfaas.egres_Gbps: unknown key; known are: instances, egress_Gbps, prefill");
  EXPECT_EQ(ErrorOf("  instances: 4\n", ""), "p.yaml:12: prfaas.instances: missing");
  EXPECT_EQ(ErrorOf("instances: 4", "instances: 0"),
            "p.yaml:12: prfaas.instances: not a count of 1 to 65536");
  EXPECT_EQ(ErrorOf("s: 1.84", "s: 0.5"),
            "p.yaml:17: prfaas.prefill[2].s: below that of a shorter length: is it of another "
            "run?");
  EXPECT_EQ(ErrorOf("tokens: 32000, MiB", "tokens: 7000, MiB"),
            "p.yaml:9: kv_cache[2].tokens: not above that of the point before");
  EXPECT_EQ(ErrorOf("MiB: 701.3", "MiB: many"), "p.yaml:9: kv_cache[2].MiB: not a number");
  EXPECT_EQ(ErrorOf("sigma: 1.00", "sigma: 0"), "p.yaml:4: lengths.log_normal: sigma: not above 0");
  EXPECT_EQ(ErrorOf("tokens_max: 128000", "tokens_max: 256000"),
            "p.yaml:7: kv_cache: ends at 128000 tokens, but prompts have up to 256000");
  EXPECT_EQ(ErrorOf("output_tokens: 1024", "output_tokens: -5"),
            "p.yaml:5: output_tokens: not above 0");
  EXPECT_EQ(ErrorOf("egress_Gbps: 100", "instances: 4"),
            "p.yaml:13: prfaas.instances: occurs twice");
  EXPECT_EQ(ParsePrfaasProfile("p.yaml", "").status().message(), "p.yaml: empty");
  EXPECT_EQ(ParsePrfaasProfile("p.yaml", "a: 1\n---\na: 2\n").status().message(),
            "p.yaml: 2 documents, must be one");
  EXPECT_EQ(ErrorOf("decode: {", "decode: ["), "p.yaml:26: illegal flow end");
  EXPECT_EQ(RunPlan({"--profile", "/no/such.yaml"}).code, 3);
  EXPECT_NE(RunPlan({}).err.find("--example"), std::string::npos);
}

}  // namespace
}  // namespace ckv::ctl
