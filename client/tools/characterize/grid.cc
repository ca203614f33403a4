#include "client/tools/characterize/grid.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "client/tools/characterize/calibrate.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status Explained(const absl::Status& status, const SampleKey& key) {
  return Annotate(status, absl::StrFormat("%s %s, %d rows, %d tokens, %d at once",
                                          std::string(SweepName(key.sweep)), key.fabric,
                                          key.query_rows, key.tokens, key.parallel));
}

Grid::Grid(const std::vector<Task>& tasks, TargetCalibrator* calibrator, uint32_t round_count,
           const CharacterizeWatch& watch)
    : tasks_(tasks),
      calibrator_(calibrator),
      round_count_(round_count),
      watch_(watch),
      samples_(tasks.size()),
      us_(tasks.size()),
      beside_us_(tasks.size()) {}

absl::Status Grid::Measure() {
  std::vector<size_t> tasks(tasks_.size());
  std::iota(tasks.begin(), tasks.end(), size_t{0});
  std::vector<size_t> parts(calibrator_ == nullptr ? 0 : calibrator_->part_count());
  std::iota(parts.begin(), parts.end(), size_t{0});
  CKV_RETURN_IF_ERROR(Rounds("grid", tasks, parts));
  std::erase_if(tasks, [this](size_t task) { return !Disagrees(task); });
  std::erase_if(parts, [this](size_t part) { return !calibrator_->Disagrees(part); });
  CKV_RETURN_IF_ERROR(Rounds("grid, again", tasks, parts));
  for (size_t i = 0; i < tasks_.size(); ++i) {
    samples_[i].us = TrimmedMean(us_[i]);
    samples_[i].error_us = TrimmedMeanError(us_[i]);
    samples_[i].spread = QuartileRatio(us_[i]);
    samples_[i].runs = static_cast<uint32_t>(us_[i].size());
    // Both times of a round are of the same calls, so their differences vary less than they do.
    if (!beside_us_[i].empty())
      samples_[i].kernel_us = std::max(0.0, samples_[i].us - TrimmedMean(beside_us_[i]));
  }
  return absl::OkStatus();
}

size_t Grid::CellEnd(size_t begin) const {
  size_t end = begin + 1;
  const uint32_t cell = tasks_[begin].cell;
  while (cell != 0 && end < tasks_.size() && tasks_[end].cell == cell) ++end;
  return end;
}

bool Grid::Disagrees(size_t task) const {
  size_t begin = task;
  const uint32_t cell = tasks_[task].cell;
  while (cell != 0 && begin > 0 && tasks_[begin - 1].cell == cell) --begin;
  for (size_t i = begin; i < CellEnd(begin); ++i) {
    if (RoundsDisagree(us_[i])) return true;
  }
  return false;
}

// Parts of the calibration are spread evenly between the tasks.
absl::Status Grid::Rounds(const char* stage, const std::vector<size_t>& tasks,
                          const std::vector<size_t>& parts) {
  const size_t count = std::max(tasks.size(), parts.size());
  const size_t total = (tasks.size() + parts.size()) * round_count_;
  size_t done = 0;
  for (uint32_t round = 0; round < round_count_; ++round) {
    size_t next_task = 0, next_part = 0;
    const auto at = [round](const std::vector<size_t>& all, size_t i) {
      return all[round % 2 == 0 ? i : all.size() - 1 - i];
    };
    for (size_t slot = 1; slot <= count; ++slot) {
      for (; next_part * count < slot * parts.size(); ++next_part) {
        CKV_RETURN_IF_ERROR(calibrator_->Part(at(parts, next_part)));
        watch_.progress(stage, ++done, total);
      }
      for (; next_task * count < slot * tasks.size(); ++next_task) {
        const size_t task = at(tasks, next_task);
        if (round % tasks_[task].every == 0) CKV_RETURN_IF_ERROR(One(task));
        watch_.progress(stage, ++done, total);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Grid::One(size_t task) {
  auto sample = tasks_[task].measure(1);
  if (!sample.ok()) return Explained(sample.status(), tasks_[task].key);
  us_[task].push_back(sample->us);
  if (sample->kernel_us > 0) beside_us_[task].push_back(sample->us - sample->kernel_us);
  samples_[task] = *std::move(sample);
  return absl::OkStatus();
}

}  // namespace ckv
