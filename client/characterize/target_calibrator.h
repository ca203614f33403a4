// The constants of a characterization's target, measured round by round.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/calibrate.h"
#include "client/characterize/run.h"
#include "client/paged_cache.h"
#include "client/profile_file.h"
#include "proto/clock.h"

namespace ckv {

// Tokens of a chunk of the target's corpus.
uint64_t TokensOf(const CharacterizeTarget& target, uint32_t chunk);

// Room for the largest chunk, every page of it there before anything is timed: a page of zeros that
// was never written is one page for all of them, and stays in the caches.
//   ResourceExhausted   the memory cannot be had.
absl::StatusOr<std::unique_ptr<PagedCache>> CacheFor(const CharacterizeTarget& target);
// Rows of it as a spliced chunk has them; their values mean nothing.
RowView RowsHere(const PagedCache& cache, uint64_t tokens);

// Belongs to one thread; everything must outlive it.
class TargetCalibrator {
 public:
  TargetCalibrator(const CharacterizeTarget& target, const CharacterizeOptions& options,
                   const PagedCache& cache, Clock& clock);

  // Everything once. Errors as LaneCalibrator::Round, with the fabric.
  absl::Status Round();
  // Of the medians over the rounds, at least one; and the prefill, which is measured here.
  absl::StatusOr<Profile> Finish(const std::string& subject);

 private:
  struct Point {
    double rows = 0, tokens = 0;
    std::vector<double> us;
  };

  const CharacterizeTarget& target_;
  const CharacterizeOptions& options_;
  const PagedCache& cache_;
  Clock& clock_;
  RequesterConstants here_;
  std::vector<Point> attend_;
  std::vector<std::unique_ptr<LaneCalibrator>> lanes_;
};

}  // namespace ckv
