// Learns from the attends of near rows how fast this host's kernel is now.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/decide/profile.h"
#include "client/learn/live_kernel.h"
#include "proto/geometry.h"

namespace ckv {

// Thread-safe. A calibration attends a few rows of a quiet process. This follows what calls take:
// rows that lie in memory and not in a cache, and other work on the same cores.
class LiveHere {
 public:
  // The widths that are told apart; for others the calibration stands.
  static constexpr size_t kWidthsMax = 8;

  // Sets what Observe compares with. If the times to attend differ from the last of these widths,
  // the factors start at 1 again. The last of kVersionsMax stays.
  void SetKnown(const RowWidths& widths, const RequesterConstants& here) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kVersionsMax = 256;
  // Takes an attend of `rows` query rows over `tokens` near rows each, which took `us`. On the hot
  // path: no lock and no allocation.
  void Observe(const RowWidths& widths, double rows, double tokens, double us);
  // Returns the microseconds that an attend takes now; 0 if SetKnown was not told these widths. As
  // fast as Observe.
  double ExpectedUs(const RowWidths& widths, double rows, double tokens) const;
  // The times now over the calibration's; 1 at first.
  LiveFactors Factors(const RowWidths& widths) const;
  // Whether enough attends have told it.
  bool Learned(const RowWidths& widths) const;

 private:
  struct Known {
    RowWidths widths;
    std::atomic<const RequesterConstants*> here{nullptr};  // in versions_
    LiveKernel live;
    std::atomic<uint32_t> seen{0};
  };

  absl::Mutex mu_;  // held by SetKnown
  // Kept, because a call may read one that was replaced. A kilobyte each.
  std::vector<std::unique_ptr<const RequesterConstants>> versions_ ABSL_GUARDED_BY(mu_);
  std::array<Known, kWidthsMax> known_;
  std::atomic<uint32_t> count_{0};  // entries below it do not change, but for `live`
};

// Returns the constants with the time to attend here multiplied.
RequesterConstants WithAttendFactors(RequesterConstants here, const LiveFactors& live);

}  // namespace ckv
