// The scores of index keys. IndexSearch cuts the keys into blocks, which the threads of its pool
// score and sift into their own best rows; the best of all threads are merged at the end.
// ScoreIndexKeys has vector lanes over heads, so that no sum depends on the vector's length: over
// the values of a key in order, then over 16 groups of heads, then over the groups as a tree.
// Everything before HWY_AFTER_NAMESPACE is compiled once for each target.

#include "attention/score/index_scores.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/mla_partial.h"
#include "attention/score/score_amx.h"
#include "attention/target/target_choice.h"
#include "proto/base/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/score/index_scores.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr uint32_t kGroupHeads = 16;  // no vector here is longer
constexpr uint32_t kKeysAtOnce = 4;

// The values of a key, and its scale.
float DecodeKey(const IndexShape& shape, const float* e4m3, const std::byte* key, float* values) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(key);
  switch (shape.dtype) {
    case IndexDtype::kBf16:
      for (uint32_t d = 0; d < shape.dim; ++d) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * d, sizeof(bits));
        values[d] = FloatFromBf16(bits);
      }
      return 1;
    case IndexDtype::kFp8:
      for (uint32_t d = 0; d < shape.dim; ++d) values[d] = e4m3[bytes[d]];
      break;
    case IndexDtype::kInt8:
      for (uint32_t d = 0; d < shape.dim; ++d) values[d] = static_cast<int8_t>(bytes[d]);
      break;
  }
  float scale;
  std::memcpy(&scale, bytes + shape.dim, sizeof(scale));
  return scale;
}

// Adds the weighted positive products of a group of heads with `count` keys to `sums`, [count][16].
void AddGroup(const IndexShape& shape, const float* q, const float* weights, const float* values,
              uint32_t heads, float* sums) {
  const hn::CappedTag<float, kGroupHeads> d;
  const size_t lanes = hn::Lanes(d);
  for (uint32_t h = 0; h < kGroupHeads; h += static_cast<uint32_t>(lanes)) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (uint32_t i = 0; i < shape.dim; ++i) {
      const auto q_i = hn::LoadU(d, q + size_t{i} * heads + h);
      s0 = hn::MulAdd(hn::Set(d, values[i]), q_i, s0);
      s1 = hn::MulAdd(hn::Set(d, values[kIndexDimMax + i]), q_i, s1);
      s2 = hn::MulAdd(hn::Set(d, values[2 * kIndexDimMax + i]), q_i, s2);
      s3 = hn::MulAdd(hn::Set(d, values[3 * kIndexDimMax + i]), q_i, s3);
    }
    const auto w = hn::LoadU(d, weights + h);
    const auto add = [&](uint32_t key, auto s) {
      float* const to = sums + key * kGroupHeads + h;
      hn::StoreU(hn::MulAdd(w, hn::Max(s, hn::Zero(d)), hn::LoadU(d, to)), d, to);
    };
    add(0, s0);
    add(1, s1);
    add(2, s2);
    add(3, s3);
  }
}

float TreeSum(float* sums) {
  for (uint32_t half = kGroupHeads / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void ScoreIndexKeysImpl(const IndexShape& shape, const float* e4m3, const float* q,
                        const float* weights, const RowView& keys, float* scores) {
  const uint32_t heads = (shape.heads + kGroupHeads - 1) / kGroupHeads * kGroupHeads;
  alignas(64) float values[kKeysAtOnce * kIndexDimMax];
  alignas(64) float sums[kKeysAtOnce * kGroupHeads];
  float scales[kKeysAtOnce] = {};
  for (uint32_t begin = 0; begin < keys.count; begin += kKeysAtOnce) {
    const uint32_t count = std::min(kKeysAtOnce, keys.count - begin);
    for (uint32_t i = 0; i < count; ++i)
      scales[i] = DecodeKey(shape, e4m3, keys.Row(begin + i), values + i * kIndexDimMax);
    for (uint32_t i = count; i < kKeysAtOnce; ++i)
      std::memset(values + i * kIndexDimMax, 0, shape.dim * sizeof(float));
    std::memset(sums, 0, sizeof(sums));
    for (uint32_t h = 0; h < heads; h += kGroupHeads)
      AddGroup(shape, q + h, weights + h, values, heads, sums);
    for (uint32_t i = 0; i < count; ++i)
      scores[begin + i] = TreeSum(sums + i * kGroupHeads) * (shape.scale * scales[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {
HWY_EXPORT(ScoreIndexKeysImpl);

namespace {

constexpr uint32_t kBlockKeys = 1024;  // 132 bytes each: half of a core's second cache

const float* E4m3Values() {
  static const auto* const values = [] {
    auto* const made = new std::array<float, 256>;
    for (uint32_t bits = 0; bits < 256; ++bits)
      (*made)[bits] = FloatFromE4m3(static_cast<uint8_t>(bits));
    return made;
  }();
  return values->data();
}

uint32_t PaddedHeads(const IndexShape& shape) { return (shape.heads + 15) / 16 * 16; }

}  // namespace

// One thread's best rows of each token, and the scores of a block.
struct IndexSearch::Worker {
  std::vector<TopRows> best;
  std::vector<float> scores;
};

IndexSearch::IndexSearch(WorkerPool* pool) : pool_(*pool), workers_(pool->thread_count()) {}

IndexSearch::~IndexSearch() = default;

void IndexSearch::Run(const IndexShape& shape, const IndexQueryView& queries,
                      std::span<const IndexKeyRun> runs, uint32_t k) noexcept {
  CKV_CHECK(shape.dim <= kIndexDimMax && shape.heads <= kIndexHeadsMax && k <= kIndexTopMax);
  const size_t heads = PaddedHeads(shape), token_floats = shape.dim * heads;
  const bool amx = KernelTarget() == kAmxTarget && AmxScores();
  const size_t token_tiles = amx ? AmxQueryHalves(shape) / std::size(TileQuery().halves) : 0;
  packed_.assign(queries.tokens * token_floats, 0);
  tiles_.resize(queries.tokens * token_tiles);
  weights_.assign(queries.tokens * heads, 0);
  for (uint32_t t = 0; t < queries.tokens; ++t) {
    PackIndexQuery(shape, queries, t, packed_.data() + t * token_floats);
    std::memcpy(weights_.data() + t * heads, queries.weights + size_t{t} * shape.heads,
                shape.heads * sizeof(float));
    if (amx) {
      AmxPackQuery(shape, packed_.data() + t * token_floats, tiles_[t * token_tiles].halves);
    }
  }
  blocks_.clear();
  for (const IndexKeyRun& run : runs) {
    for (uint32_t begin = 0; begin < run.keys.count; begin += kBlockKeys) {
      blocks_.push_back({run.keys.Rows(begin, std::min(kBlockKeys, run.keys.count - begin)),
                         run.first_row + begin});
    }
  }
  for (Worker& worker : workers_) {
    worker.scores.resize(kBlockKeys);
    worker.best.resize(queries.tokens);
    for (TopRows& best : worker.best) best.Reset(k);
  }
  pool_.Run(static_cast<uint32_t>(blocks_.size()), [&](uint32_t task, uint32_t index) {
    const IndexKeyRun& block = blocks_[task];
    Worker& worker = workers_[index];
    for (uint32_t t = 0; t < queries.tokens; ++t) {
      const float* const weights = weights_.data() + t * heads;
      if (amx) {
        AmxScoreKeys(shape, tiles_[t * token_tiles].halves, weights, block.keys,
                     worker.scores.data());
      } else {
        ScoreIndexKeys(shape, packed_.data() + t * token_floats, weights, block.keys,
                       worker.scores.data());
      }
      worker.best[t].Add(block.first_row, std::span(worker.scores).first(block.keys.count));
    }
  });
  best_.clear();
  for (uint32_t t = 0; t < queries.tokens; ++t) {
    TopRows& all = workers_.front().best[t];
    for (size_t i = 1; i < workers_.size(); ++i) all.Add(workers_[i].best[t]);
    best_.push_back(all.Finish());
  }
}

void ScoreIndexKeys(const IndexShape& shape, const float* q, const float* weights,
                    const RowView& keys, float* scores) noexcept {
  HWY_DYNAMIC_DISPATCH(ScoreIndexKeysImpl)(shape, E4m3Values(), q, weights, keys, scores);
}

void PackIndexQuery(const IndexShape& shape, const IndexQueryView& queries, uint32_t token,
                    float* q) noexcept {
  const uint32_t heads = PaddedHeads(shape);
  const auto* const from =
      reinterpret_cast<const uint8_t*>(queries.q + token * queries.token_bytes(shape));
  for (uint32_t h = 0; h < shape.heads; ++h) {
    for (uint32_t d = 0; d < shape.dim; ++d) {
      const size_t at = size_t{h} * shape.dim + d;
      uint16_t bits;
      if (queries.dtype == IndexQueryDtype::kBf16) std::memcpy(&bits, from + 2 * at, sizeof(bits));
      q[size_t{d} * heads + h] =
          queries.dtype == IndexQueryDtype::kBf16 ? FloatFromBf16(bits) : E4m3Values()[from[at]];
    }
  }
}

}  // namespace ckv
#endif  // HWY_ONCE
