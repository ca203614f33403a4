// Goal: the cost of rows in the local row cache follows what calls take, for each row width
// separately, whatever the calibration measured. Method: made-up samples.

#include "client/cost/live_here.h"

#include <vector>

#include "client/cost/compute_curve.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr Instant kSeenAt = {1'000'000'000};

double RowsOf(const std::vector<SharedRun>& runs) {
  double rows = 0;
  for (const SharedRun& run : runs) rows += run.rows;
  return rows;
}
void Observe(LiveHere& live, const RowWidths& widths, const std::vector<SharedRun>& runs, double us,
             Instant now) {
  live.Observe(widths, RowsOf(runs), runs, us, now);
}
double ExpectedUs(const LiveHere& live, const RowWidths& widths,
                  const std::vector<SharedRun>& runs) {
  return live.ExpectedUs(widths, RowsOf(runs), runs);
}

// Goal: a host that was slow for a while gets local attends again, even if none are made meanwhile.
TEST(LiveHere, ForgetsAfterASilence) {
  const RowWidths widths = test::TestGeometry().widths();
  RequesterConstants points;
  points.attend_per_row_token_us = 0.02;
  LiveHere live;
  live.SetKnown(widths, points);
  for (int i = 0; i < 100; ++i) Observe(live, widths, {{16, 100}}, 320, kSeenAt);
  EXPECT_NEAR(live.Factors(widths, kSeenAt + LiveHere::kAgeMax).compute, 10, 1e-9);
  const Instant later = kSeenAt + LiveHere::kAgeMax + std::chrono::nanoseconds(1);
  EXPECT_EQ(live.Factors(widths, later), LiveFactors());
  // The first attend after it counts from 1 on.
  Observe(live, widths, {{16, 100}}, 32, later);
  EXPECT_EQ(live.Factors(widths, later), LiveFactors());
  for (int i = 0; i < 100; ++i) Observe(live, widths, {{16, 100}}, 64, later);
  EXPECT_NEAR(live.Factors(widths, later).compute, 2, 1e-9);
}

TEST(LiveHere, FollowsTheTimesOfCalls) {
  const RowWidths widths = test::TestGeometry().widths();
  RowWidths other = widths;
  other.d_qk *= 2;
  RequesterConstants points, curve;
  points.attend_per_row_token_us = 0.02;
  curve.attend = {4, 0, 1, {{{16, 0.5}}}};
  EXPECT_DOUBLE_EQ(AttendHereTime(points, 16, 100).Us(), 32);
  EXPECT_DOUBLE_EQ(AttendHereTime(curve, 16, 100).Us(), 54);
  LiveHere live;
  EXPECT_EQ(ExpectedUs(live, widths, {{16, 100}}), 0) << "not known yet";
  Observe(live, widths, {{16, 100}}, 64, kSeenAt);  // nothing to compare with yet
  EXPECT_EQ(live.Factors(widths, kSeenAt), LiveFactors());
  live.SetKnown(widths, points);
  live.SetKnown(other, curve);
  live.SetKnown(widths, points);  // the same again
  EXPECT_FALSE(live.Learned(widths));
  for (int i = 0; i < 100; ++i) {
    Observe(live, widths, {{16, 100}}, 48, kSeenAt);
    Observe(live, other, {{16, 100}}, 27, kSeenAt);
  }
  EXPECT_TRUE(live.Learned(widths));
  EXPECT_NEAR(live.Factors(widths, kSeenAt).compute, 1.5, 1e-9);
  EXPECT_NEAR(live.Factors(other, kSeenAt).compute, 0.5, 1e-9);
  EXPECT_NEAR(ExpectedUs(live, widths, {{16, 100}}), 48, 1e-9);
  EXPECT_NEAR(ExpectedUs(live, other, {{16, 100}}), 27, 1e-9);
  live.SetKnown(widths, points);
  EXPECT_NEAR(live.Factors(widths, kSeenAt).compute, 1.5, 1e-9);
  RequesterConstants anew = points;
  anew.attend_per_row_token_us = 0.03;
  live.SetKnown(widths, anew);
  EXPECT_EQ(live.Factors(widths, kSeenAt), LiveFactors()) << "of another measurement";
  for (int i = 0; i < 100; ++i) Observe(live, widths, {{16, 100}}, 48, kSeenAt);
  EXPECT_EQ(live.Factors(widths, kSeenAt), LiveFactors());
  EXPECT_DOUBLE_EQ(AttendHereTime(WithAttendFactors(points, {1.5, 3}), 16, 100).Us(), 48);
  EXPECT_DOUBLE_EQ(AttendHereTime(WithAttendFactors(curve, {0.5, 3}), 16, 100).Us(), 27);
}

// One query row waits for memory, many compute: each changes its own factor.
TEST(LiveHere, SeparatesMemoryFromComputing) {
  const RowWidths widths = test::TestGeometry().widths();
  RequesterConstants points;
  points.attend_per_row_token_us = 0.01;
  points.attend_floor.us_per_token = 0.08;
  LiveHere live;
  live.SetKnown(widths, points);
  for (int i = 0; i < 100; ++i) {
    Observe(live, widths, {{1, 1000}}, 120, kSeenAt);
    Observe(live, widths, {{128, 1000}}, 1280, kSeenAt);
  }
  const LiveFactors factors = live.Factors(widths, kSeenAt);
  EXPECT_NEAR(factors.compute, 1, 1e-9);
  EXPECT_NEAR(factors.memory, 1.5, 1e-9);
  const RequesterConstants now = WithAttendFactors(points, factors);
  EXPECT_NEAR(AttendHereTime(now, 1, 1000).Us(), 120, 1e-6);
  EXPECT_NEAR(AttendHereTime(now, 128, 1000).Us(), 1280, 1e-6);
  points.attend = {4, 0, 1, {{{16, 0.5}}}, {0.2, 1}};
  EXPECT_NEAR(AttendHereTime(WithAttendFactors(points, {2, 3}), 16, 100).Us(), 8 + 100 + 60, 1e-9);
}

// Sequences over rows of their own wait for memory one after another. Many over the same rows wait
// once, or compute for longer. Neither is a sign that this host is slow or fast.
TEST(LiveHere, SequencesShareRowsOrDoNot) {
  const RowWidths widths = test::TestGeometry().widths();
  RequesterConstants points, curve;
  points.attend_per_row_token_us = 0.001;
  points.attend_floor.us_per_token = 0.08;
  curve.attend = {4, 0, 2, {{{16, 0.01}, {128, 0.08}}}, {0.08, 0}};
  for (const RequesterConstants& here : {points, curve}) {
    LiveHere live;
    live.SetKnown(widths, here);
    const double base_us = here.attend.base_us;
    for (int i = 0; i < 100; ++i) {
      Observe(live, widths, std::vector<SharedRun>(8, {16, 1000}), base_us + 8 * 80, kSeenAt);
      const double shared_us = here.attend.empty() ? 128 : base_us + 80;
      Observe(live, widths, {{128, 1000}}, shared_us, kSeenAt);
    }
    EXPECT_NEAR(live.Factors(widths, kSeenAt).memory, 1, 1e-9);
    EXPECT_NEAR(live.Factors(widths, kSeenAt).compute, 1, 1e-9);
    EXPECT_NEAR(ExpectedUs(live, widths, {{16, 1000}, {16, 500}}), base_us + 120, 1e-9);
  }
}

TEST(LiveHere, KeepsALimitedNumberOfWidths) {
  LiveHere live;
  RequesterConstants here;
  here.attend_per_row_token_us = 1;
  RowWidths widths = test::TestGeometry().widths();
  for (size_t i = 0; i < LiveHere::kWidthsMax + 1; ++i) {
    ++widths.d_qk;
    live.SetKnown(widths, here);
    for (int n = 0; n < 100; ++n) Observe(live, widths, {{1, 1}}, 2, kSeenAt);
    EXPECT_NEAR(live.Factors(widths, kSeenAt).compute, i < LiveHere::kWidthsMax ? 2 : 1, 1e-9);
  }
}

}  // namespace
}  // namespace ckv
