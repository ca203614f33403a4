#include "client/cost/round_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ckv {
namespace {

// A part, in powers of two. Up to kCountMin rounds the steps are larger: the first estimate is one
// round. With the small part, the time falls to a tenth in 1,300 rounds and rises tenfold in 70.
constexpr float kPart = 0.0025f, kFirstPart = 0.02f;

}  // namespace

void RoundTimes::Observe(uint64_t pairs, Duration took) {
  Class& in = classes_[static_cast<size_t>(std::bit_width(pairs))];
  const float time = std::log2(static_cast<float>(std::max<int64_t>(1, took.count())));
  const uint32_t count = in.count.load(std::memory_order_relaxed);
  const float known = count == 0 ? time : in.log2_ns.load(std::memory_order_relaxed);
  const float part = count < kCountMin ? kFirstPart : kPart;
  in.log2_ns.store(time > known ? std::min(time, known + 19 * part) : known - part,
                   std::memory_order_relaxed);
  if (count < kCountMin) in.count.store(count + 1, std::memory_order_release);
}

std::optional<Duration> RoundTimes::P95(uint64_t pairs) const {
  const Class& in = classes_[static_cast<size_t>(std::bit_width(pairs))];
  if (in.count.load(std::memory_order_acquire) < kCountMin) return std::nullopt;
  return Duration(static_cast<int64_t>(std::exp2(in.log2_ns.load(std::memory_order_relaxed))));
}

}  // namespace ckv
