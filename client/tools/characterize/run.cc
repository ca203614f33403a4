// Characterize measures what the file of samples does not have yet, in order:
//   grid    rounds of route, fetch, local and here, together with the calibration if the profile
//           is not known. `watch` gets the profile before the file gets a sample, so that a run
//           that is cut off continues with the same constants
//   sweeps  everything else (tasks.h). Each sample is in the file once measured

#include "client/tools/characterize/run.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>

#include "client/paged/paged_cache.h"
#include "client/tools/characterize/at_once.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/grid.h"
#include "client/tools/characterize/target_calibrator.h"
#include "client/tools/characterize/tasks.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr std::array<uint32_t, 4> kSteps = {1, 8, 64, 512};
constexpr uint32_t kSelectionSeed = 7;

absl::Status CheckSide(const SideCorpus& side) {
  if (side.corpus == nullptr) return absl::OkStatus();
  if (side.chunks.empty())
    return absl::InvalidArgumentError("characterize: a corpus at the side without chunks");
  for (const uint32_t chunk : side.chunks) {
    if (chunk >= side.corpus->chunks.size()) {
      return absl::InvalidArgumentError(
          "characterize: a chunk that the corpus at the side does not have");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTarget(const CharacterizeTarget& target) {
  if (target.corpus == nullptr || target.sizes.size() < 2 || target.lanes.empty()) {
    return absl::InvalidArgumentError(
        "characterize: a corpus with two sizes of chunks on one holder, and one fabric, are "
        "needed");
  }
  for (const std::vector<uint32_t>* ordinals : {&target.sizes, &target.push_out, &target.spread}) {
    for (const uint32_t chunk : *ordinals) {
      if (chunk >= target.corpus->chunks.size())
        return absl::InvalidArgumentError("characterize: a chunk that the corpus does not have");
    }
  }
  for (size_t i = 1; i < target.spread.size(); ++i) {
    if (target.spread[i] != target.spread[0] + i) {
      return absl::InvalidArgumentError(
          "characterize: the chunks on other holders are not neighbours in the corpus");
    }
  }
  if (target.heads == 0) return absl::InvalidArgumentError("characterize: heads: must be above 0");
  CKV_RETURN_IF_ERROR(CheckSide(target.store));
  for (const SideCorpus& side : target.payloads) CKV_RETURN_IF_ERROR(CheckSide(side));
  return absl::OkStatus();
}

}  // namespace

CharacterizeOptions QuickCharacterization() {
  return {.query_rows = {1, 16, 128, 256, 512, 2048},
          .calibrate_query_rows = {1, 4, 24, 96, 384, 1536},
          .parallel = {1, 2, 4, 8, 16},
          .run_count = 9};
}

CharacterizeOptions FullCharacterization() {
  return {.query_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
          .calibrate_query_rows = {1, 4, 16, 64, 256, 1024, 4096},
          .parallel = {1, 2, 3, 4, 6, 8, 12, 16},
          .parallel_time_max = std::chrono::seconds(2),
          .kernel_rows_max = 4096,
          .run_count = 15};
}

std::span<const uint32_t> CharacterizedSteps() { return kSteps; }

std::vector<int32_t> ChooseOf(uint64_t token_count, uint32_t wanted) {
  std::vector<int32_t> rows(token_count);
  std::iota(rows.begin(), rows.end(), 0);
  std::mt19937 rng(kSelectionSeed);
  const size_t chosen = std::min<size_t>(wanted, rows.size());
  for (size_t i = 0; i < chosen; ++i) std::swap(rows[i], rows[i + rng() % (rows.size() - i)]);
  rows.resize(chosen);
  return rows;
}

std::vector<int32_t> ChooseRows(const CharacterizeTarget& target, uint32_t holders,
                                uint32_t wanted) {
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < holders; ++i) tokens += TokensOf(target, target.spread[i]);
  return ChooseOf(tokens, wanted);
}

absl::StatusOr<Profile> CalibrateTarget(const CharacterizeTarget& target,
                                        const CharacterizeOptions& options,
                                        const std::string& subject, Clock& clock) {
  CKV_RETURN_IF_ERROR(CheckTarget(target));
  CKV_ASSIGN_OR_RETURN(
      const std::unique_ptr<PagedCache> cache,
      CacheForTiming(target.corpus->geometry, TokensOf(target, target.sizes.back())));
  TargetCalibrator calibrator(target, options, *cache, clock);
  for (uint32_t round = 0; round < options.run_count; ++round)
    CKV_RETURN_IF_ERROR(calibrator.Round());
  Profile profile = calibrator.Finish(subject);
  MeasureElbows({&target, &options, cache.get(), &clock}, profile);
  return profile;
}

absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, const CharacterizeWatch& watch) {
  CKV_RETURN_IF_ERROR(CheckTarget(target));
  CKV_ASSIGN_OR_RETURN(
      const std::unique_ptr<PagedCache> cache,
      CacheForTiming(target.corpus->geometry, TokensOf(target, target.sizes.back())));
  const TaskContext context = {&target, &options, cache.get(), &clock};
  const auto missing = [&file](std::vector<Task> tasks) {
    std::erase_if(tasks, [&](const Task& task) { return file.Find(task.key) != nullptr; });
    return tasks;
  };
  const std::vector<Task> grid = missing(GridTasks(context));
  std::vector<Task> rest;
  if (options.has_sweeps) rest = missing(SweepTasks(context));
  Profile profile;
  if (grid.empty() && known) {
    profile = *known;
  } else {
    std::optional<TargetCalibrator> calibrator;
    if (!known) calibrator.emplace(target, options, *cache, clock);
    Grid measured(grid, calibrator ? &*calibrator : nullptr, options.run_count, watch);
    CKV_RETURN_IF_ERROR(measured.Measure());
    if (known) {
      profile = *known;
    } else {
      profile = calibrator->Finish(subject);
      MeasureElbows(context, profile);
    }
    // Samples depend on the constants. A run that is cut off from here on resumes with the same
    // ones.
    CKV_RETURN_IF_ERROR(watch.calibrated(profile));
    for (Sample& sample : measured.Samples()) {
      const SampleKey& key = sample.key;
      if (key.sweep == Sweep::kRoute) {
        const RoutePrediction predicted =
            PredictRoute(profile, target.corpus->geometry, key.fabric, key.query_rows, key.tokens);
        sample.model_us = predicted.us;
        sample.model_kernel_us = predicted.kernel_us;
      }
      CKV_RETURN_IF_ERROR(file.Add(sample));
    }
  }
  for (size_t i = 0; i < rest.size(); ++i) {
    auto sample = rest[i].measure(options.run_count);
    if (!sample.ok()) return Explained(sample.status(), rest[i].key);
    CKV_RETURN_IF_ERROR(file.Add(*sample));
    watch.progress("sweeps", i + 1, rest.size());
  }
  return profile;
}

}  // namespace ckv
