// Finds out from a holder's own batches whether it is past its elbow.
//
// A batch of n attends takes about fixed + n * marginal. Up to n = fixed / marginal, one attend
// more costs little: the elbow of the curve. Past it, each attend waits for the others, and a copy
// of the chunks on another holder shortens all of them. The paper's accelerator has its elbow at 8
// requesters (000, 5.2). A processor has it near 1, so being busy counts as well.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "proto/ids.h"
#include "server/session/load_samples.h"

namespace ckv {

// Not thread-safe.
class ElbowMeter {
 public:
  // So many windows in a row must be past the elbow: a short burst is no reason for a copy.
  static constexpr uint32_t kWindowCount = 3;
  // A window with fewer batches is quiet.
  static constexpr uint64_t kBatchCountMin = 32;
  // A holder that rests more than this part of the time serves more attends by itself.
  static constexpr double kBusyPartMin = 0.6;
  // The weight of a window in the fit, after each later one. The fit follows a change in minutes.
  static constexpr double kDecay = 0.95;
  // A chunk below this part of the samples is not hot.
  static constexpr double kHotPartMin = 0.01;
  static constexpr size_t kHotCountMax = MemberHealth::kHotCountMax;
  // Reported for an elbow that is farther away, or nowhere.
  static constexpr double kElbowMax = 1000;

  // Ends a window of time. `sums` are those since the holder's start; `sampled` has the ids of the
  // chunks sampled during the window.
  HolderLoad Read(const BatchSums& sums, Instant now, std::span<const ChunkId> sampled);

 private:
  struct Fit {
    double count = 0, n = 0, t = 0, nn = 0, nt = 0;
  };
  double Elbow() const;
  static std::vector<ChunkId> Hottest(const std::map<ChunkId, uint64_t>& counts);

  Instant last_{};
  bool has_last_ = false;
  BatchSums last_sums_;
  Fit fit_;
  uint32_t window_count_ = 0;            // past the elbow, in a row
  std::map<ChunkId, uint64_t> sampled_;  // during these
};

}  // namespace ckv
