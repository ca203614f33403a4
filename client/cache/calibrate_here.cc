#include "client/cache/calibrate_here.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/bf16.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/rope.h"
#include "client/cache/splice.h"

namespace ckv {
namespace {

constexpr int kRunCount = 5;
constexpr uint32_t kQueryRows = 16;  // one token of the narrowest model
// About a chunk's rows: 1.2 MB of DeepSeek's. A few rows would lie in a cache, and the fixed cost
// of a call would be most of theirs.
constexpr uint32_t kTokens = 1024;
constexpr uint32_t kParts = 4;
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
  std::vector<float> o(size_t{kQueryRows} * geometry.d_v, 0.5f), merged(o.size());
  std::vector<float> m(kQueryRows, 1.0f), l(kQueryRows, 2.0f), merged_m(kQueryRows),
      merged_l(kQueryRows);
  const std::vector<ConstPartialView> parts(
      kParts, ConstPartialView(o.data(), m.data(), l.data(), PartialDtype::kF32));
  const PartialView out = {merged.data(), merged_m.data(), merged_l.data(), PartialDtype::kF32};
  return FastestUs(clock, [&] { MergePartials(parts, kQueryRows, geometry.d_v, out); }) /
         (kQueryRows * kParts);
}

double AttendUs(const Geometry& geometry, Clock& clock) {
  // Zero bytes are valid rows of every dtype; the kernel's time does not depend on values.
  const std::vector<std::byte> rows(size_t{kTokens} * geometry.row_bytes());
  const std::vector<uint16_t> q(size_t{kQueryRows} * geometry.d_qk, Bf16FromFloat(0.125f));
  std::vector<float> o(size_t{kQueryRows} * geometry.d_v), m(kQueryRows), l(kQueryRows);
  AttentionPiece piece;
  piece.q = {q.data(), kQueryRows, geometry.d_qk};
  piece.rows = {rows.data(), kTokens, geometry.row_bytes()};
  piece.out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  WorkerPool pool(1);
  const AttentionShape shape = AttentionShape::Of(geometry);
  return FastestUs(clock,
                   [&] {
                     AttendPartials(shape, {&piece, 1}, pool);
                   }) /
         (double{kQueryRows} * kTokens);
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
  here.attend_per_row_token_us = AttendUs(geometry, clock);
  SpliceUs(geometry, clock, here);
  return here;
}

}  // namespace ckv
