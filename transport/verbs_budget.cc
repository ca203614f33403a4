#include "transport/verbs_budget.h"

#include "absl/strings/str_format.h"
#include "proto/status.h"

namespace ckv {
namespace {

constexpr uint64_t VerbsUse::*kFields[] = {&VerbsUse::queue_pairs, &VerbsUse::receives,
                                           &VerbsUse::regions, &VerbsUse::region_bytes};
constexpr const char* kNames[] = {"queue pairs", "receives", "regions", "region bytes"};

}  // namespace

VerbsBudget::Grant::~Grant() {
  if (budget_ != nullptr) budget_->GiveBack(peer_, use_);
}

absl::StatusOr<VerbsBudget::Grant> VerbsBudget::Take(const std::string& peer, const VerbsUse& use) {
  Grant grant;
  absl::MutexLock lock(&mu_);
  const auto known = peers_.find(peer);
  const VerbsUse here = peer.empty() || known == peers_.end() ? VerbsUse{} : known->second;
  for (size_t i = 0; i < limits_.size(); ++i) {
    const uint64_t VerbsUse::*const field = kFields[i];
    if (use.*field == 0) continue;
    const auto over = [&](uint64_t used, uint64_t limit) {
      return used > limit || use.*field > limit - used;
    };
    if (over(total_.*field, limits_[i].total_max)) {
      return absl::ResourceExhaustedError(absl::StrFormat("verbs %s: %d and %d more, limit %d",
                                                          kNames[i], total_.*field, use.*field,
                                                          limits_[i].total_max));
    }
    if (!peer.empty() && over(here.*field, limits_[i].per_peer_max)) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("verbs %s of this peer: %d and %d more, limit %d", kNames[i], here.*field,
                          use.*field, limits_[i].per_peer_max));
    }
  }
  for (uint64_t VerbsUse::*field : kFields) {
    total_.*field += use.*field;
    if (!peer.empty()) peers_[peer].*field += use.*field;
  }
  grant.budget_ = shared_from_this();
  grant.peer_ = peer;
  grant.use_ = use;
  return grant;
}

void VerbsBudget::GiveBack(const std::string& peer, const VerbsUse& use) {
  absl::MutexLock lock(&mu_);
  for (uint64_t VerbsUse::*field : kFields) total_.*field -= use.*field;
  if (peer.empty()) return;
  const auto it = peers_.find(peer);
  CKV_CHECK(it != peers_.end());
  for (uint64_t VerbsUse::*field : kFields) it->second.*field -= use.*field;
  if (it->second == VerbsUse{}) peers_.erase(it);
}

VerbsUse VerbsBudget::use() const {
  absl::MutexLock lock(&mu_);
  return total_;
}

}  // namespace ckv
