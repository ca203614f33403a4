#include "transport/verbs/verbs_budget.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint64_t VerbsUse::*kFields[] = {&VerbsUse::queue_pairs, &VerbsUse::receives,
                                           &VerbsUse::regions, &VerbsUse::region_bytes};
constexpr const char* kNames[] = {"queue pairs", "receives", "regions", "region bytes"};

}  // namespace

VerbsBudget::Grant::~Grant() {
  if (budget_ != nullptr) budget_->GiveBack(account_, use_);
}

absl::StatusOr<VerbsBudget::Grant> VerbsBudget::Take(const VerbsAccount& account,
                                                     const VerbsUse& use) {
  Grant grant;
  absl::MutexLock lock(&mu_);
  VerbsUse here;
  if (account.has_value()) {
    if (const auto known = accounts_.find(*account); known != accounts_.end()) here = known->second;
  }
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
    if (account.has_value() && over(here.*field, limits_[i].per_account_max)) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("verbs %s of this account: %d and %d more, limit %d", kNames[i],
                          here.*field, use.*field, limits_[i].per_account_max));
    }
  }
  for (uint64_t VerbsUse::*field : kFields) {
    total_.*field += use.*field;
    if (account.has_value()) accounts_[*account].*field += use.*field;
  }
  grant.budget_ = shared_from_this();
  grant.account_ = account;
  grant.use_ = use;
  return grant;
}

void VerbsBudget::GiveBack(const VerbsAccount& account, const VerbsUse& use) {
  absl::MutexLock lock(&mu_);
  for (uint64_t VerbsUse::*field : kFields) total_.*field -= use.*field;
  if (!account.has_value()) return;
  const auto it = accounts_.find(*account);
  CKV_CHECK(it != accounts_.end());
  for (uint64_t VerbsUse::*field : kFields) it->second.*field -= use.*field;
  if (it->second == VerbsUse{}) accounts_.erase(it);
}

VerbsUse VerbsBudget::use() const {
  absl::MutexLock lock(&mu_);
  return total_;
}

}  // namespace ckv
