// The sweeps of a characterization: real calls of real requesters to the holders of a fleet.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/characterize/sample.h"
#include "client/predicate.h"
#include "client/profile_file.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "proto/corpus.h"

namespace ckv {

// A requester that speaks one fabric only. Borrowed.
struct CharacterizedLane {
  std::string fabric;
  Requester* requester = nullptr;
};

// What is measured against. Borrowed.
struct CharacterizeTarget {
  std::shared_ptr<const Corpus> corpus;
  // Ordinals of chunks of one holder, tokens ascending, at least two.
  std::vector<uint32_t> sizes;
  // Ordinals of equally long chunks, each on another holder.
  std::vector<uint32_t> spread;
  std::vector<CharacterizedLane> lanes;
  // Microseconds to prefill so many tokens here, all layers; null: no engine.
  std::function<absl::StatusOr<double>(uint64_t tokens)> prefill;
};

struct CharacterizeOptions {
  std::vector<uint32_t> query_rows;            // of routes, ascending
  std::vector<uint32_t> calibrate_query_rows;  // of the calibration: fewer, others
  std::vector<uint32_t> parallel;              // requesters at once, and flows at once
  uint32_t run_count = 9;                      // of each measurement, and rounds of the calibration
  Duration call_timeout = std::chrono::seconds(60);
};
CharacterizeOptions QuickCharacterization();  // under 2 minutes with the chunks of `ckvctl`
CharacterizeOptions FullCharacterization();

// The steps at which the predicate's choices are held against the measured best.
std::span<const uint32_t> CharacterizedSteps();

// Told after every measurement how many are done, of how many.
using CharacterizeProgress = absl::FunctionRef<void(size_t done, size_t total)>;

// Measures the constants of every lane, of its first holder. Errors as CalibrateLane.
absl::StatusOr<Profile> CalibrateTarget(const CharacterizeTarget& target,
                                        const CharacterizeOptions& options,
                                        const std::string& subject, Clock& clock);

// Measures what `file` does not have yet, and returns the constants: `known`, or calibrated beside
// the grid (routes, fetches and attention here), turn by turn, so that both have the machine's slow
// moments in common. The grid is added to the file when it is whole, everything else point by
// point. What one fabric or holder refuses ends the run with its error.
absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, CharacterizeProgress progress);

// Microseconds that the model says a route of one layer takes; 0: no such lane in the profile.
double PredictRouteUs(const Profile& profile, const Geometry& geometry, const std::string& fabric,
                      uint32_t query_rows, uint64_t tokens);

// What the predicate chooses with the constants of the profile.
std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps);

}  // namespace ckv
