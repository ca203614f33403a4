#include "client/sizing/length_curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

absl::Status CheckPoint(const std::vector<LengthCurve::Point>& points, size_t i) {
  const auto refuse = [i](const char* field, const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat("[%d].%s: %s", i, field, why));
  };
  const LengthCurve::Point& point = points[i];
  if (!std::isfinite(point.tokens) || point.tokens <= 0) return refuse("tokens", "not above 0");
  if (!std::isfinite(point.value) || point.value <= 0) return refuse("value", "not above 0");
  if (i == 0) return absl::OkStatus();
  if (point.tokens <= points[i - 1].tokens)
    return refuse("tokens", "not above that of the point before");
  if (point.value < points[i - 1].value)
    return refuse("value", "below that of a shorter length: is it of another run?");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LengthCurve> LengthCurve::Create(std::vector<Point> points) {
  if (points.size() < 2 || points.size() > kPointCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d points, need 2 to %d", points.size(), kPointCountMax));
  }
  for (size_t i = 0; i < points.size(); ++i) {
    if (absl::Status status = CheckPoint(points, i); !status.ok()) return status;
  }
  return LengthCurve(std::move(points));
}

double LengthCurve::Parabola(size_t first, double tokens) const {
  const Point& a = points_[first];
  const Point& b = points_[first + 1];
  const double ab = (b.value - a.value) / (b.tokens - a.tokens);
  double value = a.value + ab * (tokens - a.tokens);
  if (first + 2 == points_.size()) return value;
  const Point& c = points_[first + 2];
  const double bc = (c.value - b.value) / (c.tokens - b.tokens);
  return value + (bc - ab) / (c.tokens - a.tokens) * (tokens - a.tokens) * (tokens - b.tokens);
}

double LengthCurve::At(double tokens) const {
  const size_t count = points_.size();
  if (count == 1) return points_[0].value * tokens / points_[0].tokens;
  const Point& first = points_[0];
  if (tokens < first.tokens) {
    const double slope = (points_[1].value - first.value) / (points_[1].tokens - first.tokens);
    const double line = first.value - slope * (first.tokens - tokens);
    return std::max(line, first.value * tokens / first.tokens);
  }
  // Beyond the last point the values do not fall either.
  if (tokens >= points_.back().tokens)
    return std::max(points_.back().value, Parabola(count >= 3 ? count - 3 : 0, tokens));
  const auto after =
      std::upper_bound(points_.begin(), points_.end(), tokens,
                       [](double length, const Point& point) { return length < point.tokens; });
  // The interval begins at point `low`; the last one has no point after it.
  const size_t low = static_cast<size_t>(after - points_.begin()) - 1;
  const double before = Parabola(low == 0 ? 0 : low - 1, tokens);
  const double value = low == 0 || low + 2 == count ? before : (before + Parabola(low, tokens)) / 2;
  // A parabola beside a jump leaves the values of its interval.
  return std::clamp(value, points_[low].value, points_[low + 1].value);
}

LengthCurve LengthCurve::Scaled(double factor) const {
  std::vector<Point> points = points_;
  for (Point& point : points) point.value *= factor;
  return LengthCurve(std::move(points));
}

}  // namespace ckv
