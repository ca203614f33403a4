// Counts how much of a verbs device is in use: queue pairs, receives and registrations, per account
// and in total.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {

// The account that is charged: the one given to Listener::Invite, which may be an empty string. If
// unset, the use is this process's own, which counts in the total only.
using VerbsAccount = std::optional<std::string>;

// Thread-safe. Every grant keeps the budget alive.
class VerbsBudget : public std::enable_shared_from_this<VerbsBudget> {
 public:
  // A share of the budget, which the destructor returns.
  class Grant {
   public:
    Grant() = default;
    Grant(Grant&& other) noexcept = default;
    Grant& operator=(Grant&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(account_, other.account_);
      std::swap(use_, other.use_);
      return *this;
    }
    ~Grant();

   private:
    friend class VerbsBudget;
    std::shared_ptr<VerbsBudget> budget_;
    VerbsAccount account_;
    VerbsUse use_;
  };

  explicit VerbsBudget(const VerbsOptions& options)
      : limits_{options.queue_pairs, options.receives, options.regions, options.region_bytes} {}

  // Takes all of `use`, or nothing.
  //   ResourceExhausted   a limit is reached; the message names it.
  absl::StatusOr<Grant> Take(const VerbsAccount& account, const VerbsUse& use)
      ABSL_LOCKS_EXCLUDED(mu_);

  VerbsUse use() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void GiveBack(const VerbsAccount& account, const VerbsUse& use) ABSL_LOCKS_EXCLUDED(mu_);

  const std::array<VerbsLimit, 4> limits_;
  mutable absl::Mutex mu_;
  VerbsUse total_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, VerbsUse> accounts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
