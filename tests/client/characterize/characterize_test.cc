// Goal: a characterization's samples survive the end of a run at any byte, findings follow from the
// samples, and the report is one well-formed page without external parts.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "client/characterize/findings.h"
#include "client/characterize/plot.h"
#include "client/characterize/report.h"
#include "client/characterize/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Path(const std::string& name) { return testing::TempDir() + "/characterize_" + name; }

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void WriteAll(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

Sample Route(uint32_t rows, uint64_t tokens, double us, double model_us) {
  return {{Sweep::kRoute, "shm", rows, tokens, 1}, us, model_us, 5, rows * 1152u, rows * 1032u};
}

TEST(SampleFile, ContinuesAfterACutAtAnyByte) {
  const std::string path = Path("cut.csv");
  std::remove(path.c_str());
  const std::vector<Sample> samples = {Route(1, 64, 12.5, 11),
                                       Route(16, 64, 20, 0),
                                       {{Sweep::kFanIn, "tcp", 16, 256, 4}, 99.25, 0, 7, 1, 2}};
  {
    auto file = SampleFile::Open(path, "a subject");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const Sample& sample : samples) ASSERT_TRUE(file->Add(sample).ok());
  }
  const std::string whole = ReadAll(path);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    WriteAll(path, whole.substr(0, cut));
    auto file = SampleFile::Open(path, "a subject");
    ASSERT_TRUE(file.ok()) << cut << ": " << file.status();
    for (const Sample& sample : samples) {
      if (file->Find(sample.key) != nullptr) continue;
      ASSERT_TRUE(file->Add(sample).ok());
    }
    EXPECT_EQ(file->samples().size(), samples.size()) << cut;
    file = absl::CancelledError();  // closes it
    ASSERT_EQ(ReadAll(path), whole) << cut;
  }
}

TEST(SampleFile, RefusesWhatIsNotItsOwn) {
  const std::string path = Path("foreign.csv");
  std::remove(path.c_str());
  ASSERT_TRUE(SampleFile::Open(path, "a subject")->Add(Route(1, 64, 1, 1)).ok());
  const auto other = SampleFile::Open(path, "another");
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("give another folder"));
  WriteAll(path, "name,age\nx,1\n");
  EXPECT_EQ(SampleFile::Open(path, "a subject").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SampleFile::Open("/nowhere/at/all.csv", "s").status().code(), StatusCode::kUnavailable);
}

TEST(ParseSample, RefusesAndNamesTheColumn) {
  const std::string good = FormatSample(Route(16, 2048, 100, 101));
  ASSERT_TRUE(ParseSample(good).ok());
  const std::map<std::string, std::string> bad = {
      {"route,shm,16,2048", "columns"},
      {"walk,shm,16,2048,1,100,101,5,1,1,0", "sweep"},
      {"route,shm,-1,2048,1,100,101,5,1,1,0", "query_rows"},
      {"route,shm,16,x,1,100,101,5,1,1,0", "tokens"},
      {"route,shm,16,2048,99999999999,100,101,5,1,1,0", "parallel"},
      {"route,shm,16,2048,1,nan,101,5,1,1,0", "us"},
      {"route,shm,16,2048,1,inf,101,5,1,1,0", "us"},
      {"route,shm,16,2048,1,1,-1,5,1,1,0", "model_us"},
      {"route,shm,16,2048,1,100,101,5,1,1,x", "error_us"},
      {good + std::string(600, '1'), "too long"},
  };
  for (const auto& [line, word] : bad) {
    const auto sample = ParseSample(line);
    EXPECT_EQ(sample.status().code(), StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(sample.status().message()), HasSubstr(word)) << line;
  }
}

// A chunk of 64 tokens routed in 10 us a layer, fetched in 100 us and then attended in 5.
std::vector<Sample> SmallGrid() {
  return {Route(16, 64, 10, 11),
          Route(1024, 64, 200, 190),
          {{Sweep::kFetch, "shm", 0, 64, 1}, 100, 0, 3, 0, 0},
          {{Sweep::kHere, "", 16, 64, 1}, 5, 0, 3, 0, 0},
          {{Sweep::kHere, "", 1024, 64, 1}, 150, 0, 3, 0, 0}};
}

TEST(Findings, FollowFromTheSamples) {
  const std::vector<Sample> samples = SmallGrid();
  const std::vector<uint32_t> steps = {1, 100};
  // Always route: right for few steps, wrong for many.
  const auto found = FindingsOf(samples, /*layers=*/2, steps,
                                [](const std::string&, uint32_t, uint64_t, uint32_t) {
                                  return std::optional(Primitive::kRoute);
                                });
  ASSERT_EQ(found.size(), 1u);
  const FabricFindings& shm = found[0];
  EXPECT_EQ(shm.all.count, 2u);
  EXPECT_NEAR(shm.all.mape, (0.1 + 0.05) / 2, 1e-9);
  EXPECT_EQ(shm.large.count, 1u);
  EXPECT_NEAR(shm.large.mape, 0.05, 1e-9);
  // 16 rows: 20 or 110 us at 1 step, 2000 or 1100 at 100; 1024 rows: 400 or 400, 40000 or 30100.
  ASSERT_EQ(shm.grid.size(), 4u);
  EXPECT_EQ(shm.grid[0].best, Primitive::kRoute);
  EXPECT_EQ(shm.grid[1].best, Primitive::kFetch);
  EXPECT_NEAR(shm.grid[1].regret(), 2000. / 1100, 1e-9);
  EXPECT_FALSE(shm.grid[2].clear());
  EXPECT_TRUE(shm.grid[2].right());
  EXPECT_FALSE(shm.grid[3].right());
  EXPECT_NEAR(shm.regret, (20 + 2000 + 400 + 40000.) / (20 + 1100 + 400 + 30100) - 1, 1e-9);
  EXPECT_EQ(shm.clear_count, 3u);
  EXPECT_NEAR(shm.right_share, 1. / 3, 1e-9);
  EXPECT_EQ(shm.resolved_count, 0u);  // their errors are unknown
}

// Goal: a point whose means differ clearly judges no choice while the means are uncertain.
TEST(Findings, NoiseJudgesNoChoice) {
  std::vector<Sample> samples = SmallGrid();
  const std::vector<uint32_t> steps = {100};
  const auto find = [&] {
    return FindingsOf(samples, /*layers=*/2, steps,
                      [](const std::string&, uint32_t, uint64_t, uint32_t) {
                        return std::optional(Primitive::kRoute);
                      })[0];
  };
  EXPECT_EQ(find().resolved_count, 0u);
  for (Sample& sample : samples) sample.error_us = 1e-3;
  EXPECT_EQ(find().resolved_count, 2u);
  EXPECT_EQ(find().resolved_right_share, 0);
  // 40000 us against 30100. Up to 33110 is a tie, and 40000 is 6890 beyond it.
  samples[1].error_us = 11;  // of 200 steps and layers: 2200
  EXPECT_TRUE(find().grid[1].resolved());
  samples[1].error_us = 12;
  EXPECT_TRUE(find().grid[1].clear());
  EXPECT_FALSE(find().grid[1].resolved());
  samples[1].error_us = 8;  // 1600, and 1.1 x 1400 of the best: hypot 2221
  samples[4].error_us = 7;
  EXPECT_TRUE(find().grid[1].resolved());
  samples[4].error_us = 8;
  EXPECT_FALSE(find().grid[1].resolved());
  EXPECT_EQ(find().clear_count, 2u);
  EXPECT_EQ(find().resolved_count, 1u);
}

TEST(Findings, ShowWhereAKernelLeavesTheFloor) {
  ComputeCurve curve = {2, 0, 3, {{{1, .048}, {16, .184}, {256, 2.54}}}};
  EXPECT_EQ(DescribeFloor(curve), "no floor was measured");
  curve.floor = {.125, .1};  // half-way from 66 to 184 ns
  EXPECT_EQ(DescribeFloor(curve), "reading a row takes 125 ns; bound by memory up to 9 query rows");
  curve.floor = {.048, .1};
  EXPECT_EQ(DescribeFloor(curve), "reading a row takes 48 ns; bound by memory up to 1 query row");
  curve.floor = {.04, .5};
  EXPECT_EQ(
      DescribeFloor(curve),
      "reading a row takes 40 ns, and computing takes longer from the first query row on; 50 % "
      "of the shorter shows");
  curve.anchors = {};
  curve.anchors[0].rows = 1;
  curve.anchor_count = 1;
  EXPECT_EQ(DescribeFloor(curve),
            "reading a row takes 40 ns; bound by memory at any number of query rows");
}

TEST(Findings, TheElbowIsWhereLatencyDoubles) {
  std::vector<Sample> samples;
  for (const auto& [count, us] : std::map<uint32_t, double>{{8, 21}, {1, 10}, {2, 11}, {4, 19.9}}) {
    samples.push_back({{Sweep::kFanIn, "tcp", 16, 256, count}, us, 0, 1, 0, 0});
  }
  EXPECT_EQ(Elbow(samples, Sweep::kFanIn, "tcp"), 4u);
  EXPECT_EQ(Elbow(samples, Sweep::kFanIn, "shm"), 0u);
  const SweepGrowth growth = GrowthOf(samples, Sweep::kFanIn, "tcp");
  EXPECT_DOUBLE_EQ(growth.ratio, 2.1);
  EXPECT_EQ(growth.parallel, 8u);
  EXPECT_EQ(GrowthOf(samples, Sweep::kFanIn, "shm").parallel, 0u);
}

TEST(Plot, TicksAreFewRoundAndInside) {
  EXPECT_THAT(PlotTicks(0, 10, false), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(PlotTicks(1, 4096, true), ElementsAre(1, 10, 100, 1000));
  EXPECT_THAT(PlotTicks(3, 30, true), ElementsAre(5, 10, 20));
  EXPECT_EQ(PlotTicks(6, 6.5, true).size(), 1u);
  for (const double high : {1e-7, 3.3, 1e9, 4.7e17}) {
    for (const bool log : {false, true}) {
      const auto ticks = PlotTicks(high / 9876, high, log);
      EXPECT_GE(ticks.size(), 1u);
      EXPECT_LE(ticks.size(), 10u);
      EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
    }
  }
  EXPECT_EQ(PlotNumber(2048), "2048");
  EXPECT_EQ(PlotNumber(0.0205), "0.0205");
  EXPECT_EQ(PlotNumber(1.5e6), "1.5e6");
  EXPECT_EQ(PlotNumber(1e6), "1e6");
}

// Every element that is opened is closed, in order; attributes have no loose < or quotes.
bool WellFormed(const std::string& markup) {
  std::vector<std::string> open;
  for (size_t at = markup.find('<'); at != std::string::npos; at = markup.find('<', at + 1)) {
    const size_t end = markup.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = markup.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return false;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
    if (tag[0] == '!' || tag.back() == '/' || tag.substr(0, 4) == "meta") continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find_first_of(" \n")));
    } else {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(Report, IsOneWellFormedPage) {
  std::vector<Sample> samples = SmallGrid();
  samples.push_back({{Sweep::kLocal, "", 0, 64, 1}, 5000, 0, 1, 0, 0});
  for (const Sweep sweep : {Sweep::kFanIn, Sweep::kScatter, Sweep::kGather, Sweep::kCongestion}) {
    for (const uint32_t count : {1u, 2u, 4u})
      samples.push_back({{sweep, "shm", 16, 64, count}, 10. * count, 0, 3, 10, 10});
  }
  const std::vector<uint32_t> steps = {1, 100};
  const auto findings =
      FindingsOf(samples, 2, steps, [](const std::string&, uint32_t, uint64_t, uint32_t) {
        return std::optional(Primitive::kFetch);
      });
  ReportInput input = {.title = "A <fleet> & \"its\" costs",
                       .facts = {{"holder", "h0 <script>alert(1)</script>"}},
                       .layers = 2,
                       .row_bytes = 1152,
                       .samples = samples,
                       .findings = findings};
  EXPECT_EQ(RenderReport(input).find("Kernels and memory"), std::string::npos);
  const std::vector<KernelCurve> kernels = {
      {"here", {2, 0, 2, {{{1, .048}, {256, 2.54}}}, {.06, .1}}},
      {"h0 <over> shm", {2, 0, 1, {{{16, .048}}}, {.06, .1}}},
      {"h0 over tcp", {2, 0, 2, {{{1, .048}, {256, 2.54}}}}}};  // no floor: no plot
  input.kernels = kernels;
  const std::string page = RenderReport(input);
  EXPECT_TRUE(WellFormed(page));
  EXPECT_EQ(page.find("h0 over tcp"), std::string::npos);
  for (const char* word :
       {"Route: measured against the model", "Which is cheapest", "The cost of a chunk", "Fan-in",
        "Scatter", "64 chosen rows (route x 4.0, fetch x 4.0 from 1 to 4 holders)", "Congestion",
        "Bytes moved a layer", "elbow at 2", "chosen: fetch", "Kernels and memory",
        "here: reading a row takes 60 ns; bound by memory up to 2 query rows",
        "h0 &lt;over&gt; shm: reading a row takes 60 ns; bound by memory up to 20 query rows",
        "bringing a row in: the floor", "measured, 64 tokens"}) {
    EXPECT_THAT(page, HasSubstr(word));
  }
  EXPECT_EQ(page.find("<script"), std::string::npos);
  // The only address on the page is a name of SVG; nothing is loaded.
  for (size_t at = page.find("http"); at != std::string::npos; at = page.find("http", at + 1)) {
    EXPECT_EQ(page.compare(at, 26, "http://www.w3.org/2000/svg"), 0);
  }
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST(Report, MakesAPageWithoutSamples) {
  const std::string page = RenderReport({});
  EXPECT_TRUE(WellFormed(page));
  EXPECT_EQ(page.find("Fan-in"), std::string::npos);
}

}  // namespace
}  // namespace ckv
