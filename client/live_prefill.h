// The time that an engine takes to prefill a token, from the prefills that it reports.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// The median of the last reports for each model and revision. One that waited for a compilation, or
// for other work on the engine's device, moves it little. Thread-safe.
class LivePrefill {
 public:
  // The last reports that count. An odd number, so that the median is one of them.
  static constexpr size_t kReportCount = 31;
  // Fewer reports give no value: the first prefills of an engine compile and allocate.
  static constexpr size_t kReportCountMin = 3;
  // A shorter prefill takes about as long as a decode step, however many tokens it has. It is not
  // counted.
  static constexpr uint64_t kTokensMin = 64;
  static constexpr uint64_t kTokensMax = uint64_t{1} << 32;
  static constexpr Duration kTookMax = std::chrono::hours(1);
  // The most models. At the limit, all are dropped and learned again.
  static constexpr size_t kModelCountMax = 16;

  // Records that the engine prefilled `tokens` tokens, over all layers of the model, in `took`.
  //   InvalidArgument     the geometry is not valid, or a number is 0 or beyond its limit.
  absl::Status Report(const Geometry& geometry, uint64_t tokens, Duration took)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns microseconds per token and layer (`c` in client/cost/predicate.h). Returns nothing
  // before kReportCountMin reports for this model and revision.
  std::optional<double> PerTokenLayerUs(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Reports {
    std::vector<double> us_per_token;  // the last kReportCount, as a ring
    size_t next = 0;
    double median_us = 0;
  };
  using Model = std::pair<std::string, std::string>;  // model and revision

  mutable absl::Mutex mu_;
  std::map<Model, Reports> models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
