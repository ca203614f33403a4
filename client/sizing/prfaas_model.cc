// RatesOf is equations 3 to 6 for one split. The searches call it for every threshold, and add the
// times of prefills (WithTimes) only to the result, because those cost a look at each bin.

#include "client/sizing/prfaas_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"

namespace ckv {
namespace {

absl::Status CheckRate(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: not above 0", field));
}

absl::Status CheckCurve(const char* field, const LengthCurve& curve, double tokens_max) {
  if (curve.tokens_max() >= tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: ends at %.0f tokens, but prompts have up to %.0f", field,
                      curve.tokens_max(), tokens_max));
}

// The rate at which one stage limits the system: that of the stage over its share of the requests.
struct Stage {
  PrfaasLimit limit;
  double requests_per_s;
};

// How often an interval is halved in a search: 1e-12 of it is left.
constexpr int kHalvings = 40;

// The P90 of prefill times: those of long inputs are by another curve than those of short ones.
double PrefillQuantile(const PrfaasSystem& system, const PrfaasThroughput& at, double share) {
  const double t = at.split.threshold;
  const auto done_within = [&](double seconds) {
    const auto up_to = [&](const LengthCurve& curve, double low, double high) {
      if (high <= low || curve.At(low) > seconds) return low;
      for (int i = 0; i < kHalvings; ++i) {
        const double middle = (low + high) / 2;
        (curve.At(middle) <= seconds ? low : high) = middle;
      }
      return low;
    };
    const double first = system.lengths.tokens_min(), last = system.lengths.tokens_max();
    const double border = std::clamp(t, first, last);
    const auto share_up_to = [&](double tokens) { return 1 - system.lengths.ShareAbove(tokens); };
    return share_up_to(up_to(system.pd_prefill_s, first, border)) +
           share_up_to(up_to(system.prfaas_prefill_s, border, last)) - share_up_to(border);
  };
  double low = 0, high = 1;
  while (done_within(high) < share && high < 1e9) high *= 2;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (done_within(middle) < share ? low : high) = middle;
  }
  return high;
}

}  // namespace

double KvBytesPerSecond(const LengthCurve& kv_bytes, const LengthCurve& prefill_s, double tokens) {
  return kv_bytes.At(tokens) / prefill_s.At(tokens);
}

double EgressNeeded(double instances, const LengthCurve& kv_bytes, const LengthCurve& prefill_s,
                    double mean_tokens) {
  return instances * KvBytesPerSecond(kv_bytes, prefill_s, mean_tokens);
}

absl::Status ValidateSystem(const PrfaasSystem& system) {
  const std::pair<const char*, double> rates[] = {{"egress_bytes_per_s", system.egress_bytes_per_s},
                                                  {"decode_batch_max", system.decode_batch_max},
                                                  {"decode_step_s", system.decode_step_s},
                                                  {"output_tokens", system.output_tokens}};
  for (const auto& [field, value] : rates) {
    if (absl::Status status = CheckRate(field, value); !status.ok()) return status;
  }
  const std::pair<const char*, uint32_t> counts[] = {{"prfaas_instances", system.prfaas_instances},
                                                     {"pd_instances", system.pd_instances}};
  for (const auto& [field, count] : counts) {
    if (count == 0 || count > kSizingInstancesMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d, must be 1 to %d", field, count, kSizingInstancesMax));
    }
  }
  const std::pair<const char*, const LengthCurve*> curves[] = {
      {"kv_bytes", &system.kv_bytes},
      {"prfaas_prefill_s", &system.prfaas_prefill_s},
      {"pd_prefill_s", &system.pd_prefill_s}};
  for (const auto& [field, curve] : curves) {
    absl::Status status = CheckCurve(field, *curve, system.lengths.tokens_max());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

const char* NameOf(PrfaasLimit limit) {
  switch (limit) {
    case PrfaasLimit::kPrfaasCompute:
      return "PrfaaS prefill";
    case PrfaasLimit::kEgress:
      return "PrfaaS egress";
    case PrfaasLimit::kPdPrefill:
      return "PD prefill";
    case PrfaasLimit::kDecode:
      break;
  }
  return "PD decode";
}

namespace {

// Everything but the times of prefills, which cost a look at each bin.
PrfaasThroughput RatesOf(const PrfaasSystem& system, PrfaasSplit split) {
  const LengthDistribution& lengths = system.lengths;
  if (split.pd_prefill == 0) split.threshold = 0;
  if (system.prfaas_instances == 0) split.threshold = lengths.tokens_max();
  PrfaasThroughput out;
  out.split = split;
  out.share_offloaded = std::max(0.0, lengths.ShareAbove(split.threshold));
  out.long_tokens = lengths.MeanAbove(split.threshold);
  out.short_tokens = lengths.MeanUpTo(split.threshold);
  const double p = out.share_offloaded;
  std::vector<Stage> stages;
  const double infinite = std::numeric_limits<double>::infinity();
  if (system.prfaas_instances > 0) {
    const double compute = system.prfaas_instances / system.prfaas_prefill_s.At(out.long_tokens);
    const double egress = system.egress_bytes_per_s / system.kv_bytes.At(out.long_tokens);
    out.prfaas = std::min(compute, egress);
    const auto limit = compute <= egress ? PrfaasLimit::kPrfaasCompute : PrfaasLimit::kEgress;
    stages.push_back({limit, p > 0 ? out.prfaas / p : infinite});
  } else if (p > 0) {
    stages.push_back({PrfaasLimit::kPrfaasCompute, 0});
  }
  if (split.pd_prefill > 0)
    out.pd_prefill = split.pd_prefill / system.pd_prefill_s.At(out.short_tokens);
  stages.push_back({PrfaasLimit::kPdPrefill, p < 1 ? out.pd_prefill / (1 - p) : infinite});
  out.pd_decode =
      split.pd_decode * system.decode_batch_max / (system.decode_step_s * system.output_tokens);
  stages.push_back({PrfaasLimit::kDecode, out.pd_decode});
  const auto least = std::min_element(
      stages.begin(), stages.end(),
      [](const Stage& a, const Stage& b) { return a.requests_per_s < b.requests_per_s; });
  out.requests_per_s = least->requests_per_s;
  out.limit = least->limit;
  if (p > 0) out.egress_bytes_per_s = out.requests_per_s * p * system.kv_bytes.At(out.long_tokens);
  return out;
}

PrfaasThroughput WithTimes(const PrfaasSystem& system, PrfaasThroughput at) {
  const LengthDistribution& lengths = system.lengths;
  const double t = at.split.threshold, p = at.share_offloaded;
  const auto of = [](const LengthCurve& curve) {
    return [&curve](double tokens) { return curve.At(tokens); };
  };
  at.mean_prefill_s = p * lengths.MeanOf(of(system.prfaas_prefill_s), t, lengths.tokens_max()) +
                      (1 - p) * lengths.MeanOf(of(system.pd_prefill_s), lengths.tokens_min(), t);
  at.p90_prefill_s = PrefillQuantile(system, at, 0.9);
  return at;
}

}  // namespace

PrfaasThroughput ThroughputOf(const PrfaasSystem& system, const PrfaasSplit& split) {
  return WithTimes(system, RatesOf(system, split));
}

namespace {

PrfaasThroughput BestRates(const PrfaasSystem& system, uint32_t pd_prefill) {
  const LengthDistribution& lengths = system.lengths;
  const uint32_t pd_decode = system.pd_instances - pd_prefill;
  PrfaasThroughput best = RatesOf(system, {0, pd_prefill, pd_decode});
  if (pd_prefill == 0) return best;
  const double first = std::max(1.0, lengths.tokens_min());
  const double step = std::log(lengths.tokens_max() / first) / kThresholdCount;
  const auto look = [&](double t) {
    const PrfaasThroughput at = RatesOf(system, {t, pd_prefill, pd_decode});
    if (at.requests_per_s > best.requests_per_s) best = at;
  };
  for (uint32_t i = 0; i < kThresholdCount; ++i) look(first * std::exp(step * i));
  // Between the neighbours of the best one.
  const double below = best.split.threshold * std::exp(-step);
  for (uint32_t i = 1; i < kFinerCount; ++i) look(below * std::exp(2 * step * i / kFinerCount));
  return best;
}

}  // namespace

PrfaasThroughput BestThreshold(const PrfaasSystem& system, uint32_t pd_prefill) {
  return WithTimes(system, BestRates(system, pd_prefill));
}

PrfaasThroughput BestSplit(const PrfaasSystem& system) {
  PrfaasThroughput best;
  for (uint32_t prefill = 0; prefill < system.pd_instances; ++prefill) {
    const PrfaasThroughput at = BestRates(system, prefill);
    if (at.requests_per_s > best.requests_per_s) best = at;
  }
  return WithTimes(system, best);
}

PrfaasThroughput BestHomogeneous(const PrfaasSystem& system, uint32_t instances) {
  PrfaasSystem alone = system;
  alone.prfaas_instances = 0;
  alone.pd_instances = instances;
  PrfaasThroughput best;
  for (uint32_t prefill = 1; prefill < instances; ++prefill) {
    const PrfaasThroughput at =
        RatesOf(alone, {alone.lengths.tokens_max(), prefill, instances - prefill});
    if (at.requests_per_s > best.requests_per_s) best = at;
  }
  return WithTimes(alone, best);
}

PrfaasThroughput NaiveHeterogeneous(const PrfaasSystem& system) {
  return ThroughputOf(system, {0, 0, system.pd_instances});
}

std::vector<Sensitivity> Sensitivities(const PrfaasSystem& system) {
  const double now = BestSplit(system).requests_per_s;
  std::vector<Sensitivity> found;
  const auto add = [&](const char* change, absl::FunctionRef<void(PrfaasSystem&)> apply) {
    PrfaasSystem changed = system;
    apply(changed);
    Sensitivity one = {change, BestSplit(changed), 0};
    one.gain = one.best.requests_per_s / now - 1;
    found.push_back(std::move(one));
  };
  add("one PrfaaS instance more", [](PrfaasSystem& s) { ++s.prfaas_instances; });
  add("one PD instance more", [](PrfaasSystem& s) { ++s.pd_instances; });
  add("egress +10 %", [](PrfaasSystem& s) { s.egress_bytes_per_s *= 1.1; });
  add("egress -10 %", [](PrfaasSystem& s) { s.egress_bytes_per_s *= 0.9; });
  add("PrfaaS prefill 10 % slower",
      [](PrfaasSystem& s) { s.prfaas_prefill_s = s.prfaas_prefill_s.Scaled(1.1); });
  add("PD prefill 10 % slower",
      [](PrfaasSystem& s) { s.pd_prefill_s = s.pd_prefill_s.Scaled(1.1); });
  add("KV cache 10 % larger", [](PrfaasSystem& s) { s.kv_bytes = s.kv_bytes.Scaled(1.1); });
  add("decode step 10 % slower", [](PrfaasSystem& s) { s.decode_step_s *= 1.1; });
  add("output 10 % longer", [](PrfaasSystem& s) { s.output_tokens *= 1.1; });
  return found;
}

}  // namespace ckv
