// Measures what merging, attending and splicing cost on this machine. In order:
//   MergeUs   four partials into one; the fastest of several runs
//   AttendUs  many and few query rows over cold rows: what computing and reading a row cost
//   SpliceUs  rotated rows into scattered blocks of a cache; one block and many, for both constants
// Runs on the calling thread with a stream of one thread, so that results are costs of one core.

#include "client/paged/calibrate_here.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/bf16.h"
#include "attention/precision.h"
#include "client/holders/lane_pinning.h"
#include "client/paged/cache_flush.h"
#include "client/paged/paged_cache.h"
#include "client/paged/splice.h"
#include "client/paged/timing_values.h"
#include "proto/base/status.h"
#include "store/memory/huge_pages.h"

namespace ckv {
namespace {

constexpr int kRunCount = 5;
constexpr uint32_t kMergedRows = 16;  // one token of the narrowest model
constexpr uint32_t kParts = 4;
// About the rows of a chunk: 1.2 MB for DeepSeek. With fewer rows, the fixed cost of a call would
// dominate.
constexpr uint32_t kTokens = 1024;
// With one query row, every kernel waits for memory. With 64, computing takes longer than loading
// the rows, even on matrix units.
constexpr uint32_t kFewRows = 1, kManyRows = 64;
// A kernel without vectors takes 40 ms for 64 query rows. It gets only as many runs as it takes to
// ignore one that was interrupted.
constexpr Duration kAttendMax = std::chrono::milliseconds(5);
constexpr int kRunCountMin = 2;
constexpr uint32_t kSpliceTokens = 256;
constexpr uint32_t kRowSeed = 1;

class HereCalibrator {
 public:
  HereCalibrator(const Geometry& geometry, Clock& clock, ComputeStream& stream)
      : geometry_(geometry), clock_(clock), stream_(stream), backend_(stream.backend()) {}

  absl::StatusOr<double> MergeUs();
  absl::Status AttendUs(RequesterConstants& here);
  absl::Status SpliceUs(RequesterConstants& here);

 private:
  absl::StatusOr<BackendMemory> Filled(size_t bytes);
  absl::StatusOr<BackendMemory> Staged(std::span<const std::byte> bytes);
  absl::StatusOr<BackendMemory> Copied(std::span<const std::byte> bytes);
  absl::StatusOr<BackendMemory> Partials(uint32_t query_rows);
  absl::StatusOr<double> AttendUs(const RowView& rows, uint32_t query_rows);
  PartialView ViewOf(const BackendMemory& partials, uint32_t query_rows) const {
    return PartialIn(partials, 0, query_rows, geometry_.d_v);
  }
  absl::StatusOr<double> FastestUs(absl::FunctionRef<absl::Status()> run);

  const Geometry& geometry_;
  Clock& clock_;
  ComputeStream& stream_;
  Backend& backend_;
};

absl::StatusOr<double> HereCalibrator::FastestUs(absl::FunctionRef<absl::Status()> run) {
  Duration fastest = Duration::max();
  for (int i = 0; i < kRunCount; ++i) {
    const Instant begin = clock_.Now();
    CKV_RETURN_IF_ERROR(run());
    CKV_RETURN_IF_ERROR(stream_.Wait());
    fastest = std::min(fastest, clock_.Now() - begin);
  }
  return double(fastest.count()) / 1e3;
}

// Returns memory of the kind of a lane's slots, with these bytes.
absl::StatusOr<BackendMemory> HereCalibrator::Staged(std::span<const std::byte> bytes) {
  CKV_ASSIGN_OR_RETURN(const MemoryKind kind, LaneMemoryFor(&backend_));
  CKV_ASSIGN_OR_RETURN(BackendMemory memory, backend_.Allocate(kind, bytes.size()));
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  return memory;
}

// Returns the backend's own memory, with these bytes.
absl::StatusOr<BackendMemory> HereCalibrator::Copied(std::span<const std::byte> bytes) {
  CKV_ASSIGN_OR_RETURN(const BackendMemory staged, Staged(bytes));
  CKV_ASSIGN_OR_RETURN(BackendMemory memory, backend_.Allocate(backend_.home(), bytes.size()));
  const auto size = static_cast<uint32_t>(bytes.size());
  CKV_RETURN_IF_ERROR(backend_.Rotate(RopeRotation(RopeParams(), 0, 0),
                                      {staged.data(), 1, size, staged.kind()}, size,
                                      {memory.data(), memory.kind()}, stream_));
  CKV_RETURN_IF_ERROR(stream_.Wait());
  return memory;
}

// Returns the backend's own memory, with values that differ.
absl::StatusOr<BackendMemory> HereCalibrator::Filled(size_t bytes) {
  std::vector<std::byte> values(bytes);
  FillTimingValues(values, kRowSeed, geometry_.dtype);
  return Copied(values);
}

// Partials that are not empty: o, m and l are .5.
absl::StatusOr<BackendMemory> HereCalibrator::Partials(uint32_t query_rows) {
  const std::vector<float> values(PartialFloats(query_rows, geometry_.d_v), 0.5f);
  return Copied(std::as_bytes(std::span(values)));
}

absl::StatusOr<double> HereCalibrator::MergeUs() {
  CKV_ASSIGN_OR_RETURN(const BackendMemory part, Partials(kMergedRows));
  CKV_ASSIGN_OR_RETURN(const BackendMemory merged, Partials(kMergedRows));
  const std::vector<ConstPartialView> parts(kParts, ViewOf(part, kMergedRows));
  MergeJob job;
  job.order = MergeOrder::kInTurn;
  job.parts = parts;
  job.row_count = kMergedRows;
  job.d_v = geometry_.d_v;
  job.out = ViewOf(merged, kMergedRows);
  CKV_ASSIGN_OR_RETURN(const double us, FastestUs([&] {
                         return backend_.Merge({&job, 1}, stream_);
                       }));
  return us / (kMergedRows * kParts);
}

// Times an attend over rows as calls find those of a chunk: in memory and in no cache.
absl::StatusOr<double> HereCalibrator::AttendUs(const RowView& rows, uint32_t query_rows) {
  const std::vector<uint16_t> queries = TimingQueries(query_rows, geometry_.d_qk);
  CKV_ASSIGN_OR_RETURN(const BackendMemory q, Copied(std::as_bytes(std::span(queries))));
  CKV_ASSIGN_OR_RETURN(const BackendMemory partial, Partials(query_rows));
  AttentionPiece piece;
  piece.q = {reinterpret_cast<const uint16_t*>(q.data()), query_rows, geometry_.d_qk, q.kind()};
  piece.rows = rows;
  piece.out = ViewOf(partial, query_rows);
  // The precision for locally cached rows, unless a call sets another.
  piece.precision = PrecisionOf(Precision::kDefault, PartialDtype::kBf16);
  const AttentionShape shape = AttentionShape::Of(geometry_);
  Duration fastest = Duration::max(), all{0};
  for (int i = 0; i < kRunCount && (i < kRunCountMin || all < kAttendMax); ++i) {
    if (rows.memory == MemoryKind::kHost)
      FlushFromCaches({rows.data, size_t{rows.count} * rows.stride_bytes});
    const Instant begin = clock_.Now();
    CKV_RETURN_IF_ERROR(backend_.AttendPartials(shape, {&piece, 1}, stream_));
    CKV_RETURN_IF_ERROR(stream_.Wait());
    const Duration took = clock_.Now() - begin;
    fastest = std::min(fastest, took);
    all += took;
  }
  return double(fastest.count()) / 1e3;
}

// Rows in host memory are in huge pages, as in every store. With small pages, a core stops reading
// ahead at the end of each page, and one query row takes 1.5 times as long.
absl::Status HereCalibrator::AttendUs(RequesterConstants& here) {
  const size_t bytes = size_t{kTokens} * geometry_.row_bytes();
  const auto row_bytes = static_cast<uint32_t>(geometry_.row_bytes());
  absl::StatusOr<PagedMemory> huge = absl::UnavailableError("not host memory");
  if (backend_.home() == MemoryKind::kHost)
    huge = PagedMemory::Map(std::max(bytes, kHugePageBytes), PagePolicy::kAuto);
  BackendMemory other;
  RowView rows;
  if (huge.ok()) {
    FillTimingValues({huge->base(), bytes}, kRowSeed, geometry_.dtype);
    rows = {huge->base(), kTokens, row_bytes};
  } else {
    CKV_ASSIGN_OR_RETURN(other, Filled(bytes));
    rows = {other.data(), kTokens, row_bytes, other.kind()};
  }
  CKV_ASSIGN_OR_RETURN(const double many_us, AttendUs(rows, kManyRows));
  here.attend_per_row_token_us = many_us / (double{kManyRows} * kTokens);
  CKV_ASSIGN_OR_RETURN(const double few_us, AttendUs(rows, kFewRows));
  here.attend_floor.us_per_token = few_us / kTokens;
  return absl::OkStatus();
}

// Splices into blocks as in a cache that has been in use: no two are neighbours. Every run takes
// other blocks, so that none was just written. All pages are touched before, as in an engine's
// cache.
absl::Status HereCalibrator::SpliceUs(RequesterConstants& here) {
  if (geometry_.d_rope == 0 || geometry_.rope.style == RopeStyle::kNone) return absl::OkStatus();
  constexpr size_t kBlocks = kSpliceTokens / kCacheBlockTokens;
  const size_t block_bytes = size_t{kCacheBlockTokens} * geometry_.row_bytes();
  CKV_ASSIGN_OR_RETURN(const BackendMemory rows,
                       Staged(std::vector<std::byte>(kBlocks * block_bytes, std::byte{1})));
  CKV_ASSIGN_OR_RETURN(const BackendMemory layer, Filled(2 * kBlocks * kRunCount * block_bytes));
  const RopeRotation rotation = SpliceRotation(geometry_, 1);
  CacheBlock next = 0;
  const auto time = [&](size_t blocks) {
    return FastestUs([&] {
      std::array<CacheBlock, kBlocks> table{};
      for (size_t i = 0; i < blocks; ++i, next += 2) table[i] = next;
      return Splice(rotation, geometry_, {rows.data(), blocks * block_bytes},
                    {.layer = {layer.data(), layer.size()},
                     .table = std::span(table).first(blocks),
                     .block_rows = kCacheBlockTokens,
                     .memory = layer.kind()},
                    stream_, rows.kind());
    });
  };
  CKV_ASSIGN_OR_RETURN(const double many_us, time(kBlocks));
  next = 1;  // the blocks between
  CKV_ASSIGN_OR_RETURN(const double few_us, time(1));
  const double more_tokens = double{kSpliceTokens} - kCacheBlockTokens;
  here.splice_per_token_layer_us = std::max(0.0, (many_us - few_us) / more_tokens);
  here.splice_per_layer_us =
      std::max(0.0, few_us - kCacheBlockTokens * here.splice_per_token_layer_us);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RequesterConstants> CalibrateHere(const Geometry& geometry, Clock& clock,
                                                 Backend& backend) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<ComputeStream> stream,
                       backend.NewStream(/*thread_count=*/1));
  HereCalibrator calibrator(geometry, clock, *stream);
  RequesterConstants here;
  CKV_ASSIGN_OR_RETURN(here.merge_per_row_us, calibrator.MergeUs());
  CKV_RETURN_IF_ERROR(calibrator.AttendUs(here));
  CKV_RETURN_IF_ERROR(calibrator.SpliceUs(here));
  return here;
}

}  // namespace ckv
