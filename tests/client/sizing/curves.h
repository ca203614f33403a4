// Curves for tests of plans.

#pragma once

#include "client/sizing/length_curve.h"

namespace ckv::test {

// A line through the values at 1,000 and 100,000 tokens.
inline LengthCurve CurveTo(double at_1000, double at_100000) {
  return *LengthCurve::Create({{1000, at_1000}, {100000, at_100000}});
}

}  // namespace ckv::test
