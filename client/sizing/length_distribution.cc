// Every distribution is a list of bins with cumulated weights, so that a look takes a binary
// search.

#include "client/sizing/length_distribution.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

// Log-normal lengths of 128 to 131072 are then in bins of 0.2 % of their length.
constexpr size_t kLogNormalBins = 4096;
// Less of a normal distribution within the limits is lost in rounding.
constexpr double kShareMin = 1e-6;

double NormalUpTo(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

absl::Status Refuse(const char* field, const char* why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", field, why));
}

bool IsPositive(double value) { return std::isfinite(value) && value > 0; }

absl::Status CheckBin(const std::vector<LengthDistribution::Bin>& bins, size_t i) {
  const auto refuse = [i](const char* field, const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat("[%d].%s: %s", i, field, why));
  };
  const LengthDistribution::Bin& bin = bins[i];
  if (!std::isfinite(bin.from) || bin.from < 0) return refuse("from", "below 0");
  if (!std::isfinite(bin.to) || bin.to <= bin.from) return refuse("to", "not above from");
  if (bin.to > LengthDistribution::kTokensMax) return refuse("to", "above 1e9 tokens");
  if (!std::isfinite(bin.weight) || bin.weight < 0) return refuse("weight", "below 0");
  if (i > 0 && bin.from < bins[i - 1].to)
    return refuse("from", "below the end of the bin before: lengths must rise");
  return absl::OkStatus();
}

}  // namespace

LengthDistribution::LengthDistribution(std::vector<Bin> bins) : bins_(std::move(bins)) {
  double total = 0;
  for (const Bin& bin : bins_) total += bin.weight;
  double share = 0, sum = 0;
  share_.reserve(bins_.size());
  sum_.reserve(bins_.size());
  for (Bin& bin : bins_) {
    bin.weight /= total;
    share += bin.weight;
    sum += bin.weight * (bin.from + bin.to) / 2;
    share_.push_back(share);
    sum_.push_back(sum);
  }
}

absl::StatusOr<LengthDistribution> LengthDistribution::Create(const LogNormal& shape) {
  if (!std::isfinite(shape.mu)) return Refuse("mu", "not a number");
  if (!IsPositive(shape.sigma)) return Refuse("sigma", "not above 0");
  if (!IsPositive(shape.tokens_min)) return Refuse("tokens_min", "not above 0");
  if (!IsPositive(shape.tokens_max) || shape.tokens_max <= shape.tokens_min)
    return Refuse("tokens_max", "not above tokens_min");
  if (shape.tokens_max > kTokensMax) return Refuse("tokens_max", "above 1e9 tokens");
  const auto up_to = [&](double tokens) {
    return NormalUpTo((std::log(tokens) - shape.mu) / shape.sigma);
  };
  const double within = up_to(shape.tokens_max) - up_to(shape.tokens_min);
  if (within < kShareMin) return Refuse("mu", "almost no length is within the limits");
  std::vector<Bin> bins(kLogNormalBins);
  const double ratio = std::log(shape.tokens_max / shape.tokens_min);
  double from = shape.tokens_min, before = up_to(from);
  for (size_t i = 0; i < bins.size(); ++i) {
    const double part = static_cast<double>(i + 1) / static_cast<double>(bins.size());
    const double to =
        i + 1 == bins.size() ? shape.tokens_max : shape.tokens_min * std::exp(part * ratio);
    const double now = up_to(to);
    bins[i] = {from, to, now - before};
    from = to;
    before = now;
  }
  return LengthDistribution(std::move(bins));
}

absl::StatusOr<LengthDistribution> LengthDistribution::Create(const std::vector<Bin>& bins) {
  if (bins.empty() || bins.size() > kBinCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bins, need 1 to %d", bins.size(), kBinCountMax));
  }
  double total = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (absl::Status status = CheckBin(bins, i); !status.ok()) return status;
    total += bins[i].weight;
  }
  if (!IsPositive(total)) return absl::InvalidArgumentError("no bin has a weight");
  return LengthDistribution(bins);
}

absl::StatusOr<LengthDistribution> LengthDistribution::OfLengths(std::vector<double> lengths) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (!(lengths[i] >= 1 && lengths[i] <= kTokensMax)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("[%d]: a length of %g tokens, must be 1 to 1e9", i, lengths[i]));
    }
    lengths[i] = std::round(lengths[i]);
  }
  std::sort(lengths.begin(), lengths.end());
  std::vector<Bin> bins;
  // Half a token on either side, so that the mean is the length.
  for (const double length : lengths) {
    if (bins.empty() || bins.back().to < length) bins.push_back({length - 0.5, length + 0.5, 0});
    bins.back().weight += 1;
  }
  return Create(bins);
}

LengthDistribution::UpTo LengthDistribution::At(double tokens) const {
  if (tokens >= tokens_max()) return {1, sum_.back()};  // exactly: a sum of shares is not
  const auto found = std::lower_bound(bins_.begin(), bins_.end(), tokens,
                                      [](const Bin& bin, double t) { return bin.to < t; });
  const auto i = static_cast<size_t>(found - bins_.begin());
  UpTo below;
  if (i > 0) below = {share_[i - 1], sum_[i - 1]};
  if (tokens <= found->from) return below;
  const double part = found->weight * (tokens - found->from) / (found->to - found->from);
  return {below.share + part, below.sum + part * (found->from + tokens) / 2};
}

double LengthDistribution::Quantile(double share) const {
  const auto found = std::lower_bound(share_.begin(), share_.end(), share);
  if (found == share_.end()) return tokens_max();
  const auto i = static_cast<size_t>(found - share_.begin());
  const Bin& bin = bins_[i];
  const double before = share_[i] - bin.weight;
  if (bin.weight <= 0) return bin.from;
  return bin.from + (bin.to - bin.from) * std::clamp((share - before) / bin.weight, 0.0, 1.0);
}

double LengthDistribution::ShareAbove(double tokens) const { return 1 - At(tokens).share; }

double LengthDistribution::MeanAbove(double tokens) const {
  const UpTo below = At(tokens);
  const double share = 1 - below.share;
  return share <= 0 ? tokens : (Mean() - below.sum) / share;
}

double LengthDistribution::MeanUpTo(double tokens) const {
  const UpTo below = At(tokens);
  return below.share <= 0 ? tokens : below.sum / below.share;
}

double LengthDistribution::MeanOf(absl::FunctionRef<double(double tokens)> of, double from,
                                  double to) const {
  double share = 0, sum = 0;
  for (const Bin& bin : bins_) {
    const double low = std::max(bin.from, from), high = std::min(bin.to, to);
    if (high <= low) continue;
    const double part = bin.weight * (high - low) / (bin.to - bin.from);
    share += part;
    sum += part * of((low + high) / 2);
  }
  return share <= 0 ? 0 : sum / share;
}

}  // namespace ckv
