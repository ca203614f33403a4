// The sweeps of a characterization: real calls of real requesters to the holders of a fleet.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  // Ordinals of equally long chunks, neighbours in the corpus, each on another holder.
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

struct CharacterizeWatch {
  // Told after every measurement how many of a stage are done, of how many. Stages: "grid", "grid,
  // again" (those whose rounds disagreed), "sweeps"; one with nothing to do is left out.
  std::function<void(const char* stage, size_t done, size_t total)> progress =
      [](const char*, size_t, size_t) {};
  // Given the constants once they are known, before any sample that stands on them is kept: to be
  // kept too, and given as `known` when a run that was cut off goes on. An error ends the run.
  std::function<absl::Status(const Profile&)> calibrated = [](const Profile&) {
    return absl::OkStatus();
  };
};

// What an indexer chooses of the rows of the first `holders` chunks of `spread` together, for the
// sweeps over holders: kSelectedRows of them, or all if there are fewer; distinct, in no order,
// the same however often they are asked for.
inline constexpr uint32_t kSelectedRows = 256;
std::vector<int32_t> ChooseRows(const CharacterizeTarget& target, uint32_t holders);

// Measures the constants of every lane, of its first holder. Errors as CalibrateLane.
absl::StatusOr<Profile> CalibrateTarget(const CharacterizeTarget& target,
                                        const CharacterizeOptions& options,
                                        const std::string& subject, Clock& clock);

// Measures what `file` does not have yet, and returns the constants: `known`, or calibrated among
// the grid (routes, fetches, prefills and attention here). The grid is measured in rounds, each in
// the opposite order of the one before, and calls of the calibration stand between those that they
// are held against: a slow moment of the machine hits all alike. What its rounds do not agree on is
// measured in as many rounds again. The grid is added to the file when it is whole, everything else
// point by point. What one fabric or holder refuses ends the run with its error.
absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, const CharacterizeWatch& watch);

// Microseconds that the model says a route of one layer takes; 0: no such lane in the profile.
double PredictRouteUs(const Profile& profile, const Geometry& geometry, const std::string& fabric,
                      uint32_t query_rows, uint64_t tokens);

// What the predicate chooses with the constants of the profile.
std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps);

}  // namespace ckv
