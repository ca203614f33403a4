// Measures the constants of the cost model. It takes seconds, not minutes, of ordinary requester
// calls to chunks that a holder has.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/cache/paged_cache.h"
#include "client/decide/compute_curve.h"
#include "client/decide/cost_model.h"
#include "client/decide/profile.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The times of a number of query rows over one chunk and one layer: means of the runs
// (TrimmedMean).
struct RouteTiming {
  uint32_t query_rows = 0;
  uint64_t tokens = 0;
  double us = 0;          // the whole call
  double compute_us = 0;  // its share spent in the holder's kernel
  uint64_t bytes_out = 0, bytes_in = 0;
};

// How often a call is timed, with the layers in turn. A single call of 20 us, made after something
// else, finds its rows in no cache and times what came before it. In 30 rounds to and fro, every
// other one took twice as long as its neighbours.
//
// So a turn over the layers comes first and does not count; it ends early after `time_min`. The
// calls that count begin again with the first layer and go on for `time_min`.
struct TimingPace {
  // The least number of runs that count; at least one.
  uint32_t run_count = 9;
  Duration time_min{0};
};
// The pace of one measurement among others; the longer calls of a grid take more.
inline constexpr Duration kTimingMin = std::chrono::milliseconds(2);
// The most runs made to fill `time_min`: calls of 10 us take 2.5 ms then.
inline constexpr uint32_t kTimingRunCountMax = 256;

// Makes calls at this pace; `layers` is at least one. `call` gets the layer and whether the run
// counts. The first error ends it.
absl::Status CallAtPace(const TimingPace& pace, uint32_t layers, Clock& clock,
                        absl::FunctionRef<absl::Status(uint32_t layer, bool counts)> call);
// Makes calls that find their rows in memory and in no cache, as calls in life do. Between two
// attends of a layer, a step reads all others. `push_out` puts the rows of all layers there before
// each turn over them. All runs count. Once there are enough runs, the turn goes on for
// pace.time_min, but not beyond its last layer.
absl::Status CallCold(const TimingPace& pace, uint32_t layers, Clock& clock,
                      absl::FunctionRef<absl::Status()> push_out,
                      absl::FunctionRef<absl::Status(uint32_t layer)> call);

// Which caches hold the rows that a timed attend reads.
enum class RowCaching : uint8_t {
  // Wherever the turn over the layers left them: in a cache if it holds the rows of all layers.
  kAsLeft,
  kCached,  // in a cache, if it holds the rows of one layer: the first is attended again and again
  kCold,    // in memory and in no cache, as CallCold has it
};

struct TimingCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal
  uint32_t query_rows = 1;
  PartialDtype wire = PartialDtype::kBf16;
  // The pace, after one run that never counts: it brings lanes up and touches memory. Fetches use
  // only its run_count.
  TimingPace pace = {};
  RowCaching caching = RowCaching::kAsLeft;
  // For kCold: other chunks of the same holder, whose rows are more than its caches hold. One query
  // row is routed over them, which pushes the rows out.
  std::span<const uint32_t> push_out = {};
  Instant deadline = kInstantMax;
};
// Times a route. Errors as Requester::Attend.
absl::StatusOr<RouteTiming> TimeRoute(Requester& requester, const TimingCall& call, Clock& clock);

// Times a fetch of the whole chunk, every layer, into memory here that was touched before. Returns
// microseconds: the mean of the runs (TrimmedMean). `query_rows` and `wire` are ignored. Errors as
// Requester::Fetch.
absl::StatusOr<double> TimeFetch(Requester& requester, const TimingCall& call, Clock& clock);

// Times the same fetch into `cache`, with each band rotated on the way, as an engine fetches.
// Errors as Requester::FetchInto.
absl::StatusOr<double> TimeFetchInto(Requester& requester, const TimingCall& call,
                                     PagedCache& cache, Clock& clock);

// Makes a cache like an engine's, with room for `tokens` and every page present before anything is
// timed. Pages of zeros that were never written are all one page, which stays in the caches. The
// values of the rows mean nothing.
//   ResourceExhausted   there is not enough memory.
absl::StatusOr<std::unique_ptr<PagedCache>> CacheForTiming(const Geometry& geometry,
                                                           uint64_t tokens);
// Times the kernel here, on one thread, in the grade of calls of bf16 partials. Returns
// microseconds for one layer of the cache's first `tokens` rows: the mean of the runs
// (TrimmedMean).
double TimeAttendHere(const PagedCache& cache, uint64_t tokens, uint32_t query_rows,
                      RowCaching caching, const TimingPace& pace, Clock& clock);

// One exchange: the bytes it moved, and its time without the kernel and the merge.
struct ExchangeSample {
  double bytes = 0;
  double us = 0;
  // The time that its error is relative to; if 0, that is `us`.
  double of_us = 0;
};
// Fits T_probe and BW of T = T_probe + bytes / BW, by least squares of the relative error. It
// accepts any samples. With fewer than two distinct sizes, or times that fall as bytes grow,
// T_probe is the least time and BW is LiveFabric::kBandwidthMax.
FabricConstants FitFabric(std::span<const ExchangeSample> samples);

// One whole call over a lane: the bytes it moved and its time without the merge.
struct CallSample {
  double rows = 0;
  double bytes_out = 0, bytes_in = 0;
  double compute_us = 0;  // kernel time of all its frames
  // The rest of its time. It is negative over a wire if frames overlap.
  double beside_us = 0;
};
struct FittedFabric {
  FabricConstants constants;
  double wire_share = 0;  // Candidate::wire_share
};
// Fits the constants with which the cost model (client/decide/cost_model.h) comes nearest to the
// samples, as FitFabric does. It also fits the share of a transfer that overlaps with the kernel.
// Among kWireShareSteps + 1 values from 0 to 1 it takes the one with the least sum of squared
// relative errors, and the smallest of equals. Only calls of several frames show that share:
// without them it is 0.
inline constexpr uint32_t kWireShareSteps = 20;
FittedFabric FitCalls(std::span<const CallSample> samples, const FrameRows& frame);

// The measured constants of one holder, over the fabric that the requester uses to it.
struct LaneCalibration {
  FabricConstants fabric;
  double wire_share = 0;
  double splice_share = 1;  // Candidate::splice_share
  ComputeCurve holder;
  std::vector<RouteTiming> timings;
};
struct CalibrationCall {
  std::shared_ptr<const Corpus> corpus;
  // Two chunks of the same holder, of fewer and of more tokens.
  uint32_t few = 0, many = 1;
  // Others of that holder, as TimingCall::push_out. If there are any, each call is timed with its
  // rows in a cache and in none, and the curve has a floor. If there are none, rows are where they
  // were left.
  std::vector<uint32_t> push_out;
  std::vector<uint32_t> query_rows;  // ascending; small ones give T_probe, large ones BW
  PartialDtype wire = PartialDtype::kBf16;
  TimingPace pace = {.run_count = 1, .time_min = kTimingMin};
  // The constants from CalibrateHere.
  double merge_per_row_us = 0;
  double splice_per_token_layer_us = 0, splice_per_layer_us = 0;
  LaneShape lane_shape = {};  // the requester's, which its calls are cut for
  Instant deadline = kInstantMax;
};
// Returns how rows are timed: in a cache and in none if they can be pushed out of caches, else
// wherever they were left.
std::span<const RowCaching> CachingsOf(bool can_push_out);

// Calibrates one lane, round by round, so that other measurements can come in between. A machine
// has slow moments, and measurements that are compared should share them. Belongs to one thread.
class LaneCalibrator {
 public:
  // `requester` and `clock` must outlive it.
  LaneCalibrator(Requester* requester, CalibrationCall call, Clock* clock);
  // Measures everything once. A value is the mean of call.pace.run_count runs of a call.
  //   InvalidArgument     there are no query rows, or chunks are not in the corpus.
  //   Other errors as Attend and Fetch.
  absl::Status Round();
  // Measures part `i` of part_count() of a round, so that others can come in between. Errors as
  // Round.
  size_t part_count() const { return points_.size() + 1; }
  absl::Status Part(size_t i);
  // Returns the last time of a part in microseconds: the call, or both fetches.
  double LastUs(size_t i) const;
  // Fits the means over the rounds. Make at least one round before.
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
  // Times of pairs of fetches, side by side: one without a splice and one with it.
  std::vector<double> fetch_us_, spliced_us_;
  std::unique_ptr<PagedCache> cache_;  // for the fetches that splice
};

// Returns the mean without the fastest and the slowest eighth, at least one each if there are three
// values or more. It is 0 for no values.
//
// A median would not do. Each processor of a shared machine has a fast and a slow state, 20 % apart
// and its own. So a call's times lie in two heaps, and a median falls into either. Between the two
// halves of 18 rounds, ratios of two calls' medians are 10 % apart (root mean square over a grid).
// Ratios of these means are 4 % apart.
double TrimmedMean(std::vector<double> values);
// Returns its standard error. Values that the mean leaves out are drawn in to the outermost of the
// others (Tukey and McLaughlin 1963). It is 0 for fewer than four values, which say nothing about
// it.
double TrimmedMeanError(std::vector<double> values);

}  // namespace ckv
