// Goal: factors learned from replies follow a lasting change, ignore a single pause, stay within
// their bounds, and apply to the constants they were learned for. Method: made-up samples.

#include "client/cost/live_model.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "client/cost/live_compute.h"
#include "client/cost/live_error.h"
#include "gtest/gtest.h"
#include "proto/base/log.h"
#include "tests/support/test_corpus.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

TEST(LiveCompute, FollowsALastingChange) {
  LiveCompute live;
  EXPECT_EQ(live.Get(), 1);
  for (uint32_t i = 0; i < BestWindow::kCount; ++i) live.Observe(10, 40);
  EXPECT_EQ(live.Get(), 2) << "a step is a factor of 2 at most";
  for (uint32_t i = 0; i < BestWindow::kCount; ++i) live.Observe(10, 40);
  EXPECT_EQ(live.Get(), 4);
  for (int i = 0; i < 200; ++i) live.Observe(10, 7);
  EXPECT_DOUBLE_EQ(live.Get(), 0.7);
  live.Reset();
  EXPECT_EQ(live.Get(), 1);
}

TEST(LiveCompute, NoSingleSampleMovesIt) {
  for (const double odd : {1e-6, 1e9}) {
    for (const uint32_t place : {0u, 7u, BestWindow::kCount - 1}) {
      LiveCompute live;
      for (uint32_t i = 0; i < BestWindow::kCount; ++i) live.Observe(10, i == place ? odd : 10);
      EXPECT_EQ(live.Get(), 1) << odd << " at " << place;
    }
  }
}

// Sharing a batch now and then is no change: two quiet samples in a window are enough.
TEST(LiveCompute, DisturbancesOnlyAdd) {
  LiveCompute live;
  for (uint32_t i = 0; i < 50 * BestWindow::kCount; ++i) live.Observe(10, i % 8 == 0 ? 10 : 75);
  EXPECT_EQ(live.Get(), 1);
}

TEST(LiveCompute, StaysWithinItsBounds) {
  LiveCompute slow, fast;
  for (int i = 0; i < 2000; ++i) {
    slow.Observe(1, 1e9);
    fast.Observe(1e9, 1);
  }
  EXPECT_EQ(slow.Get(), LiveCompute::kFactorMax);
  EXPECT_EQ(fast.Get(), LiveCompute::kFactorMin);
}

TEST(LiveCompute, NonsenseIsIgnored) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  LiveCompute live;
  for (const double value : {0., -1., nan}) {
    for (uint32_t i = 0; i < 2 * BestWindow::kCount; ++i) {
      live.Observe(value, 10);
      live.Observe(10, value);
    }
  }
  for (uint32_t i = 0; i < 2 * BestWindow::kCount; ++i) {
    live.Observe(10, inf);
    live.Observe(inf, 10);
    live.Observe(inf, inf);
  }
  EXPECT_TRUE(live.Get() >= LiveCompute::kFactorMin && live.Get() <= LiveCompute::kFactorMax);
}

TEST(LiveError, IsTheMedianOfTheLast) {
  LiveError error;
  for (uint32_t i = 1; i < LiveError::kSampleCountMin; ++i) error.Observe(10, 15);
  EXPECT_FALSE(error.Median().has_value());
  error.Observe(10, 15);
  EXPECT_FLOAT_EQ(*error.Median(), 0.5f);
  for (uint32_t i = 0; i < LiveError::kSampleCountMax; ++i) error.Observe(10, i % 3 == 0 ? 1e6 : 9);
  EXPECT_NEAR(*error.Median(), 0.1, 1e-6);
  for (const double value : {0., -5., std::nan("")}) {
    error.Observe(value, 10);
    error.Observe(10, value);
  }
  error.Observe(10, std::numeric_limits<double>::infinity());
  EXPECT_NEAR(*error.Median(), 0.1, 1e-6);
}

TEST(LiveError, ReportsTheSide) {
  LiveError slower, faster;
  EXPECT_FALSE(slower.Ratio().has_value());
  for (uint32_t i = 0; i < LiveError::kSampleCountMin; ++i) {
    slower.Observe(10, 15);
    faster.Observe(10, 5);
  }
  EXPECT_FLOAT_EQ(*slower.Ratio(), 1.5f);
  EXPECT_FLOAT_EQ(*faster.Ratio(), 0.5f);
  EXPECT_FLOAT_EQ(*slower.Median(), *faster.Median());
}

// Two fetches of one size take what both took, not what the mean of their bandwidths gives.
TEST(LiveBandwidth, TimesAddUp) {
  constexpr uint64_t kBytes = 1u << 20;
  LiveBandwidth bandwidth;
  EXPECT_EQ(bandwidth.Get(), 0);
  bandwidth.Observe(kBytes, 1000);
  EXPECT_NEAR(kBytes / bandwidth.Get() * 1e6, 1000, 1e-6);
  bandwidth.Observe(kBytes, 9000);
  EXPECT_NEAR(kBytes / bandwidth.Get() * 1e6, 3000, 1e-6) << "a quarter of the way";
  bandwidth.Observe(LiveBandwidth::kBytesMin - 1, 1e9);
  bandwidth.Observe(kBytes, 0);
  EXPECT_NEAR(kBytes / bandwidth.Get() * 1e6, 3000, 1e-6);
}

constexpr KernelTargetId kTarget = KernelTargetId::kAvx2;

// A holder of a profile, and frames of 8 rows over chunks of 100 and 50 tokens.
struct LiveModelTest : testing::Test {
  LiveModelTest() {
    Profile profile;
    profile.subject = SubjectOf(geometry, HostIdentity(), {}, true);
    // 5 us, and 8 rows take 0.2 us a token: 35 us of both chunks.
    profile.lanes = {{"h0", "tcp", {10, 1e9, 5e8}, {5, 0, 1, {{{8, 0.2}}}}}};
    seed = std::make_unique<SeedProfile>(std::make_shared<const Profile>(profile), HostIdentity(),
                                         kTarget);
    model = std::make_unique<LiveModel>(HolderId{"h0"}, seed.get());
  }
  // Takes the reply to a frame that did `share` of the work of a batch of `compute_us`.
  LiveModel::Learned Reply(const Geometry& of, FabricKind fabric, double compute_us,
                           double share = 1) {
    AnsweredFrame frame = {.geometry = of, .fabric = fabric};
    frame.rows = 8;
    frame.runs = runs;
    frame.compute_ns = static_cast<uint32_t>(compute_us * 1e3);
    frame.batch_share = static_cast<uint8_t>(share * 255);
    return model->Observe(frame);
  }
  // `us` from post to answer, `compute_us` of it in the kernel: 10 us of probe and 10 of bytes.
  void Observe(const Geometry& of, FabricKind fabric, double compute_us, double us) {
    const double expected_us = Reply(of, fabric, compute_us).expected_us;
    if (expected_us > 0) model->JudgeRound(20 + expected_us, us);
  }
  void ObserveMany(const Geometry& of, FabricKind fabric, double compute_us, double us) {
    for (int i = 0; i < 200; ++i) Observe(of, fabric, compute_us, us);
  }

  const Geometry geometry = test::TestGeometry();
  std::unique_ptr<SeedProfile> seed;
  std::unique_ptr<LiveModel> model;
  std::vector<SharedRun> runs = {{8, 100}, {8, 50}};
};

TEST_F(LiveModelTest, ScalesTheCurveByTheTimesInReplies) {
  const LaneProfile* lane = model->SeedOf(geometry, FabricKind::kTcp);
  ASSERT_NE(lane, nullptr);
  EXPECT_EQ(model->ComputeFor(geometry.widths(), std::nullopt, lane).live, LiveFactors());
  // 10 us of probe, 10 of bytes, 35 of kernel.
  ObserveMany(geometry, FabricKind::kTcp, 35, 55);
  EXPECT_NEAR(model->curve_factors().compute, 1, 1e-6);
  EXPECT_NEAR(*model->error(), 0, 1e-6);
  // A kernel of twice the time is what the model expects after a while.
  ObserveMany(geometry, FabricKind::kTcp, 70, 90);
  EXPECT_NEAR(model->ComputeFor(geometry.widths(), std::nullopt, lane).live.compute, 2, 1e-6);
  EXPECT_EQ(model->ComputeFor(geometry.widths(), std::nullopt, lane).curve, lane->compute);
  EXPECT_NEAR(*model->error(), 0, 1e-6);
  // Time that the constants do not explain counts as error: 90 us are expected.
  ObserveMany(geometry, FabricKind::kTcp, 70, 135);
  EXPECT_NEAR(*model->error(), 0.5, 1e-3);
  EXPECT_EQ(model->points_factors(geometry.widths()).compute, 1) << "of other constants";
}

TEST_F(LiveModelTest, MeasuredPointsHaveAFactorOfTheirOwn) {
  EXPECT_EQ(model->SeedOf(geometry, FabricKind::kShm), nullptr);
  ObserveMany(geometry, FabricKind::kShm, 70, 90);
  EXPECT_EQ(model->points_factors(geometry.widths()).compute, 1) << "nothing to compare with yet";
  EXPECT_FALSE(model->error().has_value());
  ComputeConstants measured;
  measured.base_us = 11;
  measured.per_row_token_us = 0.02;  // 8 x 150 x 0.02 + 11 = 35
  model->SetMeasured(geometry.widths(), measured);
  ObserveMany(geometry, FabricKind::kShm, 70, 90);
  EXPECT_NEAR(model->points_factors(geometry.widths()).compute, 2, 1e-6);
  EXPECT_NEAR(model->ComputeFor(geometry.widths(), measured, nullptr).live.compute, 2, 1e-6);
  EXPECT_EQ(model->curve_factors().compute, 1);
  measured.gather_factor = 2;
  model->SetMeasured(geometry.widths(), measured);
  EXPECT_NEAR(model->points_factors(geometry.widths()).compute, 2, 1e-6) << "the same two points";
  measured.base_us = 12;
  model->SetMeasured(geometry.widths(), measured);
  EXPECT_EQ(model->points_factors(geometry.widths()).compute, 1);
}

// Frames of 8 rows are at the floor. Their excess time is memory's, and the factor of computing
// stays.
TEST_F(LiveModelTest, AFrameAtTheFloorTeachesMemory) {
  Profile profile = *seed->profile();
  profile.lanes[0].compute = {5, 0, 2, {{{8, 0.05}, {256, 2}}}, {0.2, 0}};  // 35 us of both chunks
  const SeedProfile with_floor(std::make_shared<const Profile>(profile), HostIdentity(), kTarget);
  model = std::make_unique<LiveModel>(HolderId{"h0"}, &with_floor);
  ObserveMany(geometry, FabricKind::kTcp, 70, 90);
  EXPECT_EQ(model->curve_factors().compute, 1);
  EXPECT_GT(model->curve_factors().memory, 2);
  EXPECT_NEAR(*model->error(), 0, 1e-3);
  const LaneProfile* lane = model->SeedOf(geometry, FabricKind::kTcp);
  EXPECT_EQ(model->ComputeFor(geometry.widths(), std::nullopt, lane).live, model->curve_factors());
  ComputeConstants measured;
  measured.base_us = 5;
  measured.per_row_token_us = 0.001;
  measured.floor.us_per_token = 0.2;
  model->SetMeasured(geometry.widths(), measured);
  ObserveMany(geometry, FabricKind::kShm, 70, 90);
  EXPECT_EQ(model->points_factors(geometry.widths()).compute, 1);
  EXPECT_GT(model->points_factors(geometry.widths()).memory, 2);
  measured.floor.us_per_token = 0.3;  // another measurement
  model->SetMeasured(geometry.widths(), measured);
  EXPECT_EQ(model->points_factors(geometry.widths()), LiveFactors());
}

TEST_F(LiveModelTest, OtherWidthsHaveNoSeed) {
  Geometry other = geometry;
  other.d_rope += 2;
  EXPECT_EQ(model->SeedOf(other, FabricKind::kTcp), nullptr);
  ObserveMany(other, FabricKind::kTcp, 70, 90);
  EXPECT_EQ(model->curve_factors().compute, 1);
  EXPECT_FALSE(model->error().has_value());
}

// Layers and model do not matter: all constants are of one layer.
TEST_F(LiveModelTest, AModelOfTheSameWidthsHasTheSeed) {
  Geometry other = geometry;
  other.model = "another";
  other.layers = 61;
  EXPECT_NE(model->SeedOf(other, FabricKind::kTcp), nullptr);
}

TEST_F(LiveModelTest, AHolderThatChangedItsKernelTargetHasNoSeed) {
  Profile profile = *seed->profile();
  profile.lanes[0].kernel_target = kTarget;
  const SeedProfile of_target(std::make_shared<const Profile>(profile), HostIdentity(), kTarget);
  LiveModel holder({"h0"}, &of_target);
  EXPECT_NE(holder.SeedOf(geometry, FabricKind::kTcp), nullptr) << "nothing is known yet";
  holder.SetTarget(kTarget);
  EXPECT_NE(holder.SeedOf(geometry, FabricKind::kTcp), nullptr);
  holder.SetTarget(KernelTargetId::kAvx3);
  EXPECT_EQ(holder.SeedOf(geometry, FabricKind::kTcp), nullptr);
}

// Two points of one model must not be used for a model of other widths.
TEST_F(LiveModelTest, EachWidthsHaveTheirOwnPoints) {
  Geometry wide = geometry;
  wide.d_qk *= 2;
  model->SetMeasured(geometry.widths(), {.base_us = 11, .per_row_token_us = 0.02});
  model->SetMeasured(wide.widths(), {.base_us = 11, .per_row_token_us = 0.04});
  ObserveMany(geometry, FabricKind::kShm, 70, 90);
  EXPECT_NEAR(model->points_factors(geometry.widths()).compute, 2, 1e-6);
  EXPECT_EQ(model->points_factors(wide.widths()).compute, 1);
  ObserveMany(wide, FabricKind::kShm, 59, 90);
  EXPECT_NEAR(model->points_factors(wide.widths()).compute, 1, 1e-6);
  // There is room for kWidthsMax of them; the rest have no factor.
  for (uint32_t i = 0; i < 2 * LiveModel::kWidthsMax; ++i) {
    Geometry more = geometry;
    more.d_v += i + 1;
    model->SetMeasured(more.widths(), {.base_us = 35});
    ObserveMany(more, FabricKind::kShm, 70, 90);
    EXPECT_NEAR(model->points_factors(more.widths()).compute, i + 2 < LiveModel::kWidthsMax ? 2 : 1,
                1e-6);
  }
}

// Other frames of a batch add to its time. A frame alone would take its share of that time at
// least, and all of it at most.
TEST_F(LiveModelTest, ASharedBatchReportsARange) {
  const auto reply_many = [&](double compute_us, double share) {
    for (int i = 0; i < 200; ++i) Reply(geometry, FabricKind::kTcp, compute_us, share);
    return model->curve_factors().compute;
  };
  EXPECT_NEAR(reply_many(35 * 8, 1.0 / 8), 1, 1e-9) << "eight times the work";
  EXPECT_NEAR(reply_many(35, 1.0 / 8), 1, 1e-9) << "eight requesters whose rows are read once";
  EXPECT_NEAR(reply_many(35 * 0.5, 1.0 / 8), 0.5, 1e-6) << "the whole batch is faster";
  EXPECT_GT(reply_many(35 * 16, 1.0 / 4), 3.5) << "slower";
  EXPECT_NEAR(reply_many(35, 0), 1, 1e-6) << "a share that was not told is all";
}

// A saturated time teaches nothing, and neither does a time of 0.
TEST_F(LiveModelTest, NoTimeTeachesNothing) {
  AnsweredFrame frame = {.geometry = geometry, .rows = 8, .runs = runs};
  for (int i = 0; i < 64; ++i) {
    frame.compute_ns = i % 2 == 0 ? 0 : std::numeric_limits<uint32_t>::max();
    EXPECT_GT(model->Observe(frame).expected_us, 0);
  }
  EXPECT_EQ(model->curve_factors(), LiveFactors());
}

// Sixteen replies in a row that miss to one side make a measurement doubted. All others are noise.
TEST_F(LiveModelTest, RepliesThatDisagreeMakeAMeasurementDoubted) {
  const RowWidths widths = geometry.widths();
  const auto reply = [&](double us) { return Reply(geometry, FabricKind::kShm, us).doubted_now; };
  for (const double off : {1.0 / 300, 1.0 / 100, 0.3, 3.0, 100.0}) {
    model->SetMeasured(widths, {.base_us = 35 / off});
    EXPECT_FALSE(model->doubted(widths));
    for (int32_t i = 1; i < DoubtCount::kCount; ++i) EXPECT_FALSE(reply(35)) << off;
    EXPECT_TRUE(reply(35)) << off;
    EXPECT_TRUE(model->doubted(widths));
    for (int32_t i = 0; i < 3 * DoubtCount::kCount; ++i) EXPECT_FALSE(reply(35)) << "said once";
    model->SetMeasured(widths, {.base_us = 35});
    EXPECT_FALSE(model->doubted(widths));
  }
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(reply(i % DoubtCount::kCount == 7 ? 35 : 1000));
  model->SetMeasured(widths, {.base_us = 36});
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(reply(i % 2 == 0 ? 10 : 90)) << "to both sides";
  // A profile's curve is never doubted.
  for (int i = 0; i < 64; ++i)
    EXPECT_FALSE(Reply(geometry, FabricKind::kTcp, 35 * 100).doubted_now);
}

// A profile's curve is never measured again, so its factors alone must follow an error of 300 x.
TEST_F(LiveModelTest, FactorsFollowFarEnough) {
  for (int i = 0; i < 400; ++i) Reply(geometry, FabricKind::kTcp, 35 / 300.0);
  EXPECT_NEAR(model->curve_factors().compute, 1 / 300.0, 1e-4);
}

TEST(SeedProfile, NeverUsesAProfileOfAnotherHost) {
  Profile profile;
  const Geometry geometry = test::TestGeometry();
  profile.subject = SubjectOf(geometry, "another-host-altogether", {}, true);
  const SeedProfile elsewhere(std::make_shared<const Profile>(profile), HostIdentity(), kTarget);
  EXPECT_EQ(elsewhere.profile(), nullptr);
  EXPECT_EQ(elsewhere.For(geometry), nullptr);
  const SeedProfile here(std::make_shared<const Profile>(profile), "another-host-altogether",
                         kTarget);
  EXPECT_EQ(here.For(geometry), here.profile());
  EXPECT_NE(here.profile(), nullptr);
  EXPECT_EQ(SeedProfile(nullptr, "h", kTarget).For(geometry), nullptr);
}

TEST(SeedProfile, ManyGeometriesAreBounded) {
  Logger().set_level(spdlog::level::err);  // each is logged
  Profile profile;
  Geometry geometry = test::TestGeometry();
  profile.subject = SubjectOf(geometry, "host", {}, true);
  const SeedProfile seed(std::make_shared<const Profile>(profile), "host", kTarget);
  EXPECT_NE(seed.For(geometry), nullptr);
  for (uint32_t i = 0; i < 2 * SeedProfile::kGeometryCountMax; ++i) {
    Geometry other = geometry;
    other.d_qk += i + 1;
    EXPECT_EQ(seed.For(other), nullptr);
  }
  EXPECT_NE(seed.For(geometry), nullptr);
}

}  // namespace
}  // namespace ckv
