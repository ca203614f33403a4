// Measures the constants of a characterization's target, round by round.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/cost/profile_file.h"
#include "client/paged/paged_cache.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/run.h"
#include "proto/base/clock.h"

namespace ckv {

// Returns the tokens of a chunk of the target's corpus.
uint64_t TokensOf(const CharacterizeTarget& target, uint32_t chunk);

// Returns true if the middle half of the rounds is wider than the tie band, as a share of their
// mean. Within that band no choice is wrong. Fewer than four rounds never disagree.
bool RoundsDisagree(const std::vector<double>& us);

// Calibrates all lanes of a target. Used by one thread. All arguments must outlive the calibrator.
class TargetCalibrator {
 public:
  // `cache` must have room for the largest chunk.
  TargetCalibrator(const CharacterizeTarget& target, const CharacterizeOptions& options,
                   const PagedCache& cache, Clock& clock);

  // Measures everything once. Returns the errors of LaneCalibrator::Round with the fabric's name,
  // or the prefill's error.
  absl::Status Round();
  // A round has part_count() parts, so that other measurements can be interleaved.
  size_t part_count() const { return parts_.size(); }
  absl::Status Part(size_t i);
  // Returns true if the rounds of a part, or of parts measured with it, disagree (RoundsDisagree).
  bool Disagrees(size_t part) const;
  // Returns the profile from the means over the rounds. Requires at least one Round.
  Profile Finish(const std::string& subject) const;

 private:
  struct Measured {
    std::function<absl::Status(std::vector<double>& us)> measure;
    std::vector<double> us;
  };
  // A point of the local attention; the parts of lanes that are measured with it follow it.
  struct Point {
    double rows = 0, tokens = 0;
    RowCaching caching = RowCaching::kAsLeft;
    size_t part = 0;
  };

  void AddAttend(uint32_t rows, uint32_t chunk, RowCaching caching);
  void AddLane(const CharacterizedLane& lane);
  void AddPartOfLanes(size_t part);
  void AddPrefill();

  const CharacterizeTarget& target_;
  const CharacterizeOptions& options_;
  const PagedCache& cache_;
  Clock& clock_;
  RequesterConstants here_;
  std::vector<Measured> parts_;
  std::vector<Point> attend_;      // by part
  std::optional<size_t> prefill_;  // its part
  std::vector<std::unique_ptr<LaneCalibrator>> lanes_;
};

}  // namespace ckv
