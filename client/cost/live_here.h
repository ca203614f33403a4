// Learns from the attends of locally cached rows how fast this host's kernel is now.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cost/live_kernel.h"
#include "client/cost/profile.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

// Thread-safe. A calibration attends a few rows in a quiet process. This class follows what calls
// take: their rows are in memory and not in a processor cache, and other work uses the same cores.
class LiveHere {
 public:
  // The most widths that are tracked separately; for others the calibration applies.
  static constexpr size_t kWidthsMax = 8;

  // Sets the constants that Observe compares with. If the times to attend differ from the last ones
  // of these widths, the factors start at 1 again. After kVersionsMax changes, the last constants
  // stay.
  void SetKnown(const RowWidths& widths, const RequesterConstants& here) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kVersionsMax = 256;
  // Without an attend for this long, the factors are forgotten. Rows that look slow here are
  // routed, so that no attend would show that this host is fast again. In a simulated fleet, 1 s
  // and 5 s made no difference.
  static constexpr Duration kAgeMax = std::chrono::seconds(5);

  // Takes one kernel call over locally cached rows, of `rows` query rows in these runs, which took
  // `us` and ended at `now`. On the hot path: no lock and no allocation.
  void Observe(const RowWidths& widths, double rows, std::span<const SharedRun> runs, double us,
               Instant now);
  // Returns the microseconds that the call takes now, or 0 if SetKnown was not called for these
  // widths. As fast as Observe.
  double ExpectedUs(const RowWidths& widths, double rows, std::span<const SharedRun> runs) const;
  // Returns the present times over the calibration's; 1 at first, and after kAgeMax.
  LiveFactors Factors(const RowWidths& widths, Instant now) const;
  // Returns true if enough attends of these widths were observed.
  bool Learned(const RowWidths& widths) const;

 private:
  struct Known {
    RowWidths widths;
    std::atomic<const RequesterConstants*> here{nullptr};  // in versions_
    LiveKernel live;
    std::atomic<uint32_t> seen{0};
    std::atomic<int64_t> seen_ns{0};  // when the last attend ended
  };

  absl::Mutex mu_;  // held by SetKnown
  // Kept, because a call may still read one that was replaced. A kilobyte each.
  std::vector<std::unique_ptr<const RequesterConstants>> versions_ ABSL_GUARDED_BY(mu_);
  std::array<Known, kWidthsMax> known_;
  std::atomic<uint32_t> count_{0};  // `widths` of entries below it do not change
};

// Returns the constants with the times to attend here multiplied by the factors.
RequesterConstants WithAttendFactors(RequesterConstants here, const LiveFactors& live);

}  // namespace ckv
