// Goal: a characterization measures every point once, goes on where it was cut off, and its
// predictions stand on what it calibrated.
// Method: real holders in this process over loopback and tcp; few and small sizes.

#include "client/characterize/run.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "gtest/gtest.h"
#include "tests/client/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::TestFleet;
using test::TestGeometry;

class CharacterizeRun : public testing::Test {
 protected:
  CharacterizeRun()
      : loopback_(NewLoopbackFabric(Clock::Real())),
        tcp_(NewTcpFabric(Clock::Real())),
        fleet_({loopback_.get(), tcp_.get()}) {
    fleet_.StartHolder(0);
    fleet_.StartHolder(1);
    const auto corpus = MakeTestCorpus(TestGeometry(), {64, 256, 128, 128}, 1);
    fleet_.Load("c", corpus, {0, 0, 0, 1});
    for (Fabric* fabric : {loopback_.get(), tcp_.get()}) {
      RequesterOptions options;
      options.fabrics = {fabric};
      requesters_.push_back(*Requester::Create(options, &fleet_, &fleet_));
      target_.lanes.push_back({std::string(FabricName(fabric->kind())), requesters_.back().get()});
    }
    target_.corpus = *requesters_[0]->Resolve("c", "", test::Soon());
    target_.sizes = {0, 1};
    target_.spread = {2, 3};
    target_.prefill = [](uint64_t tokens) { return double(tokens) * 300; };
    options_ = {
        .query_rows = {1, 16}, .calibrate_query_rows = {1, 64}, .parallel = {1, 2}, .run_count = 1};
    std::remove(path_.c_str());
  }

  const std::string path_ = testing::TempDir() + "/characterize_run.csv";
  const std::unique_ptr<Fabric> loopback_, tcp_;
  TestFleet fleet_;
  std::vector<std::unique_ptr<Requester>> requesters_;
  CharacterizeTarget target_;
  CharacterizeOptions options_;
};

TEST_F(CharacterizeRun, MeasuresEveryPointOnce) {
  const auto profile = CalibrateTarget(target_, options_, "s", *Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->lanes.size(), 2u);
  EXPECT_EQ(profile->lanes[1].fabric, "tcp");
  EXPECT_EQ(profile->lanes[1].holder, "h0");
  EXPECT_NEAR(*profile->here.prefill_per_token_layer_us, 100, 1e-9);  // 3 layers
  auto file = SampleFile::Open(path_, "s");
  ASSERT_TRUE(file.ok()) << file.status();
  size_t told = 0, total = 0;
  const auto progress = [&](size_t done, size_t of) {
    EXPECT_EQ(done, told + 1);
    told = done;
    total = of;
  };
  options_.run_count = 2;
  const auto beside =
      Characterize(target_, options_, "s", std::nullopt, *file, *Clock::Real(), progress);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->lanes.size(), 2u);
  EXPECT_EQ(told, total);
  // Here: 2 sizes x (prefill, 2 rows). A fabric: 2 sizes x (fetch, 2 rows), 2 x 2 at once, 2 x 2
  // holders.
  // The grid in two rounds.
  constexpr size_t kPoints = 2 * 3 + 2 * (2 * 3 + 4 + 4), kGrid = 2 * 2 + 2 * 2 * 3;
  EXPECT_EQ(total, kPoints + kGrid);
  ASSERT_EQ(file->samples().size(), kPoints);
  std::set<SampleKey> keys;
  for (const Sample& sample : file->samples()) {
    keys.insert(sample.key);
    EXPECT_GT(sample.us, 0) << FormatSample(sample);
    const bool route = sample.key.sweep == Sweep::kRoute;
    EXPECT_EQ(sample.model_us > 0, route) << FormatSample(sample);
    EXPECT_EQ(sample.bytes_in > 0, route) << FormatSample(sample);
  }
  EXPECT_EQ(keys.size(), kPoints);
  // Again: nothing is left to measure.
  told = 0;
  const auto again =
      Characterize(target_, options_, "s", *profile, *file, *Clock::Real(), progress);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(told, 0u);
  EXPECT_EQ(file->samples().size(), kPoints);
  EXPECT_EQ(again->lanes, profile->lanes);
}

TEST_F(CharacterizeRun, GoesOnAfterAHolderCameBack) {
  const auto profile = CalibrateTarget(target_, options_, "s", *Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  auto file = SampleFile::Open(path_, "s");
  ASSERT_TRUE(file.ok());
  options_.call_timeout = std::chrono::seconds(2);
  fleet_.StopHolder(1);
  size_t done = 0;
  const auto progress = [&](size_t now, size_t) { done = now; };
  const absl::Status cut =
      Characterize(target_, options_, "s", *profile, *file, *Clock::Real(), progress).status();
  EXPECT_FALSE(cut.ok());
  EXPECT_NE(std::string(cut.message()).find("scatter loopback"), std::string::npos) << cut;
  EXPECT_EQ(file->samples().size(), done);
  const size_t kept = done;
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(SampleFile::Open(path_, "s")->samples().size(), kept);
}

TEST_F(CharacterizeRun, WhatItCannotMeasureIsRefused) {
  for (const auto& spoil : std::vector<std::function<void(CharacterizeTarget&)>>{
           [](CharacterizeTarget& target) { target.corpus = nullptr; },
           [](CharacterizeTarget& target) { target.sizes = {0}; },
           [](CharacterizeTarget& target) { target.lanes.clear(); },
           [](CharacterizeTarget& target) { target.spread = {9}; }}) {
    CharacterizeTarget target = target_;
    spoil(target);
    EXPECT_EQ(CalibrateTarget(target, options_, "s", *Clock::Real()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// A fetch pays off with steps, a route for one, and a fabric that was not calibrated says nothing.
TEST(Predict, FollowsTheProfile) {
  const Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  Profile profile;
  profile.here.attend = {
      .base_us = 1, .per_row_us = 0, .anchor_count = 1, .anchors = {{{16, 0.1}}}};
  profile.lanes = {{.holder = "h0",
                    .fabric = "verbs",
                    .constants = {16, 25e9, 25e9},
                    .compute = profile.here.attend}};
  const double us = PredictRouteUs(profile, geometry, "verbs", 16, 2048);
  EXPECT_NEAR(us, 16 + 16 * 2184 / 25e3 + 1 + 204.8, 1e-6);
  EXPECT_EQ(PredictRouteUs(profile, geometry, "tcp", 16, 2048), 0);
  EXPECT_EQ(PredictChoice(profile, geometry, "verbs", 16, 2048, 1), Primitive::kRoute);
  EXPECT_EQ(PredictChoice(profile, geometry, "verbs", 16, 2048, 64), Primitive::kFetch);
  EXPECT_EQ(PredictChoice(profile, geometry, "tcp", 16, 2048, 64), std::nullopt);
}

}  // namespace
}  // namespace ckv
