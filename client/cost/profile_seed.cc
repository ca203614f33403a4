#include "client/cost/profile_seed.h"

#include <utility>

#include "proto/base/log.h"

namespace ckv {

SeedProfile::SeedProfile(std::shared_ptr<const Profile> profile, std::string host_identity,
                         KernelTargetId target)
    : host_identity_(std::move(host_identity)), target_(target), profile_(std::move(profile)) {
  if (profile_ == nullptr) return;
  const std::string why_not = WhyNotFrom(*profile_, host_identity_);
  if (why_not.empty()) return;
  Log().warn("the profile is not used: {}; run ckvctl calibrate here", why_not);
  profile_.reset();
}

const Profile* SeedProfile::For(const Geometry& geometry) const {
  if (profile_ == nullptr) return nullptr;
  const uint32_t count = seen_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (seen_[i].geometry == geometry) return seen_[i].covered ? profile_.get() : nullptr;
  }
  return count < kGeometryCountMax ? Judge(geometry) : nullptr;
}

const Profile* SeedProfile::Judge(const Geometry& geometry) const {
  absl::MutexLock lock(&mu_);
  const uint32_t count = seen_count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {  // another thread may have added it meanwhile
    if (seen_[i].geometry == geometry) return seen_[i].covered ? profile_.get() : nullptr;
  }
  if (count == kGeometryCountMax) return nullptr;
  const std::string why_not = WhyNotOf(*profile_, geometry, host_identity_, target_);
  if (!why_not.empty()) {
    Log().warn("the profile is not used for corpora of {}: {}; run ckvctl calibrate",
               geometry.ToString(), why_not);
  }
  if (count + 1 == kGeometryCountMax)
    Log().warn("the profile is not used for geometries beyond {}", kGeometryCountMax);
  seen_[count] = {geometry, why_not.empty()};
  seen_count_.store(count + 1, std::memory_order_release);
  return why_not.empty() ? profile_.get() : nullptr;
}

}  // namespace ckv
