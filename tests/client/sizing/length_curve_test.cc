// Goal: a curve goes through its points, is exact for a + b*l + c*l^2, and refuses points that
// cannot be of one measurement.

#include "client/sizing/length_curve.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

using Points = std::vector<LengthCurve::Point>;

TEST(LengthCurve, HasItsPoints) {
  const Points points = {{1000, 0.44}, {8000, 0.72}, {32000, 1.84}, {128000, 7.40}};
  const auto curve = LengthCurve::Create(points);
  ASSERT_TRUE(curve.ok()) << curve.status();
  for (const LengthCurve::Point& point : points)
    EXPECT_DOUBLE_EQ(curve->At(point.tokens), point.value);
  EXPECT_EQ(curve->tokens_max(), 128000);
  EXPECT_DOUBLE_EQ(curve->Scaled(2).At(32000), 3.68);
}

TEST(LengthCurve, AParabolaIsExact) {
  const auto cost = [](double l) { return 0.3 + 4e-5 * l + 1e-10 * l * l; };
  Points points;
  for (const double l : {500.0, 2000.0, 9000.0, 40000.0, 100000.0}) points.push_back({l, cost(l)});
  const auto curve = LengthCurve::Create(points);
  ASSERT_TRUE(curve.ok());
  for (double l = 500; l <= 120000; l += 250) EXPECT_NEAR(curve->At(l), cost(l), 1e-9) << l;
}

TEST(LengthCurve, ShortLengthsAreNeverFreeOrNegative) {
  // The line through the first two points is below 0 at 0 tokens.
  const auto curve = LengthCurve::Create({{1000, 1}, {2000, 3}});
  ASSERT_TRUE(curve.ok());
  EXPECT_DOUBLE_EQ(curve->At(100), 0.1) << "proportional at least";
  EXPECT_DOUBLE_EQ(curve->At(1500), 2);
  EXPECT_DOUBLE_EQ(LengthCurve().At(7), 7);
}

TEST(LengthCurve, AJumpStaysWithinItsInterval) {
  const auto curve = LengthCurve::Create({{1000, 1}, {2000, 1}, {3000, 10}, {4000, 10}});
  ASSERT_TRUE(curve.ok());
  double before = 1;
  for (double l = 1000; l <= 8000; l += 50) {
    const double value = curve->At(l);
    EXPECT_GE(value, before) << l;
    EXPECT_LE(value, 10) << l;
    before = value;
  }
  EXPECT_EQ(curve->At(1500), 1);
  EXPECT_EQ(curve->At(3500), 10);
  EXPECT_EQ(curve->At(8000), 10) << "the last parabola falls";
}

TEST(LengthCurve, WrongPointsAreNamed) {
  const auto refusal = [](Points points) {
    return std::string(LengthCurve::Create(std::move(points)).status().message());
  };
  EXPECT_EQ(refusal({{1, 1}}), "1 points, need 2 to 256");
  EXPECT_EQ(refusal({{0, 1}, {2, 2}}), "[0].tokens: not above 0");
  EXPECT_EQ(refusal({{1, 1}, {2, -2}}), "[1].value: not above 0");
  EXPECT_EQ(refusal({{1, 1}, {3, 2}, {3, 4}}), "[2].tokens: not above that of the point before");
  EXPECT_EQ(refusal({{1, 2}, {3, 1}}),
            "[1].value: below that of a shorter length: is it of another run?");
  EXPECT_EQ(refusal(Points(257, {1, 1})), "257 points, need 2 to 256");
}

}  // namespace
}  // namespace ckv
