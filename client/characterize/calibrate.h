// Measuring what the cost model computes with: seconds, not minutes, of calls that a requester
// makes anyway, against chunks that a holder has.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/compute_curve.h"
#include "client/cost_model.h"
#include "client/paged_cache.h"
#include "client/profile.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "proto/corpus.h"

namespace ckv {

// One number of query rows over one chunk, one layer: means of the runs (TrimmedMean).
struct RouteTiming {
  uint32_t query_rows = 0;
  uint64_t tokens = 0;
  double us = 0;          // of the call
  double compute_us = 0;  // of it, the holder's kernel
  uint64_t bytes_out = 0, bytes_in = 0;
};

// How often a call is timed, the layers in turn. One of 20 us, made once after something else,
// finds its rows in no cache and times what came before it: of 30 rounds to and fro, every other
// took twice as long as its neighbours. So the calls that count come after a turn over the layers,
// or as much of one as fits into `time_min`, begin again with the first, and go on for as long.
struct TimingPace {
  uint32_t run_count = 9;  // at least so many that count, and at least one
  Duration time_min{0};
};
// Of one measurement among others; the longer calls of a grid take more.
inline constexpr Duration kTimingMin = std::chrono::milliseconds(2);
// Where time_min asks for more: calls of 10 us take 2.5 ms then.
inline constexpr uint32_t kTimingRunCountMax = 256;

// Makes a call at its pace, `layers` at least one; `call` is told which layer, and whether it
// counts. Ends with the first error.
absl::Status CallAtPace(const TimingPace& pace, uint32_t layers, Clock& clock,
                        absl::FunctionRef<absl::Status(uint32_t layer, bool counts)> call);

struct TimingCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal
  uint32_t query_rows = 1;
  PartialDtype wire = PartialDtype::kBf16;
  // After a run that does not count in any case: lanes come up and memory is touched in it.
  // Fetches heed its run_count.
  TimingPace pace = {};
  Instant deadline = kInstantMax;
};
// Errors as Requester::Attend.
absl::StatusOr<RouteTiming> TimeRoute(Requester& requester, const TimingCall& call, Clock& clock);

// Microseconds of a fetch of the whole chunk, every layer, into memory here that has been touched
// before: the mean of the runs (TrimmedMean). `query_rows` and `wire` mean nothing. Errors as
// Requester::Fetch.
absl::StatusOr<double> TimeFetch(Requester& requester, const TimingCall& call, Clock& clock);

// The same into `cache`, each band rotated on the way, as an engine fetches. Errors as
// Requester::FetchInto.
absl::StatusOr<double> TimeFetchInto(Requester& requester, const TimingCall& call,
                                     PagedCache& cache, Clock& clock);

// Where an engine has its rows, with room for `tokens` and every page there before anything is
// timed: a page of zeros that was never written is one page for all of them, and stays in the
// caches. The rows' values mean nothing.
//   ResourceExhausted   the memory cannot be had.
absl::StatusOr<std::unique_ptr<PagedCache>> CacheForTiming(const Geometry& geometry,
                                                           uint64_t tokens);
// The kernel, here, on one thread: microseconds of one layer of the cache's first `tokens` rows,
// the mean of the runs (TrimmedMean).
double TimeAttendHere(const PagedCache& cache, uint64_t tokens, uint32_t query_rows,
                      const TimingPace& pace, Clock& clock);

// One exchange: what it moved, and what it took beside the kernel and the merge.
struct ExchangeSample {
  double bytes = 0;
  double us = 0;
  double of_us = 0;  // what its error is a share of; 0: us
};
// T_probe and BW of T = T_probe + bytes / BW by least squares of the relative error. Total: fewer
// than two distinct sizes, or times that fall as bytes grow, give a T_probe of the least time and
// LiveFabric::kBandwidthMax.
FabricConstants FitFabric(std::span<const ExchangeSample> samples);

// One call over a lane, whole: what it moved and what it took, the merge taken off.
struct CallSample {
  double rows = 0;
  double bytes_out = 0, bytes_in = 0;
  double compute_us = 0;  // of all its frames
  double beside_us = 0;   // what it took beside that; over a wire less than nothing, where frames
                          // overlap
};
struct FittedFabric {
  FabricConstants constants;
  double wire_share = 0;  // Candidate::wire_share
};
// The constants with which the cost model (client/cost_model.h) comes nearest to the samples, as
// FitFabric, and the share of a transfer that overlaps with the kernel: of kWireShareSteps + 1
// values from 0 to 1 the one with the least sum of squared relative errors, of equals the least.
// Only calls of several frames tell it: without them it is 0.
inline constexpr uint32_t kWireShareSteps = 20;
FittedFabric FitCalls(std::span<const CallSample> samples, const FrameRows& frame);

// What a requester has learnt of one holder over the fabric it speaks to it.
struct LaneCalibration {
  FabricConstants fabric;
  double wire_share = 0;
  double splice_share = 1;  // Candidate::splice_share
  ComputeCurve holder;
  std::vector<RouteTiming> timings;
};
struct CalibrationCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t few = 0, many = 1;        // two chunks of the same holder, of fewer and of more tokens
  std::vector<uint32_t> query_rows;  // ascending; T_probe wants small ones, BW large ones
  PartialDtype wire = PartialDtype::kBf16;
  TimingPace pace = {.run_count = 1, .time_min = kTimingMin};
  // CalibrateHere's.
  double merge_per_row_us = 0;
  double splice_per_token_layer_us = 0, splice_per_layer_us = 0;
  LaneShape lane_shape = {};  // the requester's: what it cuts its calls for
  Instant deadline = kInstantMax;
};
// Round by round, so that other measurements can be made in between: a machine has slow moments,
// and what is compared should share them. Belongs to one thread.
class LaneCalibrator {
 public:
  // `requester` and `clock` must outlive it.
  LaneCalibrator(Requester* requester, CalibrationCall call, Clock* clock);
  // Everything once. call.run_count runs of each call are one value.
  //   InvalidArgument     no query rows, or chunks that are not in the corpus.
  //   else as Attend and Fetch.
  absl::Status Round();
  // A round in parts, so that others can come in between: part `i` of part_count(). Errors as
  // Round.
  size_t part_count() const { return points_.size() + 1; }
  absl::Status Part(size_t i);
  // What a part took when it was measured last: the call, or both fetches.
  double LastUs(size_t i) const;
  // Of the means over the rounds; at least one.
  LaneCalibration Fit() const;

 private:
  struct Point {
    RouteTiming timing;  // of the last round
    std::vector<double> us, compute_us, beside_us;
  };

  double SpliceShare() const;

  Requester* const requester_;
  const CalibrationCall call_;
  Clock* const clock_;
  std::vector<Point> points_;                  // [query rows][few, many]
  std::vector<double> fetch_us_, spliced_us_;  // side by side: a fetch, and one that splices
  std::unique_ptr<PagedCache> cache_;          // of the latter
};

// So many rounds in a row. Errors as LaneCalibrator::Round.
absl::StatusOr<LaneCalibration> CalibrateLane(Requester& requester, const CalibrationCall& call,
                                              uint32_t round_count, Clock& clock);

// The mean without the fastest and the slowest eighth, at least one each of three or more; 0 of
// none. Not a median: the processors of a shared machine have a fast and a slow state, 20 % apart
// and each by itself, so a call's times lie in two heaps and a median falls into either. Of the two
// halves of 18 rounds, ratios of two calls' medians are 10 % apart (root mean square over a grid),
// those of such means 4 %.
double TrimmedMean(std::vector<double> values);
// Its standard error: the values, those that are left out drawn in to the outermost of the others
// (Tukey and McLaughlin 1963). 0 of fewer than four, which say nothing about it.
double TrimmedMeanError(std::vector<double> values);

}  // namespace ckv
