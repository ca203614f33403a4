// Goal: what near rows take follows what calls take, for each widths by themselves, whatever the
// calibration said. Method: made-up samples.

#include "client/learn/live_here.h"

#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

TEST(LiveHere, FollowsWhatCallsTake) {
  const RowWidths widths = test::TestGeometry().widths();
  RowWidths other = widths;
  other.d_qk *= 2;
  RequesterConstants points, curve;
  points.attend_per_row_token_us = 0.02;
  curve.attend = {4, 0, 1, {{{16, 0.5}}}};
  EXPECT_DOUBLE_EQ(AttendHereUs(points, 16, 100), 32);
  EXPECT_DOUBLE_EQ(AttendHereUs(curve, 16, 100), 54);
  LiveHere live;
  live.Observe(widths, 16, 100, 64);  // nothing to compare with yet
  EXPECT_EQ(live.Factor(widths), 1);
  live.SetKnown(widths, points);
  live.SetKnown(other, curve);
  live.SetKnown(widths, curve);  // the first counts
  EXPECT_FALSE(live.Learned(widths));
  for (int i = 0; i < 100; ++i) {
    live.Observe(widths, 16, 100, 48);
    live.Observe(other, 16, 100, 27);
  }
  EXPECT_TRUE(live.Learned(widths));
  EXPECT_NEAR(live.Factor(widths), 1.5, 1e-9);
  EXPECT_NEAR(live.Factor(other), 0.5, 1e-9);
  EXPECT_DOUBLE_EQ(AttendHereUs(WithAttendFactor(points, 1.5), 16, 100), 48);
  EXPECT_DOUBLE_EQ(AttendHereUs(WithAttendFactor(curve, 0.5), 16, 100), 27);
}

TEST(LiveHere, HasRoomForSoManyWidths) {
  LiveHere live;
  RequesterConstants here;
  here.attend_per_row_token_us = 1;
  RowWidths widths = test::TestGeometry().widths();
  for (size_t i = 0; i < LiveHere::kWidthsMax + 1; ++i) {
    ++widths.d_qk;
    live.SetKnown(widths, here);
    for (int n = 0; n < 100; ++n) live.Observe(widths, 1, 1, 2);
    EXPECT_NEAR(live.Factor(widths), i < LiveHere::kWidthsMax ? 2 : 1, 1e-9);
  }
}

}  // namespace
}  // namespace ckv
