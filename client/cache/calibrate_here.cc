#include "client/cache/calibrate_here.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "attention/bf16.h"
#include "attention/grade.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/rope.h"
#include "client/cache/cold_rows.h"
#include "client/cache/splice.h"
#include "store/memory/huge_pages.h"

namespace ckv {
namespace {

constexpr int kRunCount = 5;
constexpr uint32_t kMergedRows = 16;  // one token of the narrowest model
constexpr uint32_t kParts = 4;
// About a chunk's rows: 1.2 MB of DeepSeek's. The fixed cost of a call would be most of fewer
// rows'.
constexpr uint32_t kTokens = 1024;
// One query row waits for memory on every kernel. 64 compute for longer than their rows take to
// come in, even on matrix units.
constexpr uint32_t kFewRows = 1, kManyRows = 64;
// A kernel without vectors takes 40 ms for 64 query rows: no more runs than it takes to leave out
// one with a pause in it.
constexpr Duration kAttendMax = std::chrono::milliseconds(5);
constexpr int kRunCountMin = 2;
constexpr uint32_t kSpliceTokens = 256;

double FastestUs(Clock& clock, absl::FunctionRef<void()> run) {
  Duration fastest = Duration::max();
  for (int i = 0; i < kRunCount; ++i) {
    const Instant begin = clock.Now();
    run();
    fastest = std::min(fastest, clock.Now() - begin);
  }
  return double(fastest.count()) / 1e3;
}

double MergeUs(const Geometry& geometry, Clock& clock) {
  std::vector<float> o(size_t{kMergedRows} * geometry.d_v, 0.5f), merged(o.size());
  std::vector<float> m(kMergedRows, 1.0f), l(kMergedRows, 2.0f), merged_m(kMergedRows),
      merged_l(kMergedRows);
  const std::vector<ConstPartialView> parts(
      kParts, ConstPartialView(o.data(), m.data(), l.data(), PartialDtype::kF32));
  const PartialView out = {merged.data(), merged_m.data(), merged_l.data(), PartialDtype::kF32};
  return FastestUs(clock, [&] { MergePartials(parts, kMergedRows, geometry.d_v, out); }) /
         (kMergedRows * kParts);
}

// As calls find a chunk's rows: in memory and in no cache.
double AttendUs(const Geometry& geometry, Clock& clock, std::span<const std::byte> rows,
                uint32_t query_rows) {
  const std::vector<uint16_t> q(size_t{query_rows} * geometry.d_qk, Bf16FromFloat(0.125f));
  std::vector<float> o(size_t{query_rows} * geometry.d_v), m(query_rows), l(query_rows);
  AttentionPiece piece;
  piece.q = {q.data(), query_rows, geometry.d_qk};
  piece.rows = {rows.data(), kTokens, geometry.row_bytes()};
  piece.out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  piece.grade =
      GradeOf(Grade::kDefault,
              PartialDtype::kBf16);  // the grade of near rows, unless a call asks for another
  WorkerPool pool(1);
  const AttentionShape shape = AttentionShape::Of(geometry);
  Duration fastest = Duration::max(), all{0};
  for (int i = 0; i < kRunCount && (i < kRunCountMin || all < kAttendMax); ++i) {
    TakeOutOfCaches(rows);
    const Instant begin = clock.Now();
    AttendPartials(shape, {&piece, 1}, pool);
    const Duration took = clock.Now() - begin;
    fastest = std::min(fastest, took);
    all += took;
  }
  return double(fastest.count()) / 1e3;
}

// Rows lie in huge pages, as in every store. With small pages, a core stops reading ahead at the
// end of each, and one query row takes half as long again.
void AttendUs(const Geometry& geometry, Clock& clock, RequesterConstants& here) {
  const size_t bytes = size_t{kTokens} * geometry.row_bytes();
  const absl::StatusOr<PagedMemory> memory =
      PagedMemory::Map(std::max(bytes, kHugePageBytes), PagePolicy::kAuto);
  std::vector<std::byte> small;
  if (!memory.ok()) small.resize(bytes);
  const std::span rows(memory.ok() ? memory->base() : small.data(), bytes);
  // Written, so that they are not all the kernel's one page of zeros. Zero bytes are valid rows of
  // every dtype, and times do not depend on values.
  std::memset(rows.data(), 0, rows.size());
  const double many_us = AttendUs(geometry, clock, rows, kManyRows);
  here.attend_per_row_token_us = many_us / (double{kManyRows} * kTokens);
  here.attend_floor.us_per_token = AttendUs(geometry, clock, rows, kFewRows) / kTokens;
}

// Into blocks of a cache that has been in use: no two are neighbours, and every run takes others,
// so that none was just written. Pages are touched before: an engine's cache has its memory.
void SpliceUs(const Geometry& geometry, Clock& clock, RequesterConstants& here) {
  if (geometry.d_rope == 0 || geometry.rope.style == RopeStyle::kNone) return;
  constexpr size_t kBlocks = kSpliceTokens / kCacheBlockTokens;
  const size_t block_bytes = size_t{kCacheBlockTokens} * geometry.row_bytes();
  const std::vector<std::byte> rows(kBlocks * block_bytes, std::byte{1});
  std::vector<std::byte> layer(2 * kBlocks * kRunCount * block_bytes, std::byte{1});
  const RopeRotation rotation = SpliceRotation(geometry, 1);
  CacheBlock next = 0;
  const auto time = [&](size_t blocks) {
    return FastestUs(clock, [&] {
      std::array<CacheBlock, kBlocks> table{};
      for (size_t i = 0; i < blocks; ++i, next += 2) table[i] = next;
      Splice(rotation, geometry, std::span(rows).first(blocks * block_bytes),
             {layer, std::span(table).first(blocks)});
    });
  };
  const double many_us = time(kBlocks);
  next = 1;  // the blocks between
  const double few_us = time(1);
  const double more_tokens = double{kSpliceTokens} - kCacheBlockTokens;
  here.splice_per_token_layer_us = std::max(0.0, (many_us - few_us) / more_tokens);
  here.splice_per_layer_us =
      std::max(0.0, few_us - kCacheBlockTokens * here.splice_per_token_layer_us);
}

}  // namespace

RequesterConstants CalibrateHere(const Geometry& geometry, Clock& clock) {
  RequesterConstants here;
  here.merge_per_row_us = MergeUs(geometry, clock);
  AttendUs(geometry, clock, here);
  SpliceUs(geometry, clock, here);
  return here;
}

}  // namespace ckv
