// The constants of a characterization's target, measured round by round.

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
#include "client/calibrate.h"
#include "client/characterize/run.h"
#include "client/paged_cache.h"
#include "client/profile_file.h"
#include "proto/clock.h"

namespace ckv {

// Tokens of a chunk of the target's corpus.
uint64_t TokensOf(const CharacterizeTarget& target, uint32_t chunk);

// Rounds disagree where the middle half of them is wider than this share of their mean: the tie
// band, within which no choice is wrong. Fewer than four say nothing.
bool RoundsDisagree(const std::vector<double>& us);

// Belongs to one thread; everything must outlive it.
class TargetCalibrator {
 public:
  // `cache` has room for the largest chunk.
  TargetCalibrator(const CharacterizeTarget& target, const CharacterizeOptions& options,
                   const PagedCache& cache, Clock& clock);

  // Everything once. Errors as LaneCalibrator::Round, with the fabric; or the prefill's.
  absl::Status Round();
  // A round in parts, so that others can come in between.
  size_t part_count() const { return parts_.size(); }
  absl::Status Part(size_t i);
  // Whether the rounds of a part, or of those that are measured with it, disagree (RoundsDisagree).
  bool Disagrees(size_t part) const;
  // Of the means over the rounds; at least one.
  Profile Finish(const std::string& subject) const;

 private:
  struct Piece {
    std::function<absl::Status(std::vector<double>& us)> measure;
    std::vector<double> us;
  };
  // Of attention here; the parts of the lanes that are measured with it follow it.
  struct Point {
    double rows = 0, tokens = 0;
    size_t part = 0;
  };

  void AddAttend(uint32_t rows, uint32_t chunk);
  void AddLane(const CharacterizedLane& lane);
  void AddPartOfLanes(size_t part);
  void AddPrefill();

  const CharacterizeTarget& target_;
  const CharacterizeOptions& options_;
  const PagedCache& cache_;
  Clock& clock_;
  RequesterConstants here_;
  std::vector<Piece> parts_;
  std::vector<Point> attend_;      // by part
  std::optional<size_t> prefill_;  // its part
  std::vector<std::unique_ptr<LaneCalibrator>> lanes_;
};

}  // namespace ckv
