// Runs the sweeps of a characterization: real requester calls to the holders of a fleet.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cost/predicate.h"
#include "client/cost/profile_file.h"
#include "client/requester.h"
#include "client/tools/characterize/sample.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// A requester that uses only one fabric. Borrowed.
struct CharacterizedLane {
  std::string fabric;
  Requester* requester = nullptr;
};

// Chunks of another corpus than the model's, on one holder.
struct SideCorpus {
  std::shared_ptr<const Corpus> corpus;  // if null, there is none
  std::vector<uint32_t> chunks;          // ordinals
};

// The corpus and lanes to measure against. Borrowed.
struct CharacterizeTarget {
  std::shared_ptr<const Corpus> corpus;
  // Query rows of one token: the model's query heads. M_q of the sweeps.
  uint32_t heads = 16;
  // Ordinals of at least two chunks of one holder, by ascending token count.
  std::vector<uint32_t> sizes;
  // Ordinals of more chunks of that holder, whose rows of all layers are more than its caches hold
  // (TimingCall::push_out). Rows are then attended cold, in no cache, as in real use; this includes
  // local attention. If empty, rows are found in a cache, and curves have no floor.
  std::vector<uint32_t> push_out = {};
  // Ordinals of equally long, adjacent chunks of the corpus, each on a different holder.
  std::vector<uint32_t> spread;
  // Equally long, adjacent chunks of one layer, from which few or many tokens' rows are chosen.
  SideCorpus store;
  // One chunk each, of one layer and of other row widths than the model's and each other's.
  std::vector<SideCorpus> payloads;
  std::vector<CharacterizedLane> lanes;
  // Prefills this many tokens locally, all layers, and returns microseconds. If null, there is no
  // engine.
  std::function<absl::StatusOr<double>(uint64_t tokens)> prefill;
};

struct CharacterizeOptions {
  std::vector<uint32_t> query_rows;  // query rows of routes, ascending
  // Query rows of the calibration: fewer values, different from `query_rows`.
  std::vector<uint32_t> calibrate_query_rows;
  std::vector<uint32_t> parallel;  // counts of callers, pulls and flows at once
  // Each thread of these calls up to 40 times, or at least four times until this has passed.
  Duration parallel_time_max = std::chrono::milliseconds(300);
  uint32_t kernel_rows_max = 1024;  // query rows of the largest batch of the sweep over requesters
  uint32_t run_count = 9;           // runs per measurement, and calibration rounds
  Duration call_timeout = std::chrono::seconds(60);
  bool has_sweeps = true;  // if false, the grid only
};
CharacterizeOptions QuickCharacterization();  // under 2 minutes with the chunks of `ckvctl`
CharacterizeOptions FullCharacterization();

// Returns the step counts at which the predicate's choices are compared with the measured best.
std::span<const uint32_t> CharacterizedSteps();

struct CharacterizeWatch {
  // Called after every measurement with the number done and the total of a stage. Stages are
  // "grid", "grid, again" (tasks whose rounds disagreed) and "sweeps". A stage with no work is
  // skipped.
  std::function<void(const char* stage, size_t done, size_t total)> progress =
      [](const char*, size_t, size_t) {};
  // Called with the constants once they are known, before any sample that depends on them is
  // stored. Store them, and pass them as `known` to resume an interrupted run. An error ends the
  // run.
  std::function<absl::Status(const Profile&)> calibrated = [](const Profile&) {
    return absl::OkStatus();
  };
};

// Rows that a query selects, in the sweeps over holders and over the size of a store. They are the
// budgets of DeepSeek-V4-Flash, V4-Pro, and V3.2 and GLM-5.1 (section 5.4).
inline constexpr std::array<uint32_t, 3> kSelectedRows = {512, 1024, 2048};
// Chooses `wanted` of `token_count` rows as an indexer would, or all if there are fewer. They are
// distinct, unordered, and the same for every call.
std::vector<int32_t> ChooseOf(uint64_t token_count, uint32_t wanted);
// The same of the first `holders` chunks of `spread` together.
std::vector<int32_t> ChooseRows(const CharacterizeTarget& target, uint32_t holders,
                                uint32_t wanted);

// Measures the constants of every lane, using the lane's first holder. Errors as
// LaneCalibrator::Round.
absl::StatusOr<Profile> CalibrateTarget(const CharacterizeTarget& target,
                                        const CharacterizeOptions& options,
                                        const std::string& subject, Clock& clock);

// Measures everything that is not in `file` yet, and returns the constants: `known`, or calibrated
// together with the grid. The grid consists of routes, fetches, prefills and local attention.
//
// The grid is measured in rounds, each in the reverse order of the previous one. Calibration calls
// are interleaved with the calls they are compared with, so a slow moment of the machine affects
// all alike. Tasks whose rounds disagree are measured for as many rounds again. The complete grid
// is added to the file at once, everything else point by point. An error of one fabric or holder
// ends the run.
absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, const CharacterizeWatch& watch);

// A route of one layer, as the model predicts it.
struct RoutePrediction {
  double us = 0;
  // The holder's kernel, over all frames. Frames overlap, so `us` may be less than this and the
  // transfer together.
  double kernel_us = 0;
};
// Returns zeros if the profile has no lane over `fabric`.
RoutePrediction PredictRoute(const Profile& profile, const Geometry& geometry,
                             const std::string& fabric, uint32_t query_rows, uint64_t tokens);

// One point of the model over bandwidths (figure 6(a)): a step of all layers.
struct BandwidthPoint {
  double bandwidth_bytes_per_s = 0;
  // Unset if not offered: local needs the cost of prefill.
  std::array<std::optional<double>, kPrimitiveCount> us;
};
// Returns the costs of one step at bandwidths of 0.2 to 1,000 GB/s, ten a decade. The other
// constants are those of the profile's lane over `fabric`. Returns nothing if it has none.
std::vector<BandwidthPoint> SweepBandwidth(const Profile& profile, const Geometry& geometry,
                                           const std::string& fabric, uint32_t query_rows,
                                           uint64_t tokens);

// Returns the predicate's choice with the constants of the profile.
std::optional<Primitive> PredictChoice(const Profile& profile, const Geometry& geometry,
                                       const std::string& fabric, uint32_t query_rows,
                                       uint64_t tokens, uint32_t steps);

}  // namespace ckv
