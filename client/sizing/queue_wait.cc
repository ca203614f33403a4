#include "client/sizing/queue_wait.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ckv {
namespace {

constexpr double kUsOfSecond = 1e6;
// Justus' shape holds down to about 0.1. Waits for a fixed service have at least 0.58.
constexpr double kCvMin = 0.1;
// 128 shares of a tail that falls as an exponential: the mean is short by 0.3 %.
constexpr int kShares = 128;

}  // namespace

double UtilisationOf(const StationLoad& load) {
  return load.requests_per_s * load.service_us / kUsOfSecond;
}

void QueueWait::Add(const StationLoad& load) {
  const double all = UtilisationOf(load);
  if (!(all > 0)) return;
  if (all >= 1) {
    mean_us_ = std::numeric_limits<double>::infinity();
    waits_ = 1;
    return;
  }
  const double callers = std::max(load.callers, 1.0);
  const double others = all * (callers - 1) / callers;
  if (!(others > 0)) return;
  const double varies = load.service_cv * load.service_cv, service_us = load.service_us;
  const double free = 1 - others;
  const double most_us = (callers - 1) * service_us;
  double wait_us = others * service_us * (1 + varies) / (2 * free);
  double square = 2 * wait_us * wait_us +
                  others * service_us * service_us * (1 + varies) * (1 + 2 * varies) / (3 * free);
  // At most one request of each other caller is ahead.
  if (wait_us > most_us) {
    square *= (most_us / wait_us) * (most_us / wait_us);
    wait_us = most_us;
  }
  mean_us_ += wait_us;
  variance_ += square - wait_us * wait_us;
  waits_ = 1 - (1 - waits_) * free;
}

bool QueueWait::IsNoneOrForever() const { return !(mean_us_ > 0) || !std::isfinite(mean_us_); }

QueueWait::Weibull QueueWait::Fit() const {
  const double mean_us = mean_us_ / waits_;
  const double square = (variance_ + mean_us_ * mean_us_) / waits_;
  const double cv = std::sqrt(std::max(square / (mean_us * mean_us) - 1, kCvMin * kCvMin));
  const double shape = std::pow(cv, -1.086);
  return {shape, mean_us / std::tgamma(1 + 1 / shape)};
}

double QueueWait::QuantileOfLongestUs(double share, unsigned count) const {
  if (IsNoneOrForever()) return mean_us_;
  const double above = 1 - std::pow(share, 1.0 / count);
  if (above >= waits_) return 0;
  const Weibull fit = Fit();
  return fit.scale_us * std::pow(std::log(waits_ / above), 1 / fit.shape);
}

// The mean over quantiles in the middle of equal shares, of those that wait.
double QueueWait::MomentOfLongest(int order, unsigned count) const {
  const Weibull fit = Fit();
  const double none = std::pow(1 - waits_, count);  // no one waits
  double sum = 0;
  for (int i = 0; i < kShares; ++i) {
    const double share = none + (1 - none) * (i + 0.5) / kShares;
    const double above = 1 - std::pow(share, 1.0 / count);
    const double us =
        fit.scale_us * std::pow(std::log(std::max(1.0, waits_ / above)), 1 / fit.shape);
    sum += order == 1 ? us : us * us;
  }
  return (1 - none) * sum / kShares;
}

double QueueWait::MeanOfLongestUs(unsigned count) const {
  if (IsNoneOrForever() || count <= 1) return mean_us_;
  return MomentOfLongest(1, count);
}

double QueueWait::VarianceOfLongest(unsigned count) const {
  if (IsNoneOrForever()) return mean_us_;
  if (count <= 1) return variance_;
  const double mean_us = MomentOfLongest(1, count);
  return MomentOfLongest(2, count) - mean_us * mean_us;
}

}  // namespace ckv
