// Measures the constants of the cost model, in seconds rather than minutes, with ordinary requester
// calls to chunks that a holder has.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/cost/compute_curve.h"
#include "client/cost/cost_model.h"
#include "client/cost/profile.h"
#include "client/paged/paged_cache.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// Measured times of one route: `query_rows` query rows over one chunk and one layer. Each time is
// the mean of the runs (TrimmedMean).
struct RouteTiming {
  uint32_t query_rows = 0;
  uint64_t tokens = 0;
  double us = 0;          // the whole call
  double compute_us = 0;  // the part spent in the holder's kernel
  uint64_t bytes_out = 0, bytes_in = 0;
};

// How often a call is timed. Successive calls use successive layers. A single 20 us call made after
// other work finds its rows in no cache, so its time depends on that work. In 30 rounds of
// alternating direction, every other call took twice as long as its neighbours.
//
// Therefore one pass over the layers is made first and not counted; it ends early after `time_min`.
// The counted calls start again at the first layer and continue for `time_min`.
struct TimingPace {
  // Minimum number of counted runs; at least one.
  uint32_t run_count = 9;
  Duration time_min{0};
};
// The pace of one measurement among others. The longer calls of a grid exceed it.
inline constexpr Duration kTimingMin = std::chrono::milliseconds(2);
// The most runs made to fill `time_min`: 256 calls of 10 us take 2.5 ms.
inline constexpr uint32_t kTimingRunCountMax = 256;

// Makes calls at this pace; `layers` is at least one. `call` receives the layer and whether the run
// counts. Stops at the first error and returns it.
absl::Status CallAtPace(const TimingPace& pace, uint32_t layers, Clock& clock,
                        absl::FunctionRef<absl::Status(uint32_t layer, bool counts)> call);
// Makes calls whose rows are in memory but in no cache, as in real use. Between two attends of a
// layer, a step reads all other layers. `push_out` evicts the rows of all layers from the caches
// before each pass over the layers. All runs count. Once there are enough runs, the pass continues
// until pace.time_min, but not beyond its last layer.
absl::Status CallCold(const TimingPace& pace, uint32_t layers, Clock& clock,
                      absl::FunctionRef<absl::Status()> push_out,
                      absl::FunctionRef<absl::Status(uint32_t layer)> call);

// Which caches hold the rows that a timed attend reads.
enum class RowCaching : uint8_t {
  // Wherever the pass over the layers left them: in a cache if it holds the rows of all layers.
  kAsLeft,
  kCached,  // in a cache that holds one layer's rows: repeats the first layer
  kCold,    // in memory and in no cache (CallCold)
};

struct TimingCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal
  uint32_t query_rows = 1;
  PartialDtype wire = PartialDtype::kBf16;
  // The pace, after one uncounted run that connects the lanes and touches the memory. Fetches use
  // only its run_count.
  TimingPace pace = {};
  RowCaching caching = RowCaching::kAsLeft;
  // For kCold: other chunks of the same holder, with more rows than its caches hold. One query row
  // is routed over them to evict the timed rows.
  std::span<const uint32_t> push_out = {};
  Instant deadline = kInstantMax;
};
// Times a route. Errors as Requester::Attend.
absl::StatusOr<RouteTiming> TimeRoute(Requester& requester, const TimingCall& call, Clock& clock);

// Times a fetch of the whole chunk, every layer, into local memory that was touched before. Returns
// microseconds: the mean of the runs (TrimmedMean). Ignores `query_rows` and `wire`. Errors as
// Requester::Fetch.
absl::StatusOr<double> TimeFetch(Requester& requester, const TimingCall& call, Clock& clock);

// Times the same fetch into `cache`, rotating each band on the way, as an engine fetches. Errors as
// Requester::FetchInto.
absl::StatusOr<double> TimeFetchInto(Requester& requester, const TimingCall& call,
                                     PagedCache& cache, Clock& clock);

// Makes a cache like an engine's, with room for `tokens` tokens. Every page is made resident before
// anything is timed: untouched zero pages all share one physical page, which stays in the caches.
// The row values are arbitrary.
//   ResourceExhausted   there is not enough memory.
absl::StatusOr<std::unique_ptr<PagedCache>> CacheForTiming(const Geometry& geometry,
                                                           uint64_t tokens);
// Times the local kernel on one thread, at the precision of calls with bf16 partials. Returns
// microseconds for one layer of the cache's first `tokens` rows: the mean of the runs
// (TrimmedMean).
double TimeAttendHere(const PagedCache& cache, uint64_t tokens, uint32_t query_rows,
                      RowCaching caching, const TimingPace& pace, Clock& clock);

// One exchange: the bytes moved, and the time without the kernel and the merge.
struct ExchangeSample {
  double bytes = 0;
  double us = 0;
  // The time that the error is relative to; if 0, `us`.
  double of_us = 0;
};
// Fits T_probe and BW of T = T_probe + bytes / BW, by least squares of the relative error. Accepts
// any samples. With fewer than two distinct sizes, or times that fall as bytes grow, T_probe is the
// smallest time and BW is LiveFabric::kBandwidthMax.
FabricConstants FitFabric(std::span<const ExchangeSample> samples);

// One whole call over a lane: the bytes moved and the time without the merge.
struct CallSample {
  double rows = 0;
  double bytes_out = 0, bytes_in = 0;
  double compute_us = 0;  // kernel time of all its frames
  // The rest of the call's time. Negative over a wire if frames overlap.
  double beside_us = 0;
};
struct FittedFabric {
  FabricConstants constants;
  double wire_share = 0;   // Candidate::wire_share
  double burst_bytes = 0;  // Candidate::burst_bytes
};
// Fits the constants with which the cost model (client/cost/cost_model.h) best matches the
// samples, as FitFabric does. Also fits the share of a transfer that overlaps with the kernel. The
// share is the one of kWireShareSteps + 1 values from 0 to 1 with the smallest sum of squared
// relative errors. On a tie, the smallest value is used. Only calls of several frames reveal that
// share; without them it is 0.
//
// The burst is 0, or one of kBurstBytes that reduces that sum to kBurstGain of it. A smaller gain
// is another effect. Over loopback, which has no limiter, a false burst left 0.35 to 0.47 of the
// sum. Behind a limiter of 10 Gbit/s the best one left 0.2.
inline constexpr uint32_t kWireShareSteps = 20;
inline constexpr std::array<double, 8> kBurstBytes = {4096,  8192,   16384,  32768,
                                                      65536, 131072, 262144, 524288};
inline constexpr double kBurstGain = 0.25;
FittedFabric FitCalls(std::span<const CallSample> samples, const FrameRows& frame);

// Calls over chunks of one size: the bytes of rows that the kernel reads in each, and the calls.
struct SizedCalls {
  double read_bytes = 0;
  std::vector<CallSample> calls;
};
struct FittedLane {
  FittedFabric fabric;
  ColdExchange cold_exchange;
};
// Fits a lane to calls over few and over many tokens. FitCalls is fitted to the calls over few,
// without what ColdExchange adds to them. ColdExchange is a line through what the calls over many
// take longer than the cost model without it. It is all zeros if `cache_bytes` is 0. So it
// is if the rows of the many evict hardly more than those of the few, less than 0.3 of all.
FittedLane FitLane(const SizedCalls& few, const SizedCalls& many, const FrameRows& frame,
                   double cache_bytes);

// The measured constants of one holder, over the fabric that the requester uses to it.
struct LaneCalibration {
  FabricConstants fabric;
  double wire_share = 0;
  double burst_bytes = 0;
  double splice_share = 1;  // Candidate::splice_share
  ColdExchange cold_exchange;
  ComputeCurve holder;
  std::vector<RouteTiming> timings;
};
struct CalibrationCall {
  std::shared_ptr<const Corpus> corpus;
  // Two chunks of the same holder: one with fewer tokens, one with more.
  uint32_t few = 0, many = 1;
  // Other chunks of that holder, as TimingCall::push_out. If there are any, each call is timed both
  // with its rows in a cache and in none, and the curve has a floor. If there are none, rows are
  // timed wherever they were left.
  std::vector<uint32_t> push_out;
  std::vector<uint32_t> query_rows;  // ascending; small ones give T_probe, large ones BW
  PartialDtype wire = PartialDtype::kBf16;
  TimingPace pace = {.run_count = 1, .time_min = kTimingMin};
  // The constants from CalibrateHere.
  double merge_per_row_us = 0;
  double splice_per_token_layer_us = 0, splice_per_layer_us = 0;
  LaneShape lane_shape = {};  // the requester's lane shape, to which calls are cut
  double cache_bytes = 0;     // second-level cache of a holder's core; 0 if not known
  Instant deadline = kInstantMax;
};
// Returns the caching modes to time: cached and cold if rows can be evicted from the caches,
// otherwise kAsLeft.
std::span<const RowCaching> CachingsOf(bool can_push_out);

// Calibrates one lane, round by round, so that other measurements can be interleaved. A machine has
// slow moments, and measurements that are compared should share them. Used by one thread.
class LaneCalibrator {
 public:
  // `requester` and `clock` must outlive it.
  LaneCalibrator(Requester* requester, CalibrationCall call, Clock* clock);
  // Measures everything once. Each value is the mean of call.pace.run_count runs of a call.
  //   InvalidArgument     there are no query rows, or chunks are not in the corpus.
  //   Other errors as Attend and Fetch.
  absl::Status Round();
  // Measures part `i` of the part_count() parts of a round, so that other measurements can be
  // interleaved. Errors as Round.
  size_t part_count() const { return points_.size() + 1; }
  absl::Status Part(size_t i);
  // Returns the last time of part `i` in microseconds: that of the call, or of both fetches.
  double LastUs(size_t i) const;
  // Fits the means over the rounds. Requires at least one Round.
  LaneCalibration Fit() const;

 private:
  struct Point {
    uint32_t query_rows = 0;
    uint32_t chunk = 0;  // few or many
    RowCaching caching = RowCaching::kAsLeft;
    RouteTiming timing = {};  // the last round
    std::vector<double> us = {}, compute_us = {}, beside_us = {};
  };

  double SpliceShare() const;

  Requester* const requester_;
  const CalibrationCall call_;
  Clock* const clock_;
  std::vector<Point> points_;  // [query rows][cachings][few, many]
  // Times of paired fetches: one without a splice and one with a splice.
  std::vector<double> fetch_us_, spliced_us_;
  std::unique_ptr<PagedCache> cache_;  // for the fetches that splice
};

// Returns the mean without the fastest and the slowest eighth (each at least one value if there are
// three or more). Returns 0 for no values.
//
// A median is not suitable. Each processor of a shared machine has its own fast and slow state,
// which differ by 20 %. A call's times therefore form two clusters, and a median falls into either.
// Between the two halves of 18 rounds, ratios of two calls' medians differ by 10 % (root mean
// square over a grid). Ratios of these means differ by 4 %.
double TrimmedMean(std::vector<double> values);
// Returns the standard error of TrimmedMean. Values that the mean leaves out are replaced by the
// outermost of the others (Tukey and McLaughlin 1963). Returns 0 for fewer than kErrorRunsMin
// values, which give no estimate.
inline constexpr uint32_t kErrorRunsMin = 4;
double TrimmedMeanError(std::vector<double> values);
// Returns the upper quartile divided by the lower one, at least 1: how far repeats of a measurement
// are apart, regardless of single outliers. Returns 0 for fewer than four values.
double QuartileRatio(std::vector<double> values);

}  // namespace ckv
