#include "client/live_prefill.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status LivePrefill::Report(const Geometry& geometry, uint64_t tokens, Duration took) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  if (tokens == 0 || tokens > kTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prefill: %d tokens, 1 to %d can be", tokens, kTokensMax));
  }
  if (took <= Duration::zero() || took > kTookMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "prefill: it took %d ns, above 0 and at most an hour can be", took.count()));
  }
  if (tokens < kTokensMin) return absl::OkStatus();
  const double us_per_token = double(took.count()) / 1e3 / double(tokens);
  absl::MutexLock lock(&mu_);
  const Model model(geometry.model, geometry.revision);
  if (models_.size() >= kModelCountMax && !models_.contains(model)) models_.clear();
  Reports& reports = models_[model];
  if (reports.us_per_token.size() < kReportCount) {
    reports.us_per_token.push_back(us_per_token);
  } else {
    reports.us_per_token[reports.next] = us_per_token;
    reports.next = (reports.next + 1) % kReportCount;
  }
  std::vector<double> sorted = reports.us_per_token;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  reports.median_us = *middle;
  return absl::OkStatus();
}

std::optional<double> LivePrefill::PerTokenLayerUs(const Geometry& geometry) const {
  absl::MutexLock lock(&mu_);
  const auto known = models_.find(Model(geometry.model, geometry.revision));
  if (known == models_.end() || known->second.us_per_token.size() < kReportCountMin)
    return std::nullopt;
  return known->second.median_us / geometry.layers;
}

}  // namespace ckv
