// Runs the sweeps of a characterization: real calls of real requesters to the holders of a fleet.

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
#include "client/decide/predicate.h"
#include "client/decide/profile_file.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// A requester that speaks only one fabric. Borrowed.
struct CharacterizedLane {
  std::string fabric;
  Requester* requester = nullptr;
};

// The corpus and lanes to measure against. Borrowed.
struct CharacterizeTarget {
  std::shared_ptr<const Corpus> corpus;
  // Ordinals of chunks of one holder, at least two, with tokens ascending.
  std::vector<uint32_t> sizes;
  // Ordinals of more chunks of that holder, whose rows of all layers are more than its caches hold
  // (TimingCall::push_out). Rows are then attended, here too, as calls find them: in no cache. If
  // empty, they are found in a cache, and curves have no floor.
  std::vector<uint32_t> push_out = {};
  // Ordinals of equally long, adjacent chunks of the corpus, each on another holder.
  std::vector<uint32_t> spread;
  std::vector<CharacterizedLane> lanes;
  // Prefills this many tokens here, all layers, and returns microseconds. If null, there is no
  // engine.
  std::function<absl::StatusOr<double>(uint64_t tokens)> prefill;
};

struct CharacterizeOptions {
  std::vector<uint32_t> query_rows;  // rows of routes, ascending
  // Query rows of the calibration: fewer, and others.
  std::vector<uint32_t> calibrate_query_rows;
  std::vector<uint32_t> parallel;  // requesters at once, and flows at once
  uint32_t run_count = 9;          // runs per measurement, and calibration rounds
  Duration call_timeout = std::chrono::seconds(60);
};
CharacterizeOptions QuickCharacterization();  // under 2 minutes with the chunks of `ckvctl`
CharacterizeOptions FullCharacterization();

// Returns the steps at which the predicate's choices are compared with the measured best.
std::span<const uint32_t> CharacterizedSteps();

struct CharacterizeWatch {
  // Called after every measurement with the number done and the total of a stage. Stages are
  // "grid", "grid, again" (tasks whose rounds disagreed) and "sweeps". A stage with nothing to do
  // is left out.
  std::function<void(const char* stage, size_t done, size_t total)> progress =
      [](const char*, size_t, size_t) {};
  // Called with the constants once they are known, before any sample that depends on them is
  // stored. Store them too, and pass them as `known` to continue a run that was cut off. An error
  // ends the run.
  std::function<absl::Status(const Profile&)> calibrated = [](const Profile&) {
    return absl::OkStatus();
  };
};

// Returns rows of the first `holders` chunks of `spread` together, as an indexer would choose them
// for the sweeps over holders. It returns kSelectedRows of them, or all if there are fewer. They
// are distinct, in no order, and the same at every call.
inline constexpr uint32_t kSelectedRows = 256;
std::vector<int32_t> ChooseRows(const CharacterizeTarget& target, uint32_t holders);

// Measures the constants of every lane, of its first holder. Errors as LaneCalibrator::Round.
absl::StatusOr<Profile> CalibrateTarget(const CharacterizeTarget& target,
                                        const CharacterizeOptions& options,
                                        const std::string& subject, Clock& clock);

// Measures everything that `file` does not have yet, and returns the constants: `known`, or
// calibrated among the grid. The grid is routes, fetches, prefills and attention here.
//
// It is measured in rounds, each in the opposite order of the one before. Calls of the calibration
// stand between the calls they are compared with, so a slow moment of the machine hits all alike.
// Tasks whose rounds disagree are measured in as many rounds again. The grid is added to the file
// when it is complete, everything else point by point. An error of one fabric or holder ends the
// run.
absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, const CharacterizeWatch& watch);

// Returns the microseconds that the model predicts for a route of one layer. It is 0 if the profile
// has no such lane.
double PredictRouteUs(const Profile& profile, const Geometry& geometry, const std::string& fabric,
                      uint32_t query_rows, uint64_t tokens);

// Returns the predicate's choice with the constants of the profile.
std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps);

}  // namespace ckv
