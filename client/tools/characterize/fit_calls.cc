// Fits the constants of a lane to calls. FitFabric is a line through bytes and times. FitCalls
// turns each call into a point of that line, by the stage that is the longest with the constants so
// far, and repeats that until the stages stay. It does so for each wire share and each burst.
// FitLane takes turns: FitCalls for calls over few tokens, and a line through the rest of the
// others.

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/tools/characterize/calibrate.h"

namespace ckv {

FabricConstants FitFabric(std::span<const ExchangeSample> samples) {
  // Minimises the sum of ((a + b x - y) / y)^2.
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0, least = 0;
  bool any = false;
  for (const ExchangeSample& sample : samples) {
    // With `of_us` set, `us` is a difference without the kernel's time, so it may be below 0.
    if (!(sample.us > 0 || sample.of_us > 0) || !(sample.bytes >= 0)) continue;
    if (!std::isfinite(sample.us) || !std::isfinite(sample.bytes)) continue;
    if (!std::isfinite(sample.of_us)) continue;
    const double of_us = sample.of_us > 0 ? sample.of_us : sample.us;
    const double weight = 1 / (of_us * of_us);
    w += weight;
    wx += weight * sample.bytes;
    wxx += weight * sample.bytes * sample.bytes;
    wy += weight * sample.us;
    wxy += weight * sample.bytes * sample.us;
    least = any ? std::min(least, sample.us) : std::max(0.0, sample.us);
    any = true;
  }
  FabricConstants constants = {.t_probe_us = least,
                               .bandwidth_bytes_per_s = LiveFabric::kBandwidthMax};
  const double determinant = w * wxx - wx * wx;
  if (!(determinant > 1e-12 * w * wxx)) return constants;
  const double us_per_byte = (w * wxy - wx * wy) / determinant;
  if (!(us_per_byte > 0)) return constants;
  constants.t_probe_us = std::max(0.0, (wy - us_per_byte * wx) / w);
  constants.bandwidth_bytes_per_s =
      std::clamp(1e6 / us_per_byte, LiveFabric::kBandwidthMin, LiveFabric::kBandwidthMax);
  return constants;
}

namespace {

// How often the longest stage is searched for. The search settles in three turns, and may swing
// between two stages that are equally long.
constexpr uint32_t kStageTurns = 8;

// The time that the error of a call is relative to: that beyond the kernel, which is what is
// fitted. If frames overlap with the kernel there may be none, so it is at least this share of all.
double ErrorOf(const CallSample& call) {
  constexpr double kErrorShareMin = 0.1;
  return std::max(call.beside_us, kErrorShareMin * (call.beside_us + call.compute_us));
}

// A sample as T_probe + bytes / BW, at the stage of the pipeline that is the longest with
// `us_per_byte`.
ExchangeSample AtLongestStage(const CallSample& call, const FrameRows& frame,
                              const FittedFabric& fitted, double us_per_byte) {
  const auto limited = [&](double bytes) { return std::max(0.0, bytes - fitted.burst_bytes); };
  const double wire_share = fitted.wire_share;
  const double bytes = call.bytes_out + call.bytes_in;
  const double all_us = call.beside_us + call.compute_us, of_us = ErrorOf(call);
  if (frame.whole == 0 || call.rows <= frame.whole || wire_share == 0) {
    if (fitted.burst_bytes == 0) return {bytes, call.beside_us, of_us};
    const double wire = limited(call.bytes_out) + limited(call.bytes_in);
    const double refill = std::max(call.bytes_out, call.bytes_in);
    if (refill * us_per_byte - call.compute_us > wire * us_per_byte) return {refill, all_us, of_us};
    return {wire, call.beside_us, of_us};
  }
  const double one = frame.block / call.rows;
  const double out = wire_share * limited(call.bytes_out);
  const double back = wire_share * limited(call.bytes_in);
  const double out_one = wire_share * limited(one * call.bytes_out);
  const double back_one = wire_share * limited(one * call.bytes_in);
  const double copied = (1 - wire_share) * bytes;
  const double holder_us = copied * us_per_byte + call.compute_us;
  if (holder_us >= std::max(out, back) * us_per_byte)
    return {copied + out_one + back_one, call.beside_us, of_us};
  const double other_one = out > back ? back_one : out_one;
  return {std::max(out, back) + other_one + one * copied, all_us - one * call.compute_us, of_us};
}

double SquaredError(std::span<const ExchangeSample> samples, const FabricConstants& constants) {
  double sum = 0;
  for (const ExchangeSample& sample : samples) {
    if (!(sample.of_us > 0)) continue;
    const double model_us =
        constants.t_probe_us + sample.bytes / constants.bandwidth_bytes_per_s * 1e6;
    const double error = (model_us - sample.us) / sample.of_us;
    sum += error * error;
  }
  return sum;
}

// The best fit with this burst, and its sum of squared relative errors.
struct BurstFit {
  FittedFabric fitted;
  double error = 0;
};

BurstFit FitWithBurst(std::span<const CallSample> samples, const FrameRows& frame,
                      double burst_bytes) {
  BurstFit best;
  const bool cut = std::any_of(samples.begin(), samples.end(), [&](const CallSample& call) {
    return frame.whole > 0 && call.rows > frame.whole;
  });
  std::vector<ExchangeSample> exchanges(samples.size());
  for (uint32_t step = 0; step <= (cut ? kWireShareSteps : 0); ++step) {
    FittedFabric fitted = {.constants = best.fitted.constants,
                           .wire_share = double(step) / kWireShareSteps,
                           .burst_bytes = burst_bytes};
    const bool is_linear = step == 0 && burst_bytes == 0;
    for (uint32_t turn = 0; turn < (is_linear ? 1 : kStageTurns); ++turn) {
      const double bandwidth = fitted.constants.bandwidth_bytes_per_s;
      const double us_per_byte = is_linear || !(bandwidth > 0) ? 0 : 1e6 / bandwidth;
      for (size_t i = 0; i < samples.size(); ++i)
        exchanges[i] = AtLongestStage(samples[i], frame, fitted, us_per_byte);
      fitted.constants = FitFabric(exchanges);
    }
    const double error = SquaredError(exchanges, fitted.constants);
    if (step > 0 && !(error < best.error)) continue;
    best = {fitted, error};
  }
  return best;
}

}  // namespace

FittedFabric FitCalls(std::span<const CallSample> samples, const FrameRows& frame) {
  BurstFit best = FitWithBurst(samples, frame, /*burst_bytes=*/0);
  best.error *= kBurstGain;
  for (const double burst_bytes : kBurstBytes) {
    const BurstFit fit = FitWithBurst(samples, frame, burst_bytes);
    if (fit.error < best.error) best = fit;
  }
  return best.fitted;
}

namespace {

// Turns of the fits of a lane, each of which uses the other's last result. A turn leaves at most
// share(few) / share(many) of the error.
constexpr uint32_t kLaneTurns = 8;
// Calls that show less of it show the noise enlarged.
constexpr double kColdShareMin = 0.3;

// Fits a line through bytes and times, as FitFabric does, but to times that may be negative. A
// slope or a value at 0 bytes that would be negative is 0.
ColdExchange FitRest(std::span<const ExchangeSample> samples) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const ExchangeSample& sample : samples) {
    if (!(sample.of_us > 0)) continue;
    const double weight = 1 / (sample.of_us * sample.of_us);
    w += weight;
    wx += weight * sample.bytes;
    wxx += weight * sample.bytes * sample.bytes;
    wy += weight * sample.us;
    wxy += weight * sample.bytes * sample.us;
  }
  if (!(w > 0) || !(wxx > 0)) return {};
  const double determinant = w * wxx - wx * wx;
  const double slope = determinant > 1e-12 * w * wxx ? (w * wxy - wx * wy) / determinant : 0;
  if (!(slope > 0)) return {.fixed_us = std::max(0.0, wy / w), .us_per_byte = 0, .cache_bytes = 0};
  const double fixed_us = (wy - slope * wx) / w;
  if (fixed_us > 0) return {.fixed_us = fixed_us, .us_per_byte = slope, .cache_bytes = 0};
  return {.fixed_us = 0, .us_per_byte = std::max(0.0, wxy / wxx), .cache_bytes = 0};
}

// Returns what a call takes longer than with `fitted`.
ExchangeSample RestOf(const CallSample& call, const FrameRows& frame, const FittedFabric& fitted) {
  const FabricConstants& constants = fitted.constants;
  const double us_per_byte = 1e6 / constants.bandwidth_bytes_per_s;
  const ExchangeSample stage = AtLongestStage(call, frame, fitted, us_per_byte);
  return {call.bytes_out + call.bytes_in,
          stage.us - constants.t_probe_us - stage.bytes * us_per_byte, stage.of_us};
}

}  // namespace

FittedLane FitLane(const SizedCalls& few, const SizedCalls& many, const FrameRows& frame,
                   double cache_bytes) {
  FittedLane lane = {.fabric = FitCalls(few.calls, frame), .cold_exchange = {}};
  const ColdExchange cache = {.fixed_us = 0, .us_per_byte = 0, .cache_bytes = cache_bytes};
  const double share = cache.Share(many.read_bytes);
  if (!(share - cache.Share(few.read_bytes) >= kColdShareMin)) return lane;
  for (uint32_t turn = 0; turn < kLaneTurns; ++turn) {
    const double bytes_per_us = lane.fabric.constants.bandwidth_bytes_per_s / 1e6;
    std::vector<ExchangeSample> rests;
    for (const CallSample& call : many.calls) rests.push_back(RestOf(call, frame, lane.fabric));
    const ColdExchange rest = FitRest(rests);
    lane.cold_exchange = {.fixed_us = rest.fixed_us / share,
                          .us_per_byte = rest.us_per_byte / share + 1 / bytes_per_us,
                          .cache_bytes = cache_bytes};
    std::vector<CallSample> calls = few.calls;
    for (CallSample& call : calls)
      call.beside_us -=
          lane.cold_exchange.Us(call.bytes_out + call.bytes_in, few.read_bytes, bytes_per_us);
    lane.fabric = FitCalls(calls, frame);
  }
  return lane;
}

}  // namespace ckv
