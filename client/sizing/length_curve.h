// A quantity that was measured at a few prompt lengths: the time of a prefill, or the bytes of a KV
// cache.

#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// A value type; copies are a few points. Thread-safe after Create.
class LengthCurve {
 public:
  static constexpr size_t kPointCountMax = 256;

  struct Point {
    double tokens = 0;
    double value = 0;
  };

  // A curve of one point, 1 at 1 token.
  LengthCurve() : points_{{1, 1}} {}

  // `points` are ordered by tokens.
  //   InvalidArgument     there are fewer than 2 or more than kPointCountMax; a number is not
  //                       positive and finite; tokens do not rise; or a value falls. The message
  //                       begins with the index of the point: "[2].tokens: ...".
  static absl::StatusOr<LengthCurve> Create(std::vector<Point> points);

  // Returns the value at a length. A prefill costs a + b*l + c*l^2, so three points determine it.
  // Between two points, this is the mean of the two parabolas that also have the next point before
  // or after them. It stays within the values of the two points. Below the first point, it is the
  // line through the first two, and at least proportional to the length. Above the last one, the
  // last parabola continues where it rises.
  double At(double tokens) const;

  // The last length that was measured.
  double tokens_max() const { return points_.back().tokens; }

  // Returns the curve whose values are `factor` times as large.
  LengthCurve Scaled(double factor) const;

 private:
  explicit LengthCurve(std::vector<Point> points) : points_(std::move(points)) {}
  // The parabola through the points from `first` on.
  double Parabola(size_t first, double tokens) const;

  std::vector<Point> points_;
};

}  // namespace ckv
