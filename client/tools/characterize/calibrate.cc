// Measures the constants of the cost model, on the caller's thread. Each Time function repeats one
// kind of call and returns a trimmed mean. LaneCalibrator, in order:
//   constructor  lists the points: query rows, caching of rows, and chunk of few or many tokens
//   Part(i)      times one point, or as the last part the fetches. Round times all
//   Fit          fits T_probe, bandwidth, wire share and burst to calls over few tokens (FitCalls).
//                Then fits the compute curve to all points, and the splice share to the fetches

#include "client/tools/characterize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/mla_partial.h"
#include "attention/precision.h"
#include "attention/worker_pool.h"
#include "client/paged/cache_flush.h"
#include "client/paged/timing_values.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// How far from its own position a chunk is fetched to, so that every band is rotated.
constexpr uint64_t kFetchOffset = 1000;

absl::Status CheckCall(const TimingCall& call) {
  if (call.corpus == nullptr || call.chunk >= call.corpus->chunks.size() ||
      call.pace.run_count == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "calibrate: chunk %d of %d, %d runs", call.chunk,
        call.corpus == nullptr ? 0 : call.corpus->chunks.size(), call.pace.run_count));
  }
  return absl::OkStatus();
}

// Returns how many of `count` values are left out at each end: an eighth.
size_t CutOf(size_t count) { return count < 3 ? 0 : std::max<size_t>(1, count / 8); }

}  // namespace

double TrimmedMean(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto cut = std::ptrdiff_t(CutOf(values.size()));
  std::sort(values.begin(), values.end());
  const auto begin = values.begin() + cut, end = values.end() - cut;
  return std::accumulate(begin, end, 0.0) / double(end - begin);
}

double TrimmedMeanError(std::vector<double> values) {
  if (values.size() < kErrorRunsMin) return 0;
  const size_t cut = CutOf(values.size());
  std::sort(values.begin(), values.end());
  const double low = values[cut], high = values[values.size() - 1 - cut];
  for (double& value : values) value = std::clamp(value, low, high);
  const double count = double(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1)) / ((1 - 2 * double(cut) / count) * std::sqrt(count));
}

double QuartileRatio(std::vector<double> values) {
  if (values.size() < 4) return 0;
  std::sort(values.begin(), values.end());
  const size_t quarter = values.size() / 4;
  const double low = values[quarter], high = values[values.size() - 1 - quarter];
  return low > 0 ? high / low : 0;
}

absl::Status CallAtPace(const TimingPace& pace, uint32_t layers, Clock& clock,
                        absl::FunctionRef<absl::Status(uint32_t layer, bool counts)> call) {
  Instant begin = clock.Now();
  uint32_t layer = 0;
  do {
    CKV_RETURN_IF_ERROR(call(layer++, /*counts=*/false));
  } while (layer < layers && clock.Now() - begin < pace.time_min);
  begin = clock.Now();
  for (uint32_t run = 0;
       run < pace.run_count || (run < kTimingRunCountMax && clock.Now() - begin < pace.time_min);
       ++run)
    CKV_RETURN_IF_ERROR(call(run % layers, /*counts=*/true));
  return absl::OkStatus();
}

absl::Status CallCold(const TimingPace& pace, uint32_t layers, Clock& clock,
                      absl::FunctionRef<absl::Status()> push_out,
                      absl::FunctionRef<absl::Status(uint32_t layer)> call) {
  Duration took{0};
  for (uint32_t run = 0; run < std::max(1u, pace.run_count);) {
    CKV_RETURN_IF_ERROR(push_out());
    for (uint32_t layer = 0; layer < layers; ++layer, ++run) {
      if (run >= pace.run_count && run > 0 && took >= pace.time_min) break;
      const Instant begin = clock.Now();
      CKV_RETURN_IF_ERROR(call(layer));
      took += clock.Now() - begin;
    }
  }
  return absl::OkStatus();
}

namespace {

// Returns how many layers one turn covers, if rows are not pushed out of caches.
uint32_t LayersOf(RowCaching caching, const Geometry& geometry) {
  return caching == RowCaching::kCached ? 1 : geometry.layers;
}

// Routes one query row over all rows of `call.push_out`, so that the holder's caches contain only
// those.
absl::Status PushOut(Requester& requester, const TimingCall& call) {
  const Geometry& geometry = call.corpus->geometry;
  const std::vector<uint16_t> q = TimingQueries(1, geometry.d_qk);
  std::vector<float> o(geometry.d_v);
  float m = 0, l = 0;
  std::vector<ChunkUse> uses;
  for (const uint32_t chunk : call.push_out) uses.push_back({chunk, 0});
  AttendCall attend;
  attend.corpus = call.corpus;
  attend.chunks = uses;
  attend.q = {q.data(), 1, geometry.d_qk};
  attend.wire = call.wire;
  attend.deadline = call.deadline;
  const PartialView out = {o.data(), &m, &l, PartialDtype::kF32};
  for (attend.layer = 0; attend.layer < geometry.layers; ++attend.layer)
    CKV_RETURN_IF_ERROR(requester.Attend(attend, out, nullptr));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RouteTiming> TimeRoute(Requester& requester, const TimingCall& call, Clock& clock) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  const Geometry& geometry = call.corpus->geometry;
  const std::vector<uint16_t> q = TimingQueries(call.query_rows, geometry.d_qk);
  std::vector<float> o(size_t{call.query_rows} * geometry.d_v), m(call.query_rows),
      l(call.query_rows);
  const PartialView out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  const ChunkUse use = {call.chunk, 0};
  AttendCall attend;
  attend.corpus = call.corpus;
  attend.chunks = {&use, 1};
  attend.q = {q.data(), call.query_rows, geometry.d_qk};
  attend.wire = call.wire;
  attend.deadline = call.deadline;
  RouteTiming timing = {.query_rows = call.query_rows,
                        .tokens = call.corpus->chunks[call.chunk].token_count};
  std::vector<double> all, compute;
  const auto attend_one = [&](uint32_t layer, bool counts) -> absl::Status {
    attend.layer = layer;
    AttendReport report;
    const Instant begin = clock.Now();
    CKV_RETURN_IF_ERROR(requester.Attend(attend, out, &report));
    if (!counts) return absl::OkStatus();
    all.push_back(UsSince(begin, clock));
    compute.push_back(double(report.compute_ns_max) / 1e3);
    timing.bytes_out = report.bytes_sent;
    timing.bytes_in = report.bytes_received;
    return absl::OkStatus();
  };
  if (call.caching == RowCaching::kCold) {
    CKV_RETURN_IF_ERROR(CallCold(
        call.pace, geometry.layers, clock, [&] { return PushOut(requester, call); },
        [&](uint32_t layer) { return attend_one(layer, /*counts=*/true); }));
  } else {
    CKV_RETURN_IF_ERROR(CallAtPace(call.pace, LayersOf(call.caching, geometry), clock, attend_one));
  }
  timing.us = TrimmedMean(std::move(all));
  timing.compute_us = TrimmedMean(std::move(compute));
  return timing;
}

absl::StatusOr<double> TimeFetch(Requester& requester, const TimingCall& call, Clock& clock) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  const Geometry& geometry = call.corpus->geometry;
  const uint32_t row_bytes = geometry.row_bytes();
  const size_t layer_bytes = size_t{call.corpus->chunks[call.chunk].token_count} * row_bytes;
  std::vector<std::byte> rows(layer_bytes * geometry.layers);
  FetchCall fetch;
  fetch.corpus = call.corpus;
  fetch.chunk_begin = call.chunk;
  fetch.chunk_end = call.chunk + 1;
  fetch.tensor_end = geometry.layers;
  fetch.deadline = call.deadline;
  const auto place = [&](const RowRun& run) {
    return std::span(rows).subspan(run.tensor * layer_bytes + size_t{run.token_begin} * row_bytes,
                                   size_t{run.token_count} * row_bytes);
  };
  std::vector<double> all;
  for (uint32_t run = 0; run <= call.pace.run_count; ++run) {
    const Instant begin = clock.Now();
    CKV_RETURN_IF_ERROR(
        requester.Fetch(fetch, place, [](const FetchedRows&) { return absl::OkStatus(); }));
    if (run > 0) all.push_back(UsSince(begin, clock));
  }
  return TrimmedMean(std::move(all));
}

absl::StatusOr<double> TimeFetchInto(Requester& requester, const TimingCall& call,
                                     PagedCache& cache, Clock& clock) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  FetchCall fetch;
  fetch.corpus = call.corpus;
  fetch.chunk_begin = call.chunk;
  fetch.chunk_end = call.chunk + 1;
  fetch.tensor_end = call.corpus->geometry.layers;
  fetch.position = call.corpus->chunks[call.chunk].position + kFetchOffset;
  fetch.deadline = call.deadline;
  std::vector<double> all;
  for (uint32_t run = 0; run <= call.pace.run_count; ++run) {
    const CacheSequenceId sequence = cache.Begin();
    const Instant begin = clock.Now();
    CKV_RETURN_IF_ERROR(requester.FetchInto(fetch, cache, sequence));
    if (run > 0) all.push_back(UsSince(begin, clock));
    CKV_RETURN_IF_ERROR(cache.Free(sequence));
  }
  return TrimmedMean(std::move(all));
}

absl::StatusOr<std::unique_ptr<PagedCache>> CacheForTiming(const Geometry& geometry,
                                                           uint64_t tokens) {
  CKV_ASSIGN_OR_RETURN(
      std::unique_ptr<PagedCache> cache,
      PagedCache::Create(geometry,
                         {.block_count = static_cast<uint32_t>(tokens / kCacheBlockTokens + 2)}));
  CKV_ASSIGN_OR_RETURN(CacheReservation all, cache->Reserve(cache->Begin(), tokens));
  for (uint32_t layer = 0; layer < geometry.layers; ++layer)
    FillTimingValues(all.layer(layer), layer, geometry.dtype);
  return cache;
}

double TimeAttendHere(const PagedCache& cache, uint64_t tokens, uint32_t query_rows,
                      RowCaching caching, const TimingPace& pace, Clock& clock) {
  const Geometry& geometry = cache.geometry();
  const std::vector<uint16_t> q = TimingQueries(query_rows, geometry.d_qk);
  std::vector<float> o(size_t{query_rows} * geometry.d_v), m(query_rows), l(query_rows);
  AttentionPiece piece;
  piece.q = {q.data(), query_rows, geometry.d_qk};
  piece.out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  piece.precision = PrecisionOf(Precision::kDefault, PartialDtype::kBf16);
  WorkerPool pool(1);
  std::vector<double> all;
  const auto rows_of = [&](uint32_t layer) {
    RowView rows = cache.layer_rows(layer);
    rows.count = static_cast<uint32_t>(tokens);
    return rows;
  };
  const auto push_out = [&] {
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      const RowView rows = rows_of(layer);
      FlushFromCaches({rows.data, size_t{rows.count} * rows.stride_bytes});
    }
    return absl::OkStatus();
  };
  const auto attend_one = [&](uint32_t layer, bool counts) {
    piece.rows = rows_of(layer);
    const Instant begin = clock.Now();
    AttendPartials(AttentionShape::Of(geometry), {&piece, 1}, pool);
    if (counts) all.push_back(UsSince(begin, clock));
    return absl::OkStatus();
  };
  const absl::Status timed =
      caching == RowCaching::kCold
          ? CallCold(pace, geometry.layers, clock, push_out,
                     [&](uint32_t layer) { return attend_one(layer, /*counts=*/true); })
          : CallAtPace(pace, LayersOf(caching, geometry), clock, attend_one);
  CKV_CHECK(timed.ok());
  return TrimmedMean(std::move(all));
}

std::span<const RowCaching> CachingsOf(bool can_push_out) {
  static constexpr RowCaching kPlaces[] = {RowCaching::kAsLeft, RowCaching::kCached,
                                           RowCaching::kCold};
  return can_push_out ? std::span(kPlaces).last(2) : std::span(kPlaces).first(1);
}

LaneCalibrator::LaneCalibrator(Requester* requester, CalibrationCall call, Clock* clock)
    : requester_(requester), call_(std::move(call)), clock_(clock) {
  for (const uint32_t rows : call_.query_rows) {
    for (const RowCaching caching : CachingsOf(!call_.push_out.empty())) {
      for (const uint32_t chunk : {call_.few, call_.many})
        points_.push_back({.query_rows = rows, .chunk = chunk, .caching = caching});
    }
  }
}

absl::Status LaneCalibrator::Round() {
  for (size_t i = 0; i < part_count(); ++i) CKV_RETURN_IF_ERROR(Part(i));
  return absl::OkStatus();
}

absl::Status LaneCalibrator::Part(size_t i) {
  if (points_.empty()) return absl::InvalidArgumentError("calibrate: no query rows");
  TimingCall timing = {.corpus = call_.corpus,
                       .chunk = call_.many,
                       .wire = call_.wire,
                       .pace = call_.pace,
                       .deadline = call_.deadline};
  if (i == points_.size()) {
    if (cache_ == nullptr) {
      CKV_ASSIGN_OR_RETURN(cache_, CacheForTiming(call_.corpus->geometry,
                                                  call_.corpus->chunks[call_.many].token_count));
    }
    CKV_ASSIGN_OR_RETURN(const double fetch_us, TimeFetch(*requester_, timing, *clock_));
    CKV_ASSIGN_OR_RETURN(const double spliced_us,
                         TimeFetchInto(*requester_, timing, *cache_, *clock_));
    fetch_us_.push_back(fetch_us);
    spliced_us_.push_back(spliced_us);
    return absl::OkStatus();
  }
  Point& point = points_[i];
  timing.chunk = point.chunk;
  timing.query_rows = point.query_rows;
  timing.caching = point.caching;
  timing.push_out = call_.push_out;
  CKV_ASSIGN_OR_RETURN(point.timing, TimeRoute(*requester_, timing, *clock_));
  point.us.push_back(point.timing.us);
  point.compute_us.push_back(point.timing.compute_us);
  // Both times are of the same call, so a slow kernel cancels out.
  point.beside_us.push_back(point.timing.us - point.timing.compute_us);
  return absl::OkStatus();
}

double LaneCalibrator::LastUs(size_t i) const {
  if (i < points_.size()) return points_[i].us.empty() ? 0 : points_[i].us.back();
  return fetch_us_.empty() ? 0 : fetch_us_.back() + spliced_us_.back();
}

// Returns the share of a splice's time by which it lengthens a fetch. The share is 1 if nothing is
// rotated.
double LaneCalibrator::SpliceShare() const {
  const Geometry& geometry = call_.corpus->geometry;
  const double tokens = double(call_.corpus->chunks[call_.many].token_count);
  const double splice_us =
      geometry.layers * (call_.splice_per_layer_us + tokens * call_.splice_per_token_layer_us);
  if (!(splice_us > 0)) return 1;
  std::vector<double> longer_us;
  for (size_t i = 0; i < fetch_us_.size(); ++i) longer_us.push_back(spliced_us_[i] - fetch_us_[i]);
  return std::clamp(TrimmedMean(std::move(longer_us)) / splice_us, 0.0, 1.0);
}

LaneCalibration LaneCalibrator::Fit() const {
  CKV_CHECK(!fetch_us_.empty());
  LaneCalibration lane;
  std::vector<ComputeSample> compute;
  const Geometry& geometry = call_.corpus->geometry;
  const auto sized = [&](uint32_t chunk) {
    return SizedCalls{
        .read_bytes = double(call_.corpus->chunks[chunk].token_count) * geometry.row_bytes(),
        .calls = {}};
  };
  SizedCalls few = sized(call_.few), many = sized(call_.many);
  for (const Point& point : points_) {
    const bool cold = point.caching == RowCaching::kCold;
    RouteTiming timing = point.timing;
    timing.us = TrimmedMean(point.us);
    timing.compute_us = TrimmedMean(point.compute_us);
    compute.push_back({double(timing.query_rows), double(timing.tokens), timing.compute_us, cold});
    // Rows are in no cache in production.
    if (point.caching != RowCaching::kCached) {
      (point.chunk == call_.few ? few : many)
          .calls.push_back({.rows = double(timing.query_rows),
                            .bytes_out = double(timing.bytes_out),
                            .bytes_in = double(timing.bytes_in),
                            .compute_us = timing.compute_us,
                            .beside_us = TrimmedMean(point.beside_us) -
                                         timing.query_rows * call_.merge_per_row_us});
    }
    lane.timings.push_back(timing);
  }
  const FittedLane fitted =
      FitLane(few, many, FrameRowsOf(geometry, call_.wire == PartialDtype::kF32, call_.lane_shape),
              call_.cache_bytes);
  lane.fabric = fitted.fabric.constants;
  lane.wire_share = fitted.fabric.wire_share;
  lane.burst_bytes = fitted.fabric.burst_bytes;
  lane.cold_exchange = fitted.cold_exchange;
  lane.splice_share = SpliceShare();
  lane.holder = FitComputeCurve(compute);
  // A fetch that also splices writes into larger pages. If that is faster, a fetch without a splice
  // counts as equally fast.
  const double fetch_us = std::min(TrimmedMean(fetch_us_), TrimmedMean(spliced_us_));
  const double bytes =
      double(call_.corpus->chunks[call_.many].token_count) * geometry.layers * geometry.row_bytes();
  lane.fabric.fetch_bandwidth_bytes_per_s =
      std::clamp(bytes / std::max(fetch_us - lane.fabric.t_probe_us, fetch_us / 10) * 1e6,
                 LiveFabric::kBandwidthMin, LiveFabric::kBandwidthMax);
  return lane;
}

}  // namespace ckv
