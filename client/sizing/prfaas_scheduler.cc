#include "client/sizing/prfaas_scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

double SecondsOf(Duration duration) { return static_cast<double>(duration.count()) * 1e-9; }

absl::Status CheckOptions(const PrfaasSchedulerOptions& options) {
  const auto refuse = [](const char* field, const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", field, why));
  };
  if (!(options.egress_low > 0 && options.egress_low < options.egress_high))
    return refuse("egress_low", "not between 0 and egress_high");
  if (!(options.egress_high <= 1)) return refuse("egress_high", "above 1");
  if (!(options.queue_high > 0)) return refuse("queue_high", "not above 0");
  if (!(options.step_up > 1)) return refuse("step_up", "not above 1");
  if (!(options.step_down > 0 && options.step_down <= 1))
    return refuse("step_down", "not above 0 and up to 1");
  if (options.short_period <= Duration(0)) return refuse("short_period", "not above 0");
  if (options.long_period < options.short_period)
    return refuse("long_period", "below short_period");
  if (!(options.split_gain_min >= 0)) return refuse("split_gain_min", "below 0");
  return ValidateSystem(options.system);
}

}  // namespace

absl::StatusOr<PrfaasScheduler> PrfaasScheduler::Create(const PrfaasSchedulerOptions& options,
                                                        Instant now) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  return PrfaasScheduler(options, now);
}

PrfaasScheduler::PrfaasScheduler(const PrfaasSchedulerOptions& options, Instant now)
    : options_(options), best_(BestSplit(options.system)), short_at_(now), long_at_(now) {
  threshold_ = best_.split.threshold;
  pd_prefill_ = best_.split.pd_prefill;
}

PrefillRoute PrfaasScheduler::RoutePrefill(const PrefillRequest& request) {
  const double in_prfaas = std::min(request.cached_prfaas_tokens, request.total_tokens);
  const double in_pd = std::min(request.cached_pd_tokens, request.total_tokens);
  const double longest = std::max(in_prfaas, in_pd);
  const double counted = is_scarce() ? in_pd : longest;
  const double uncached = request.total_tokens - counted;
  if (seen_.size() < kSampleMax) {
    seen_.push_back(std::max(uncached, 1.0));
  } else {
    seen_[next_seen_++ % kSampleMax] = std::max(uncached, 1.0);
  }
  PrefillRoute route;
  route.cluster = uncached <= threshold_ ? PrefillCluster::kPd : PrefillCluster::kPrfaas;
  const double here = route.cluster == PrefillCluster::kPd ? in_pd : in_prfaas;
  route.moves_cache = !is_scarce() && longest > here;
  route.uncached_tokens = request.total_tokens - (route.moves_cache ? longest : here);
  return route;
}

bool PrfaasScheduler::Tick(const Load& load, Instant now) {
  egress_bytes_ += load.egress_bytes;
  const Duration since = now - short_at_;
  if (since >= options_.short_period) {
    AdaptThreshold(load, since);
    short_at_ = now;
    egress_bytes_ = 0;
  }
  if (now - long_at_ < options_.long_period) return false;
  long_at_ = now;
  return Replan();
}

void PrfaasScheduler::AdaptThreshold(const Load& load, Duration since) {
  const PrfaasSystem& system = options_.system;
  egress_share_ = egress_bytes_ / (system.egress_bytes_per_s * SecondsOf(since));
  const double waiting = load.prfaas_waiting / system.prfaas_instances;
  const double target = best_.split.threshold;
  if (egress_share_ > options_.egress_high || waiting > options_.queue_high) {
    const double last = system.lengths.tokens_max();
    threshold_ = std::min(last, std::max(threshold_, 1.0) * options_.step_up);
  } else if (egress_share_ < options_.egress_low && waiting < options_.queue_high / 2) {
    threshold_ += options_.step_down * (target - threshold_);
  }
}

bool PrfaasScheduler::Replan() {
  PrfaasSystem system = options_.system;
  if (seen_.size() >= options_.sample_min) {
    absl::StatusOr<LengthDistribution> lengths = LengthDistribution::OfLengths(seen_);
    // A longer prompt than the curves have been measured for does not change the plan.
    if (lengths.ok()) {
      system.lengths = *std::move(lengths);
      if (!ValidateSystem(system).ok()) system.lengths = options_.system.lengths;
    }
  }
  const PrfaasThroughput found = BestSplit(system);
  const PrfaasThroughput kept = BestThreshold(system, pd_prefill_);
  const bool gains = found.requests_per_s > kept.requests_per_s * (1 + options_.split_gain_min) &&
                     found.split.pd_prefill != pd_prefill_;
  const double shift = best_.split.threshold > 0 ? threshold_ / best_.split.threshold : 1;
  best_ = gains ? found : kept;
  // A threshold that was raised stays raised, by the same factor.
  threshold_ = std::min(best_.split.threshold * std::max(1.0, shift), system.lengths.tokens_max());
  if (!gains) return false;
  pd_prefill_ = found.split.pd_prefill;
  return true;
}

absl::Status PrfaasScheduler::SetSystem(const PrfaasSystem& system) {
  if (absl::Status status = ValidateSystem(system); !status.ok()) return status;
  options_.system = system;
  pd_prefill_ = std::min(pd_prefill_, system.pd_instances);
  Replan();
  return absl::OkStatus();
}

}  // namespace ckv
