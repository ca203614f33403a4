// The grid of a characterization, measured in rounds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/characterize/run.h"
#include "client/characterize/sample.h"
#include "client/characterize/target_calibrator.h"

namespace ckv {

// One measurement to be made.
struct Task {
  SampleKey key;
  std::function<absl::StatusOr<Sample>(uint32_t runs)> measure;
  uint32_t every = 1;  // measured in each so-manieth round
};

// The error with what was being measured.
absl::Status Explained(const absl::Status& status, const SampleKey& key);

// Rounds disagree where the middle half of them is wider than this share of their median: the tie
// band, within which no choice is wrong. Fewer than four say nothing.
bool RoundsDisagree(const std::vector<double>& us);

// Belongs to one thread; everything must outlive it.
class Grid {
 public:
  // `calibrator` is measured along; null: nothing is calibrated.
  Grid(const std::vector<Task>& tasks, TargetCalibrator* calibrator, uint32_t round_count,
       const CharacterizeWatch& watch);

  // All rounds, and as many again of what disagrees. Errors of the tasks and of the calibrator.
  absl::Status Measure();
  // After it: the medians, in the order of the tasks.
  std::vector<Sample>& Samples() { return samples_; }

 private:
  absl::Status Rounds(const char* stage, const std::vector<size_t>& tasks,
                      const std::vector<size_t>& parts);
  absl::Status One(size_t task);

  const std::vector<Task>& tasks_;
  TargetCalibrator* const calibrator_;
  const uint32_t round_count_;
  const CharacterizeWatch& watch_;
  std::vector<Sample> samples_;          // of the last round, then medians
  std::vector<std::vector<double>> us_;  // [tasks][rounds]
};

}  // namespace ckv
