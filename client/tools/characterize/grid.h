// The grid of a characterization, measured in rounds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/characterize/run.h"
#include "client/tools/characterize/sample.h"
#include "client/tools/characterize/target_calibrator.h"

namespace ckv {

// One measurement to make.
struct Task {
  SampleKey key;
  std::function<absl::StatusOr<Sample>(uint32_t runs)> measure;
  uint32_t every = 1;  // measured in one of `every` rounds
  // Tasks with the same cell follow each other and are measured in the same rounds. 0 is no cell.
  uint32_t cell = 0;
};

// Adds the name of the measurement to the error.
absl::Status Explained(const absl::Status& status, const SampleKey& key);

// Measures tasks in rounds. It belongs to one thread, and everything passed to it must outlive it.
class Grid {
 public:
  // `calibrator` is measured along with the tasks. If null, nothing is calibrated.
  Grid(const std::vector<Task>& tasks, TargetCalibrator* calibrator, uint32_t round_count,
       const CharacterizeWatch& watch);

  // Measures all rounds, then as many again of the tasks whose rounds disagree, whole cells at a
  // time. Errors of the tasks and of the calibrator.
  absl::Status Measure();
  // Returns the means of the rounds in the order of the tasks. Call it after Measure.
  std::vector<Sample>& Samples() { return samples_; }

 private:
  absl::Status Rounds(const char* stage, const std::vector<size_t>& tasks,
                      const std::vector<size_t>& parts);
  absl::Status One(size_t task);
  // Returns true if the rounds of a task, or of another in its cell, disagree.
  bool Disagrees(size_t task) const;
  // Returns the end of the cell, or of the single task, that begins there.
  size_t CellEnd(size_t begin) const;

  const std::vector<Task>& tasks_;
  TargetCalibrator* const calibrator_;
  const uint32_t round_count_;
  const CharacterizeWatch& watch_;
  std::vector<Sample> samples_;          // values of the last round, then means
  std::vector<std::vector<double>> us_;  // [tasks][rounds]
  // [tasks][rounds], the part of us_ that is not the kernel's; empty if the kernel's is not known.
  std::vector<std::vector<double>> beside_us_;
};

}  // namespace ckv
