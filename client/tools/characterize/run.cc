// Characterize measures what the file of samples does not have yet, in order:
//   grid    rounds of route, fetch, local and here, together with the calibration if the profile
//           is not known. `watch` gets the profile before the file gets a sample, so that a run
//           that is cut off continues with the same constants
//   sweeps  fan-in, congestion, scatter and gather. Each sample is in the file once measured
// It runs on one thread. Only Parallel starts others, which begin together.

#include "client/tools/characterize/run.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "attention/bf16.h"
#include "client/paged/paged_cache.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/grid.h"
#include "client/tools/characterize/target_calibrator.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr std::array<uint32_t, 4> kSteps = {1, 8, 64, 512};
// The query rows of sweeps over requesters, holders and flows: a decode step of one agent of
// V2-Lite.
constexpr uint32_t kAgentRows = 16;
// Rounds of each thread where several run at once.
constexpr uint32_t kParallelRounds = 40;
// Rounds of the grid in which a prefill is measured, at least: one takes as long as all routes.
constexpr uint32_t kPrefillRounds = 4;
constexpr uint32_t kSelectionSeed = 7;

class Sweeps {
 public:
  // `cache` has room for the largest chunk.
  Sweeps(const CharacterizeTarget& target, const CharacterizeOptions& options,
         const PagedCache& cache, Clock& clock)
      : target_(target), options_(options), cache_(cache), clock_(clock) {}

  std::vector<Task> Grid();
  std::vector<Task> Rest();

 private:
  using Call = std::function<absl::Status(uint32_t thread)>;

  Instant Deadline() const { return clock_.Now() + options_.call_timeout; }
  // In production, rows are in no cache. Neither are the grid's, if they can be pushed out.
  RowCaching Caching() const { return CachingsOf(!target_.push_out.empty()).back(); }
  void AddChunk(uint32_t chunk, std::vector<Task>& tasks);
  void AddRows(uint32_t chunk, uint32_t rows, std::vector<Task>& tasks);
  void AddParallel(const CharacterizedLane& lane, std::vector<Task>& tasks);
  void AddScatter(const CharacterizedLane& lane, std::vector<Task>& tasks);
  absl::StatusOr<Sample> Route(const CharacterizedLane& lane, const SampleKey& key, uint32_t chunk,
                               uint32_t runs);
  absl::StatusOr<Sample> Fetch(const CharacterizedLane& lane, const SampleKey& key, uint32_t chunk,
                               uint32_t runs);
  absl::Status AttendSelected(const CharacterizedLane& lane, uint32_t holders,
                              std::span<const int32_t> selection, uint64_t* bytes);
  absl::Status FetchSelected(const CharacterizedLane& lane, uint32_t holders,
                             std::span<const int32_t> selection);
  absl::Status FetchLayer(const CharacterizedLane& lane, uint32_t chunk, uint32_t layer);
  absl::StatusOr<Sample> Parallel(const SampleKey& key, const Call& call);
  absl::StatusOr<Sample> Repeated(const SampleKey& key, uint32_t runs,
                                  const std::function<absl::Status()>& call);

  const CharacterizeTarget& target_;
  const CharacterizeOptions& options_;
  const PagedCache& cache_;
  Clock& clock_;
  std::vector<std::byte> rows_;  // the rows that FetchSelected gets
  uint32_t cell_count_ = 0;      // cells of the grid so far
};

// Measures what is compared in the same round, and repeats the rounds. For a chunk, that is its
// prefill and fetches. At each number of rows, that is attention here and the routes.
std::vector<Task> Sweeps::Grid() {
  std::vector<Task> tasks;
  for (const uint32_t chunk : target_.sizes) {
    AddChunk(chunk, tasks);
    for (const uint32_t rows : options_.query_rows) AddRows(chunk, rows, tasks);
  }
  return tasks;
}

std::vector<Task> Sweeps::Rest() {
  std::vector<Task> tasks;
  for (const CharacterizedLane& lane : target_.lanes) {
    AddParallel(lane, tasks);
    AddScatter(lane, tasks);
  }
  return tasks;
}

void Sweeps::AddChunk(uint32_t chunk, std::vector<Task>& tasks) {
  const uint64_t tokens = TokensOf(target_, chunk);
  if (target_.prefill) {
    const SampleKey key = {Sweep::kLocal, "", 0, tokens, 1};
    tasks.push_back({key,
                     [this, key](uint32_t) -> absl::StatusOr<Sample> {
                       CKV_ASSIGN_OR_RETURN(const double us, target_.prefill(key.tokens));
                       return Sample{.key = key, .us = us, .runs = 1};
                     },
                     std::max(1u, options_.run_count / kPrefillRounds)});
  }
  for (const CharacterizedLane& lane : target_.lanes) {
    const SampleKey key = {Sweep::kFetch, lane.fabric, 0, tokens, 1};
    tasks.push_back(
        {key, [this, &lane, key, chunk](uint32_t runs) { return Fetch(lane, key, chunk, runs); }});
  }
}

void Sweeps::AddRows(uint32_t chunk, uint32_t rows, std::vector<Task>& tasks) {
  const uint64_t tokens = TokensOf(target_, chunk);
  const SampleKey here = {Sweep::kHere, "", rows, tokens, 1};
  const uint32_t cell = ++cell_count_;
  tasks.push_back({here,
                   [this, here](uint32_t runs) -> absl::StatusOr<Sample> {
                     const double us = TimeAttendHere(cache_, here.tokens, here.query_rows,
                                                      Caching(), {runs, kTimingMin}, clock_);
                     return Sample{.key = here, .us = us, .runs = runs};
                   },
                   1, cell});
  for (const CharacterizedLane& lane : target_.lanes) {
    const SampleKey key = {Sweep::kRoute, lane.fabric, rows, tokens, 1};
    tasks.push_back(
        {key, [this, &lane, key, chunk](uint32_t runs) { return Route(lane, key, chunk, runs); }, 1,
         cell});
  }
}

void Sweeps::AddParallel(const CharacterizedLane& lane, std::vector<Task>& tasks) {
  const uint32_t largest = target_.sizes.back();
  for (const uint32_t count : options_.parallel) {
    const SampleKey fan_in = {Sweep::kFanIn, lane.fabric, kAgentRows, TokensOf(target_, largest),
                              count};
    tasks.push_back({fan_in, [this, &lane, fan_in, largest](uint32_t) {
                       return Parallel(fan_in, [this, &lane, largest](uint32_t) {
                         TimingCall call = {.corpus = target_.corpus,
                                            .chunk = largest,
                                            .query_rows = kAgentRows,
                                            .pace = {.run_count = 1},
                                            .deadline = Deadline()};
                         return TimeRoute(*lane.requester, call, clock_).status();
                       });
                     }});
    const SampleKey flows = {Sweep::kCongestion, lane.fabric, 0, TokensOf(target_, largest), count};
    tasks.push_back({flows, [this, &lane, flows, largest](uint32_t) {
                       return Parallel(flows, [this, &lane, largest](uint32_t thread) {
                         const uint32_t layers = target_.corpus->geometry.layers;
                         return FetchLayer(lane, largest, thread % layers);
                       });
                     }});
  }
}

void Sweeps::AddScatter(const CharacterizedLane& lane, std::vector<Task>& tasks) {
  for (uint32_t count = 1; count <= target_.spread.size(); ++count) {
    const auto selection = std::make_shared<const std::vector<int32_t>>(ChooseRows(target_, count));
    const SampleKey scatter = {Sweep::kScatter, lane.fabric, kAgentRows, selection->size(), count};
    tasks.push_back({scatter, [this, &lane, scatter, selection](uint32_t runs) {
                       uint64_t bytes = 0;
                       auto sample = Repeated(scatter, runs, [&] {
                         return AttendSelected(lane, scatter.parallel, *selection, &bytes);
                       });
                       if (sample.ok()) sample->bytes_out = bytes;
                       return sample;
                     }});
    const SampleKey gather = {Sweep::kGather, lane.fabric, kAgentRows, selection->size(), count};
    tasks.push_back({gather, [this, &lane, gather, selection](uint32_t runs) {
                       return Repeated(gather, runs, [&] {
                         return FetchSelected(lane, gather.parallel, *selection);
                       });
                     }});
  }
}

absl::StatusOr<Sample> Sweeps::Route(const CharacterizedLane& lane, const SampleKey& key,
                                     uint32_t chunk, uint32_t runs) {
  const TimingCall call = {.corpus = target_.corpus,
                           .chunk = chunk,
                           .query_rows = key.query_rows,
                           .pace = {runs, kTimingMin},
                           .caching = Caching(),
                           .push_out = target_.push_out,
                           .deadline = Deadline()};
  CKV_ASSIGN_OR_RETURN(const RouteTiming timing, TimeRoute(*lane.requester, call, clock_));
  return Sample{.key = key,
                .us = timing.us,
                .runs = runs,
                .bytes_out = timing.bytes_out,
                .bytes_in = timing.bytes_in};
}

// Fetches into a paged cache of its own, at another position than the chunk's.
absl::StatusOr<Sample> Sweeps::Fetch(const CharacterizedLane& lane, const SampleKey& key,
                                     uint32_t chunk, uint32_t runs) {
  const TimingCall call = {.corpus = target_.corpus,
                           .chunk = chunk,
                           .pace = {.run_count = runs},
                           .deadline = Deadline()};
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<PagedCache> cache,
                       CacheForTiming(target_.corpus->geometry, key.tokens));
  CKV_ASSIGN_OR_RETURN(const double us, TimeFetchInto(*lane.requester, call, *cache, clock_));
  return Sample{.key = key, .us = us, .runs = runs};
}

absl::Status Sweeps::FetchLayer(const CharacterizedLane& lane, uint32_t chunk, uint32_t layer) {
  FetchCall fetch;
  fetch.corpus = target_.corpus;
  fetch.chunk_begin = chunk;
  fetch.chunk_end = chunk + 1;
  fetch.layer_begin = layer;
  fetch.layer_end = layer + 1;
  fetch.deadline = Deadline();
  return lane.requester->Fetch(fetch, [](const FetchedRows&) { return absl::OkStatus(); });
}

// The chosen rows of the first chunks of `spread`, in place at their holders.
absl::Status Sweeps::AttendSelected(const CharacterizedLane& lane, uint32_t holders,
                                    std::span<const int32_t> selection, uint64_t* bytes) {
  const Geometry& geometry = target_.corpus->geometry;
  std::vector<ChunkUse> uses;
  for (uint32_t i = 0; i < holders; ++i) uses.push_back({target_.spread[i], 0});
  const std::vector<uint16_t> q(size_t{kAgentRows} * geometry.d_qk, Bf16FromFloat(0.125f));
  std::vector<float> o(size_t{kAgentRows} * geometry.d_v), m(kAgentRows), l(kAgentRows);
  AttendCall call;
  call.corpus = target_.corpus;
  call.chunks = uses;
  call.q = {q.data(), kAgentRows, geometry.d_qk};
  call.selection = {selection.data(), static_cast<uint32_t>(selection.size()), kAgentRows};
  call.deadline = Deadline();
  AttendReport report;
  const PartialView out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  CKV_RETURN_IF_ERROR(lane.requester->Attend(call, out, &report));
  *bytes = report.bytes_sent;
  return absl::OkStatus();
}

// The same rows, of one layer, fetched together.
absl::Status Sweeps::FetchSelected(const CharacterizedLane& lane, uint32_t holders,
                                   std::span<const int32_t> selection) {
  const std::span<const int32_t> layers[] = {selection};
  SelectionCall call;
  call.corpus = target_.corpus;
  call.chunk_begin = target_.spread[0];
  call.chunk_end = target_.spread[0] + holders;
  call.indices = layers;
  call.deadline = Deadline();
  rows_.resize(selection.size() * target_.corpus->geometry.row_bytes());
  return lane.requester->FetchSelection(call, [this](uint32_t) { return std::span(rows_); });
}

// Repeats the call, after one run that does not count.
absl::StatusOr<Sample> Sweeps::Repeated(const SampleKey& key, uint32_t runs,
                                        const std::function<absl::Status()>& call) {
  std::vector<double> us;
  for (uint32_t run = 0; run <= runs; ++run) {
    const Instant begin = clock_.Now();
    CKV_RETURN_IF_ERROR(call());
    if (run > 0) us.push_back(UsSince(begin, clock_));
  }
  return Sample{.key = key, .us = TrimmedMean(std::move(us)), .runs = runs};
}

// The mean over all rounds of `key.parallel` threads, which begin together.
absl::StatusOr<Sample> Sweeps::Parallel(const SampleKey& key, const Call& call) {
  std::vector<std::vector<double>> us(key.parallel);
  std::vector<absl::Status> statuses(key.parallel);
  std::atomic<uint32_t> waiting{key.parallel};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < key.parallel; ++thread) {
    threads.emplace_back([&, thread] {
      statuses[thread] = call(thread);
      waiting.fetch_sub(1);
      while (waiting.load() > 0) std::this_thread::yield();
      for (uint32_t round = 0; round < kParallelRounds && statuses[thread].ok(); ++round) {
        const Instant begin = clock_.Now();
        statuses[thread] = call(thread);
        us[thread].push_back(UsSince(begin, clock_));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (uint32_t thread = 0; thread < key.parallel; ++thread) {
    CKV_RETURN_IF_ERROR(statuses[thread]);
    all.insert(all.end(), us[thread].begin(), us[thread].end());
  }
  return Sample{.key = key, .us = TrimmedMean(std::move(all)), .runs = kParallelRounds};
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
  return absl::OkStatus();
}

}  // namespace

CharacterizeOptions QuickCharacterization() {
  return {.query_rows = {1, 16, 128, 256, 512, 2048},
          .calibrate_query_rows = {1, 4, 24, 96, 384, 1536},
          .parallel = {1, 2, 4, 8},
          .run_count = 9};
}

CharacterizeOptions FullCharacterization() {
  return {.query_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
          .calibrate_query_rows = {1, 4, 16, 64, 256, 1024, 4096},
          .parallel = {1, 2, 3, 4, 6, 8, 12, 16},
          .run_count = 15};
}

std::span<const uint32_t> CharacterizedSteps() { return kSteps; }

std::vector<int32_t> ChooseRows(const CharacterizeTarget& target, uint32_t holders) {
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < holders; ++i) tokens += TokensOf(target, target.spread[i]);
  std::vector<int32_t> rows(tokens);
  std::iota(rows.begin(), rows.end(), 0);
  std::mt19937 rng(kSelectionSeed);
  const size_t chosen = std::min<size_t>(kSelectedRows, rows.size());
  for (size_t i = 0; i < chosen; ++i) std::swap(rows[i], rows[i + rng() % (rows.size() - i)]);
  rows.resize(chosen);
  return rows;
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
  return calibrator.Finish(subject);
}

absl::StatusOr<Profile> Characterize(const CharacterizeTarget& target,
                                     const CharacterizeOptions& options, const std::string& subject,
                                     const std::optional<Profile>& known, SampleFile& file,
                                     Clock& clock, const CharacterizeWatch& watch) {
  CKV_RETURN_IF_ERROR(CheckTarget(target));
  CKV_ASSIGN_OR_RETURN(
      const std::unique_ptr<PagedCache> cache,
      CacheForTiming(target.corpus->geometry, TokensOf(target, target.sizes.back())));
  Sweeps sweeps(target, options, *cache, clock);
  const auto missing = [&file](std::vector<Task> tasks) {
    std::erase_if(tasks, [&](const Task& task) { return file.Find(task.key) != nullptr; });
    return tasks;
  };
  const std::vector<Task> grid = missing(sweeps.Grid()), rest = missing(sweeps.Rest());
  Profile profile;
  if (grid.empty() && known) {
    profile = *known;
  } else {
    std::optional<TargetCalibrator> calibrator;
    if (!known) calibrator.emplace(target, options, *cache, clock);
    Grid measured(grid, calibrator ? &*calibrator : nullptr, options.run_count, watch);
    CKV_RETURN_IF_ERROR(measured.Measure());
    profile = known ? *known : calibrator->Finish(subject);
    // Samples depend on the constants. A run that is cut off from here on resumes with the same
    // ones.
    CKV_RETURN_IF_ERROR(watch.calibrated(profile));
    for (Sample& sample : measured.Samples()) {
      const SampleKey& key = sample.key;
      if (key.sweep == Sweep::kRoute) {
        sample.model_us = PredictRouteUs(profile, target.corpus->geometry, key.fabric,
                                         key.query_rows, key.tokens);
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
