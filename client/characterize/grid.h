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
  // Tasks of one cell follow each other and are measured in the same rounds; 0: of none.
  uint32_t cell = 0;
};

// The error with what was being measured.
absl::Status Explained(const absl::Status& status, const SampleKey& key);

// Belongs to one thread; everything must outlive it.
class Grid {
 public:
  // `calibrator` is measured along; null: nothing is calibrated.
  Grid(const std::vector<Task>& tasks, TargetCalibrator* calibrator, uint32_t round_count,
       const CharacterizeWatch& watch);

  // All rounds, and as many again of what disagrees, a cell as a whole. Errors of the tasks and of
  // the calibrator.
  absl::Status Measure();
  // After it, in the order of the tasks: means of the rounds.
  std::vector<Sample>& Samples() { return samples_; }

 private:
  absl::Status Rounds(const char* stage, const std::vector<size_t>& tasks,
                      const std::vector<size_t>& parts);
  absl::Status One(size_t task);
  // Whether a task's rounds disagree, or those of another of its cell.
  bool Disagrees(size_t task) const;
  // The end of the cell, or of the single task, that begins there.
  size_t CellEnd(size_t begin) const;

  const std::vector<Task>& tasks_;
  TargetCalibrator* const calibrator_;
  const uint32_t round_count_;
  const CharacterizeWatch& watch_;
  std::vector<Sample> samples_;          // of the last round, then means
  std::vector<std::vector<double>> us_;  // [tasks][rounds]
};

}  // namespace ckv
