// Words of `agents compare`: a row for each policy, how auto did, and what it saved. These are pure
// functions of what was measured.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/query/policy_run.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

// One policy over all rounds.
struct Compared {
  std::string policy;
  // The fastest round. If unset, the policy finished none.
  std::optional<PolicyResult> fastest = {};
  std::vector<Duration> rounds = {};
  std::shared_ptr<Requester> first = {};  // learned from the calls of the first round
  size_t different = 0;                   // the most agents of a round whose tokens differ
  // The time of opens and attends of a round, by the cost model. Unset if the policy decides.
  std::optional<double> predicted_s = {};
  // The error of a failed round, after which the policy was stopped.
  absl::Status failure = absl::OkStatus();
  // The bytes of rows that must be cached at once. Set if a round failed because they do not fit.
  std::optional<uint64_t> need_bytes = {};

  bool finished() const { return fastest.has_value() && failure.ok(); }
  double seconds() const { return static_cast<double>(fastest->elapsed.count()) / 1e9; }
  // The part of the fastest round in opens and attends. Constants are of quiet moments, too.
  double call_seconds() const { return static_cast<double>(fastest->in_calls.count()) / 1e9; }
  // How much longer the median round took than the fastest. Unset if there was only one round.
  std::optional<double> noise_s() const;
};

// Compares auto with the fixed policy that needs the most of one resource.
struct Saving {
  double by_auto = 0;
  double worst = 0;
  std::string policy;  // the policy with `worst`; "" if no fixed policy finished
  // For times: the difference is no more than the noise of the rounds.
  bool within_noise = false;

  // The part of `worst` that auto did without: negative if auto is worse, 0 if there was nothing to
  // save.
  double share() const { return worst > 0 ? 1 - by_auto / worst : 0; }
};

// Compares auto with route and cache. Its functions require that auto and one of these finished.
class AutoVerdict {
 public:
  // Unset unless auto and a fixed policy finished. `compared` must outlive it.
  static std::optional<AutoVerdict> Of(std::span<const Compared> compared);

  // The time of auto over that of the fastest fixed policy.
  double factor() const;
  // The noise of the rounds of these two, as a part of the fastest's time. Unset with one round.
  std::optional<double> noise() const;
  // One line. Says so if times differ by no more than their noise.
  std::string Describe() const;

  Saving time() const;
  Saving bytes_moved() const;   // routed and prefetched; mapped rows do not move
  Saving bytes_memory() const;  // the local row cache's
  // A table of the three.
  std::string RenderSavings() const;
  // The three, {"seconds": {"auto", "worst", "policy", "share"}, ...}.
  Json SavingsToJson() const;

 private:
  explicit AutoVerdict(const Compared& by_itself) : auto_(by_itself) {}
  // The fixed policy with the most of a figure of a result.
  template <class Figure>
  Saving SavingOf(Figure figure) const;

  const Compared& auto_;
  std::vector<const Compared*> fixed_;  // finished ones, the fastest first
};

struct CompareReport {
  std::string text;
  Json policies;  // an element for each policy, in the order of `compared`
};

// The table of policies, and a line for each one that did not finish. `capacity_bytes` is the
// local row cache's. At least one policy finished.
CompareReport RenderPolicies(std::span<const Compared> compared, uint64_t capacity_bytes);

// The finished policy that took the least time. At least one finished.
const Compared& FastestOf(std::span<const Compared> compared);

}  // namespace ckv::ctl
