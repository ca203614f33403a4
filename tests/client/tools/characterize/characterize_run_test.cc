// Goal: a characterization measures every point once, continues where it was interrupted, and bases
// its predictions on its calibration.
// Method: real holders in this process over loopback and tcp; few and small sizes.

#include "client/tools/characterize/run.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "client/tools/characterize/at_once.h"
#include "client/tools/characterize/findings.h"
#include "client/tools/characterize/grid.h"
#include "client/tools/characterize/tasks.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_fleet.h"

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
    const auto store = MakeTestCorpus(TestGeometry(), {512, 512}, 2);
    fleet_.Load("store", store, {0, 0});
    target_.store = {*requesters_[0]->Resolve("store", "", test::Soon()), {0, 1}};
    target_.payloads = {{target_.store.corpus, {0}}};
    options_ = {.query_rows = {1, 16},
                .calibrate_query_rows = {1, 64},
                .parallel = {1, 2},
                .kernel_rows_max = 32,
                .run_count = 1};
    std::remove(path_.c_str());
  }

  const std::string path_ = testing::TempDir() + "/characterize_run.csv";
  const std::unique_ptr<Fabric> loopback_, tcp_;
  TestFleet fleet_;
  std::vector<std::unique_ptr<Requester>> requesters_;
  CharacterizeTarget target_;
  CharacterizeOptions options_;
};

TEST(Elbow, IsTheLastCountOfAtMostTwiceTheTimeOfOne) {
  EXPECT_EQ(ElbowOf({}), 0u);
  EXPECT_EQ(ElbowOf({{1, 10}, {2, 21}, {4, 19}}), 1u) << "one that is faster later was disturbed";
  EXPECT_EQ(ElbowOf({{1, 10}, {2, 12}, {4, 20}, {8, 20.5}}), 4u);
  EXPECT_EQ(ElbowOf({{1, 10}, {2, 9}, {4, 10}}), 4u);
}

TEST_F(CharacterizeRun, MeasuresEveryPointOnce) {
  const auto profile = CalibrateTarget(target_, options_, "s", *Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->lanes.size(), 2u);
  EXPECT_EQ(profile->lanes[1].fabric, "tcp");
  EXPECT_EQ(profile->lanes[1].holder, "h0");
  for (const LaneProfile& lane : profile->lanes) {
    for (const uint32_t elbow : {lane.route_elbow, lane.fetch_elbow})
      EXPECT_TRUE(elbow >= 1 && elbow <= 16) << elbow;
  }
  EXPECT_NEAR(*profile->here.prefill_per_token_layer_us, 100, 1e-9);  // 3 layers
  auto file = SampleFile::Open(path_, "s");
  ASSERT_TRUE(file.ok()) << file.status();
  std::map<std::string, std::pair<size_t, size_t>> reported;  // done, of how many
  std::vector<Profile> kept;
  CharacterizeWatch watch;
  watch.progress = [&](const char* stage, size_t done, size_t total) {
    EXPECT_EQ(done, reported[stage].first + 1);
    reported[stage] = {done, total};
  };
  watch.calibrated = [&](const Profile& constants) {
    EXPECT_TRUE(file->samples().empty());
    kept.push_back(constants);
    return absl::OkStatus();
  };
  options_.run_count = 2;
  const auto beside =
      Characterize(target_, options_, "s", std::nullopt, *file, *Clock::Real(), watch);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->lanes.size(), 2u);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].lanes, beside->lanes);
  // Here: 2 sizes x (prefill, 2 rows). A fabric: 2 sizes x (fetch, 2 rows); 2 counts x (fan-in,
  // staging, 3 x congestion), 2 counts of holders x (scatter, gather), 2 sizes of a store, 2 dtypes
  // of partials x 2 rows. The first fabric: kernels of 1 and 2 requesters of 16 heads. In a round
  // of the calibration, 2 rows x 2 sizes here, a prefill, and a fabric's 2 x 2 routes and fetch.
  constexpr size_t kGrid = 2 * 3 + 2 * 2 * 3, kRest = 2 * (10 + 4 + 2 + 4) + 2,
                   kPoints = kGrid + kRest;
  constexpr size_t kParts = 2 * 2 + 1 + 2 * (2 * 2 + 1);
  EXPECT_EQ(reported["grid"], std::pair(2 * (kGrid + kParts), 2 * (kGrid + kParts)));
  EXPECT_EQ(reported["sweeps"], std::pair(kRest, kRest));
  EXPECT_EQ(reported.size(), 2u);  // two rounds are too few to disagree
  ASSERT_EQ(file->samples().size(), kPoints);
  std::set<SampleKey> keys;
  for (const Sample& sample : file->samples()) {
    keys.insert(sample.key);
    EXPECT_GT(sample.us, 0) << FormatSample(sample);
    const bool route = sample.key.sweep == Sweep::kRoute;
    EXPECT_EQ(sample.model_us > 0, route) << FormatSample(sample);
    EXPECT_EQ(sample.model_kernel_us > 0, route) << FormatSample(sample);
    EXPECT_LE(sample.model_kernel_us, sample.model_us) << FormatSample(sample);
    // A kernel was part of each of these.
    const bool kernel = route || sample.key.sweep == Sweep::kKernel ||
                        sample.key.sweep == Sweep::kScatter || sample.key.sweep == Sweep::kStore ||
                        sample.key.sweep == Sweep::kPayload;
    EXPECT_EQ(sample.bytes_in > 0, kernel) << FormatSample(sample);
    EXPECT_EQ(sample.kernel_us > 0, kernel) << FormatSample(sample);
    EXPECT_LE(sample.kernel_us, sample.us * (sample.key.sweep == Sweep::kRoute ? 1 : 2))
        << FormatSample(sample);
  }
  EXPECT_EQ(keys.size(), kPoints);
  // Again: nothing is left to measure.
  reported.clear();
  const auto again = Characterize(target_, options_, "s", *profile, *file, *Clock::Real(), watch);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(reported.empty());
  EXPECT_EQ(file->samples().size(), kPoints);
  EXPECT_EQ(again->lanes, profile->lanes);
}

// With rows that push others out, everything is calibrated warm and cold. The profile's curves are
// the same after reading it from a file.
TEST_F(CharacterizeRun, RowsThatPushOthersOutMakeFloors) {
  target_.push_out = {2};
  std::map<std::string, size_t> reported;
  CharacterizeWatch watch;
  watch.progress = [&](const char* stage, size_t, size_t total) { reported[stage] = total; };
  auto file = SampleFile::Open(path_, "s");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto profile =
      Characterize(target_, options_, "s", std::nullopt, *file, *Clock::Real(), watch);
  ASSERT_TRUE(profile.ok()) << profile.status();
  constexpr size_t kGrid = 2 * 3 + 2 * 2 * 3;
  constexpr size_t kParts = 2 * 2 * 2 + 1 + 2 * (2 * 2 * 2 + 1);
  EXPECT_EQ(reported["grid"], kGrid + kParts);
  EXPECT_EQ(profile->here.attend.anchor_count, 2u);
  const auto read = ParseProfile(FormatProfile(*profile));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->here.attend, profile->here.attend);
  EXPECT_EQ(read->lanes, profile->lanes);
  const std::vector<KernelCurve> kernels = KernelCurvesOf(*profile);
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0].name, "here");
  EXPECT_EQ(kernels[1].name, "h0 over loopback");
  EXPECT_EQ(kernels[2].curve, profile->lanes[1].compute);
}

TEST_F(CharacterizeRun, ContinuesAfterAHolderReturned) {
  const auto profile = CalibrateTarget(target_, options_, "s", *Clock::Real());
  ASSERT_TRUE(profile.ok()) << profile.status();
  auto file = SampleFile::Open(path_, "s");
  ASSERT_TRUE(file.ok());
  options_.call_timeout = std::chrono::seconds(2);
  fleet_.StopHolder(1);
  const absl::Status cut =
      Characterize(target_, options_, "s", *profile, *file, *Clock::Real(), {}).status();
  EXPECT_FALSE(cut.ok());
  EXPECT_NE(std::string(cut.message()).find("scatter loopback"), std::string::npos) << cut;
  const size_t kept = file->samples().size();
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(SampleFile::Open(path_, "s")->samples().size(), kept);
}

TEST_F(CharacterizeRun, RefusesWhatItCannotMeasure) {
  for (const auto& spoil : std::vector<std::function<void(CharacterizeTarget&)>>{
           [](CharacterizeTarget& target) { target.corpus = nullptr; },
           [](CharacterizeTarget& target) { target.sizes = {0}; },
           [](CharacterizeTarget& target) { target.lanes.clear(); },
           [](CharacterizeTarget& target) { target.spread = {9}; },
           [](CharacterizeTarget& target) { target.push_out = {9}; },
           [](CharacterizeTarget& target) { target.heads = 0; },
           [](CharacterizeTarget& target) { target.store.chunks = {9}; },
           [](CharacterizeTarget& target) { target.payloads[0].chunks.clear(); },
           [](CharacterizeTarget& target) {
             target.spread = {3, 2};
           }}) {
    CharacterizeTarget target = target_;
    spoil(target);
    EXPECT_EQ(CalibrateTarget(target, options_, "s", *Clock::Real()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// The selection of the sweep over holders: distinct rows in no order, the same for every call. One
// holder gives as many as all, if it has enough.
TEST_F(CharacterizeRun, ASelectionIsOneOfAnIndexer) {
  for (const uint32_t holders : {1u, 2u}) {
    constexpr uint32_t kWanted = 200;
    const std::vector<int32_t> rows = ChooseRows(target_, holders, kWanted);
    EXPECT_EQ(rows, ChooseRows(target_, holders, kWanted));
    // All rows, but at most the budget.
    EXPECT_EQ(rows.size(), std::min(holders * 128u, kWanted));
    EXPECT_FALSE(std::is_sorted(rows.begin(), rows.end()));
    const std::set<int32_t> distinct(rows.begin(), rows.end());
    EXPECT_EQ(distinct.size(), rows.size());
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), int32_t(holders * 128));
  }
}

TEST(SampleOfRoute, HasTheTimesAndBytesOfTheRoute) {
  const SampleKey key = {Sweep::kRoute, "tcp", 16, 64, 1};
  const RouteTiming timing = {
      .query_rows = 16, .tokens = 64, .us = 30, .compute_us = 12, .bytes_out = 5, .bytes_in = 7};
  EXPECT_EQ(FormatSample(SampleOfRoute(key, timing, 9)), "route,tcp,16,64,1,30,0,9,5,7,0,12,0,0");
}

TEST(RoundsDisagree, IfTheMiddleHalfIsWiderThanATie) {
  EXPECT_FALSE(RoundsDisagree({}));
  EXPECT_FALSE(RoundsDisagree({1, 100, 3}));
  EXPECT_FALSE(RoundsDisagree({100, 101, 102, 103, 104, 105, 106, 900, 20}));
  EXPECT_TRUE(RoundsDisagree({100, 101, 120, 121, 100, 122, 101, 120}));
}

// Points whose rounds disagree are measured once more, in as many rounds. Other points are not.
TEST(Grid, MeasuresAgainWhatDisagrees) {
  uint32_t steady = 0, restless = 0, seldom = 0;
  const auto task = [](uint32_t rows, const std::function<double()>& us, uint32_t every) {
    const SampleKey key = {Sweep::kHere, "", rows, 64, 1};
    return Task{
        key,
        [key, us](uint32_t) -> absl::StatusOr<Sample> { return Sample{.key = key, .us = us()}; },
        every};
  };
  const std::vector<Task> tasks = {task(
                                       1, [&] { return ++steady, 10.; }, 1),
                                   task(
                                       2, [&] { return ++restless % 2 ? 10. : 20.; }, 1),
                                   task(
                                       3, [&] { return ++seldom, 30.; }, 3)};
  std::vector<std::string> stages;
  CharacterizeWatch watch;
  watch.progress = [&](const char* stage, size_t done, size_t total) {
    if (done == total) stages.push_back(stage);
  };
  Grid grid(tasks, nullptr, /*round_count=*/9, watch);
  ASSERT_TRUE(grid.Measure().ok());
  EXPECT_EQ(steady, 9u);
  EXPECT_EQ(restless, 18u);
  EXPECT_EQ(seldom, 3u);
  EXPECT_EQ(stages, (std::vector<std::string>{"grid", "grid, again"}));
  EXPECT_EQ(grid.Samples()[0].us, 10);
  EXPECT_EQ(grid.Samples()[1].runs, 18u);
  EXPECT_EQ(grid.Samples()[2].runs, 3u);
}

// The kernel's time is a mean over the rounds, too, and never more than the whole.
TEST(Grid, TheKernelsTimeIsAMeanOfAllRounds) {
  const SampleKey key = {Sweep::kRoute, "shm", 16, 64, 1};
  uint32_t round = 0;
  const std::vector<Task> tasks = {{key, [&](uint32_t) -> absl::StatusOr<Sample> {
                                      const double kernel_us = round++ % 2 == 0 ? 90 : 94;
                                      return Sample{
                                          .key = key, .us = kernel_us + 8, .kernel_us = kernel_us};
                                    }}};
  CharacterizeWatch watch;
  watch.progress = [](const char*, size_t, size_t) {};
  Grid grid(tasks, nullptr, /*round_count=*/8, watch);
  ASSERT_TRUE(grid.Measure().ok());
  EXPECT_EQ(grid.Samples()[0].us, 100);
  EXPECT_EQ(grid.Samples()[0].kernel_us, 92);
}

// A fetch pays off over many steps, a route for one step. A fabric that was not calibrated has no
// prediction.
TEST(Predict, FollowsTheProfile) {
  const Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  Profile profile;
  profile.here.attend = {
      .base_us = 1, .per_row_us = 0, .anchor_count = 1, .anchors = {{{16, 0.1}}}};
  profile.lanes = {{.holder = "h0",
                    .fabric = "verbs",
                    .constants = {16, 25e9, 25e9},
                    .compute = profile.here.attend}};
  const double us = PredictRoute(profile, geometry, "verbs", 16, 2048).us;
  EXPECT_NEAR(us, 16 + 16 * 2184 / 25e3 + 1 + 204.8, 1e-6);
  EXPECT_EQ(PredictRoute(profile, geometry, "tcp", 16, 2048).us, 0);
  EXPECT_EQ(PredictChoice(profile, geometry, "verbs", 16, 2048, 1), Primitive::kRoute);
  EXPECT_EQ(PredictChoice(profile, geometry, "verbs", 16, 2048, 64), Primitive::kFetch);
  EXPECT_EQ(PredictChoice(profile, geometry, "tcp", 16, 2048, 64), std::nullopt);
}

// Figure 6(a): a route's and a fetch's transfer shrink with the bandwidth, and what remains is the
// probe, the kernel and the splice. Without the cost of prefill there is no local.
TEST(Predict, OverBandwidthsOnlyTheTransferChanges) {
  const Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  Profile profile;
  profile.here.splice_per_layer_us = 100;
  profile.lanes = {{.holder = "h0", .fabric = "verbs", .constants = {16, 25e9, 25e9}}};
  const std::vector<BandwidthPoint> points = SweepBandwidth(profile, geometry, "verbs", 256, 2048);
  ASSERT_EQ(points.size(), 38u);
  EXPECT_DOUBLE_EQ(points.front().bandwidth_bytes_per_s, 0.2e9);
  EXPECT_NEAR(points.back().bandwidth_bytes_per_s, 1e12, 1);
  EXPECT_NEAR(*points.front().us[0], 27 * (16 + 256 * 2184 / 200.), 1);
  EXPECT_NEAR(*points.back().us[1], 27 * 100, 27 * 100 * .05);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(*points[i].us[0], *points[i - 1].us[0]);
    EXPECT_LT(*points[i].us[1], *points[i - 1].us[1]);
    EXPECT_EQ(points[i].us[2], std::nullopt);
  }
  EXPECT_TRUE(SweepBandwidth(profile, geometry, "tcp", 256, 2048).empty());
}

}  // namespace
}  // namespace ckv
