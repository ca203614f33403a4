// The cost of a context's steps, from constants that are measured if they are unknown or old.

#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/context/context_usage.h"
#include "client/cost/cost_model.h"
#include "client/prefetch/prefetch_records.h"
#include "client/prefetch/prefetcher_tools.h"
#include "proto/base/clock.h"

namespace ckv {

struct ContextCost {
  StepCost step;
  bool same_bits = true;  // all holders have this process' kernel target
};

// Returns the terms of one step, and of a prefetch of canonical rows, which rotates nothing.
//   Unavailable         a holder of a chunk cannot be queried.
absl::StatusOr<StepCost> StepCostOf(DecisionInput input);

// Belongs to the deciding thread.
class StepCosts {
 public:
  // How long constants stay valid if no call renews them. Then they are measured again.
  static constexpr Duration kMeasuredAgeMax = std::chrono::seconds(60);
  // After a failed measurement, none begins for this many times its duration. So a holder that
  // hangs delays other contexts only a little.
  static constexpr int kMeasureShare = 10;

  // Both must outlive it.
  StepCosts(const PrefetcherOptions* options, const PrefetcherTools* tools)
      : options_(options), tools_(tools) {}

  // Returns the cost of a step of a context whose calls have this shape. Measures if necessary and
  // permitted.
  absl::StatusOr<ContextCost> Of(WatchedContext& watched, const CallShape& shape);

 private:
  absl::Status Measure(WatchedContext& watched, const PrefetcherTools::Work& work);

  const PrefetcherOptions* const options_;
  const PrefetcherTools* const tools_;
  Instant measure_again_{};  // no measurement begins before
};

}  // namespace ckv
