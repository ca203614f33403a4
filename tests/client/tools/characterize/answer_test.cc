// Goal: a report begins with an answer that follows from its samples, and a disturbed run is
// recognized by how far its repeats are apart.

#include "client/tools/characterize/answer.h"

#include <string>
#include <vector>

#include "client/tools/characterize/calibrate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::Field;

Sample SampleOf(Sweep sweep, const std::string& fabric, uint32_t rows, uint64_t tokens, double us,
                double spread = 1) {
  return {.key = {sweep, fabric, rows, tokens, 1}, .us = us, .spread = spread};
}

std::vector<Sample> SomeSamples() {
  return {SampleOf(Sweep::kRoute, "tcp", 128, 64, 50),
          SampleOf(Sweep::kRoute, "tcp", 128, 2048, 200),
          SampleOf(Sweep::kRoute, "shm", 128, 2048, 160),
          SampleOf(Sweep::kRoute, "shm", 1, 2048, 20),
          SampleOf(Sweep::kFetch, "shm", 0, 2048, 50'000),
          SampleOf(Sweep::kHere, "", 128, 2048, 110)};
}

TEST(Answer, IsTheFastestRouteOfOneTokenAgainstTheFetchOfItsChunk) {
  EXPECT_EQ(AnswerOf({SomeSamples(), "deepseek-v3", 61, 128}),
            "Over shm, a decode step of deepseek-v3 (128 query rows, 61 layers) over 2048 tokens "
            "elsewhere takes 9.76 ms by routing. A fetch takes 50 ms and saves 3.05 ms a step: it "
            "pays off after 17 steps.");
}

TEST(Answer, IsToRouteWhereAFetchSavesNothing) {
  std::vector<Sample> samples = SomeSamples();
  samples.back().us = 160;
  EXPECT_THAT(AnswerOf({samples, "m", 2, 128}),
              testing::EndsWith("saves nothing later: always route."));
}

TEST(Answer, IsNoneWithoutTheFetchOrTheLocalAttention) {
  std::vector<Sample> samples = SomeSamples();
  samples.pop_back();
  EXPECT_EQ(AnswerOf({samples, "m", 2, 128}), "");
  EXPECT_EQ(AnswerOf({{}, "m", 2, 128}), "");
}

// One slow point of three is a short disturbance. Two are a constant that moved.
TEST(Disturbances, AreNamedByTheConstantThatMoved) {
  std::vector<Sample> samples = {
      SampleOf(Sweep::kHere, "", 16, 64, 1, 1.1), SampleOf(Sweep::kHere, "", 16, 512, 1, 2.0),
      SampleOf(Sweep::kHere, "", 16, 2048, 1, 1.2), SampleOf(Sweep::kHere, "", 1, 64, 1, 1.6),
      SampleOf(Sweep::kRoute, "tcp", 16, 64, 1, 1.4)};
  EXPECT_THAT(DisturbancesOf(samples), ElementsAre(Field(&Disturbance::name, "reading rows here")));
  samples[2].spread = 1.8;
  const std::vector<Disturbance> two = DisturbancesOf(samples);
  EXPECT_EQ(DescribeDisturbances(two),
            "reading rows here: repeats differ by 1.6 x (limit 1.5); the kernel here: repeats "
            "differ by 1.8 x (limit 1.5)");
  EXPECT_TRUE(DisturbancesOf({}).empty());
}

TEST(QuartileRatio, LeavesOutSingleOutliers) {
  EXPECT_EQ(QuartileRatio({1, 2, 3}), 0);
  EXPECT_DOUBLE_EQ(QuartileRatio({1, 1, 1, 1, 1, 1, 1, 9}), 1);
  EXPECT_DOUBLE_EQ(QuartileRatio({1, 1, 1, 1, 2, 2, 2, 2}), 2);
}

}  // namespace
}  // namespace ckv
