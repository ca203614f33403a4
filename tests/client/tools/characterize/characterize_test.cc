// Goal: a characterization's samples survive the end of a run at any byte, and findings follow from
// the samples.

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/findings.h"
#include "client/tools/characterize/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using absl::StatusCode;
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
  WriteAll(path, "a note without a line's end");
  EXPECT_THAT(std::string(SampleFile::Open(path, "a subject").status().message()),
              HasSubstr("is no file of samples"));
  EXPECT_EQ(ReadAll(path), "a note without a line's end");
  EXPECT_EQ(SampleFile::Open("/nowhere/at/all.csv", "s").status().code(), StatusCode::kUnavailable);
}

TEST(ParseSample, RefusesAndNamesTheColumn) {
  const std::string good = FormatSample(Route(16, 2048, 100, 101));
  ASSERT_TRUE(ParseSample(good).ok());
  const std::map<std::string, std::string> bad = {
      {"route,shm,16,2048", "columns"},
      {"walk,shm,16,2048,1,100,101,5,1,1,0,0,0,0", "sweep"},
      {"route,shm,-1,2048,1,100,101,5,1,1,0,0,0,0", "query_rows"},
      {"route,shm,16,x,1,100,101,5,1,1,0,0,0,0", "tokens"},
      {"route,shm,16,2048,99999999999,100,101,5,1,1,0,0,0,0", "parallel"},
      {"route,shm,16,2048,1,nan,101,5,1,1,0,0,0,0", "us"},
      {"route,shm,16,2048,1,inf,101,5,1,1,0,0,0,0", "us"},
      {"route,shm,16,2048,1,1,-1,5,1,1,0,0,0,0", "model_us"},
      {"route,shm,16,2048,1,100,101,5,1,1,x,0,0,0", "error_us"},
      {"route,shm,16,2048,1,100,101,5,1,1,0,-1,0,0", "kernel_us"},
      {"route,shm,16,2048,1,100,101,5,1,1,0,0,nan,0", "spread"},
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

// Goal: an error of the transfer shows, where the kernel takes most of the time and is right.
TEST(Findings, HaveTheErrorBeyondTheKernel) {
  std::vector<Sample> samples = SmallGrid();
  for (Sample& sample : samples) {
    if (sample.key.sweep != Sweep::kRoute) continue;
    sample.kernel_us = sample.us / 2;
    sample.model_kernel_us = sample.us / 2;
  }
  const auto found = FindingsOf(samples, /*layers=*/2, std::vector<uint32_t>{1},
                                [](const std::string&, uint32_t, uint64_t, uint32_t) {
                                  return std::optional(Primitive::kRoute);
                                });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[0].beyond.mape, 2 * found[0].all.mape, 1e-9);
  EXPECT_NEAR(found[0].beyond_large.mape, 2 * found[0].large.mape, 1e-9);
  EXPECT_EQ(found[0].beyond.count, 2u);
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
  // A cost that was given is the same in each of several runs, so it has no error.
  samples[4].error_us = 0;
  EXPECT_FALSE(find().grid[1].resolved()) << "not measured often enough to have an error";
  samples[4].runs = kErrorRunsMin;
  EXPECT_TRUE(find().grid[1].resolved());
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

}  // namespace
}  // namespace ckv
