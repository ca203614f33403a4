// Computes the weights of 3 to kNarrowRowsMax query rows. Compiled once per SIMD target and used if
// a vector has 16 lanes (kWide).
//
// mla_narrow.inl.h puts 16 keys in the lanes. Moving one value of each key into one vector costs
// 3.5 instructions per vector on the two ports that multiply. Here a vector is 4 query rows x 4
// keys. Gathering 4 keys into a 16-byte block takes 2 instructions. Loading a block into all four
// quarters of a vector uses neither of those ports. From three rows on this is less work. For one
// or two rows the unused lanes cost more.
//
// The sums have the same terms in the same order as in mla_tile.inl.h, so the bits are the same.
//
// Layouts, all f32; a group is 4 query rows, a quad 4 keys:
//   q        [d_qk][groups][4 rows][4]            each value repeated four times
//   keys     [quads][2][8][4][4 keys]             one panel: columns 32 a + 8 c + b at [a][b][c]
//   logits   [quads][groups][4 rows][4 keys]
//   weights  [rows][kKeyStride]                   as NarrowValues (mla_narrow.inl.h) reads them

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/mla_block.h"

#if defined(CKV_ATTENTION_MLA_QUAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CKV_ATTENTION_MLA_QUAD_INL_H_
#undef CKV_ATTENTION_MLA_QUAD_INL_H_
#else
#define CKV_ATTENTION_MLA_QUAD_INL_H_
#endif

#include "attention/mla_narrow.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

// Whether this file computes the weights of a block of this many query rows.
HWY_INLINE bool UsesQuads(uint32_t query_rows) {
  return kWide && query_rows >= kQuadRowsMin && query_rows <= kNarrowRowsMax;
}

#if HWY_TARGET != HWY_SCALAR

constexpr uint32_t kQuad = 4;    // keys of a block, and query rows of a group
constexpr uint32_t kStrip = 32;  // bf16 columns in one load of 64 bytes
constexpr uint32_t kVectorFloats = 16;
constexpr uint32_t kQuadFloats = kQuad * kPanelWidth;

// Returns a vector whose lane i is lane i / 4 of the block at `from`.
HWY_INLINE VF SpreadBlock(const float* from) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto lane = hn::ShiftRight<2>(hn::Iota(di, 0));
  return hn::TableLookupLanes(hn::LoadDup128(d, from), hn::IndicesFromVec(d, lane));
}

// Packs q in the layout above, for `groups` groups. `columns` is scratch memory for [d_qk][16].
HWY_INLINE void PackQuads(const std::byte* const* rows, uint32_t groups, uint32_t d_qk,
                          float* columns, float* q) {
  const DF d;
  PackRows(rows, kVectorFloats, d_qk, columns);
  for (uint32_t t = 0; t < d_qk; ++t, columns += kVectorFloats) {
    for (uint32_t g = 0; g < groups; ++g, q += kVectorFloats) {
      hn::Store(SpreadBlock(columns + g * kQuad), d, q);
    }
  }
}

// Loads columns [column, column + width) of the four keys at `rows` into their strip of a quad.
// Loads at most kStrip columns.
HWY_INLINE void TransposeStrip(const std::byte* const* rows, uint32_t column, uint32_t width,
                               float* keys) {
  const DF d;
  const DU du;
  const VU high = hn::Set(du, 0xffff0000u);
  const size_t offset = size_t{column} * 2;
  VU pairs[4];
  if (HWY_LIKELY(width >= kStrip)) {
    InterleaveFour(LoadU32Lanes(du, rows[0] + offset), LoadU32Lanes(du, rows[1] + offset),
                   LoadU32Lanes(du, rows[2] + offset), LoadU32Lanes(du, rows[3] + offset), pairs);
  } else {
    // Reads a copy, because the memory may end with the row.
    std::byte copies[kQuad][2 * kStrip] = {};
    for (uint32_t i = 0; i < kQuad; ++i) std::memcpy(copies[i], rows[i] + offset, width * 2);
    InterleaveFour(LoadU32Lanes(du, copies[0]), LoadU32Lanes(du, copies[1]),
                   LoadU32Lanes(du, copies[2]), LoadU32Lanes(du, copies[3]), pairs);
  }
  for (uint32_t k = 0; k < 4; ++k, keys += 2 * kVectorFloats) {
    hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(pairs[k])), d, keys);
    hn::Store(hn::BitCast(d, hn::And(pairs[k], high)), d, keys + kVectorFloats);
  }
}

// Transposes the keys of one register block, a quad at a time, while the previous block is
// computed. So the latency of their loads from L2 overlaps with products and not with other loads.
class NextQuads {
 public:
  // Takes columns [begin, begin + depth) of `quads` quads of `rows`, and writes them to `keys`.
  NextQuads(const std::byte* const* rows, uint32_t quads, uint32_t begin, uint32_t depth,
            float* keys)
      : rows_(rows), end_(rows + quads * kQuad), begin_(begin), depth_(depth), keys_(keys) {}

  HWY_INLINE void Step() {
    if (rows_ == end_) return;
    if (HWY_LIKELY(depth_ == kPanelWidth)) {
      TransposeStrip(rows_, begin_, kStrip, keys_);
      TransposeStrip(rows_, begin_ + kStrip, kStrip, keys_ + kStrip * kQuad);
    } else {
      for (uint32_t t = 0; t < depth_; t += kStrip) {
        TransposeStrip(rows_, begin_ + t, depth_ - t, keys_ + t * kQuad);
      }
    }
    rows_ += kQuad;
    keys_ += kQuadFloats;
  }
  HWY_INLINE void Finish() {
    while (rows_ != end_) Step();
  }

 private:
  const std::byte* const* rows_;
  const std::byte* const* end_;
  uint32_t begin_;
  uint32_t depth_;
  float* keys_;
};

// Multiplies kGroups groups of query rows by kQuads quads of keys over one panel; see LogitBlock.
template <uint32_t kGroups, uint32_t kQuads>
HWY_INLINE void QuadLogitBlock(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys,
                               const float* HWY_RESTRICT scales, uint32_t depth, bool first,
                               float* HWY_RESTRICT logits, NextQuads& next,
                               NextTilePrefetch& prefetch) {
  const DF d;
  VF sum[kGroups][kQuads];
#pragma GCC unroll 9
  for (uint32_t j = 0; j < kQuads; ++j) {
#pragma GCC unroll 3
    for (uint32_t g = 0; g < kGroups; ++g) sum[g][j] = hn::Zero(d);
  }
  for (uint32_t t = 0; t < depth; t += 8) {
    const float* key_at = keys + t / kStrip * kStrip * kQuad + t % kStrip / 8 * kQuad;
    prefetch.Step(kQuads / 2);  // half of the tile; the values prefetch the rest
    next.Step();
    const float* const q_end = q + size_t{std::min(8u, depth - t)} * kGroups * kVectorFloats;
    for (; q < q_end; q += kGroups * kVectorFloats, key_at += kVectorFloats) {
      VF row[kGroups];
#pragma GCC unroll 3
      for (uint32_t g = 0; g < kGroups; ++g) row[g] = hn::Load(d, q + g * kVectorFloats);
#pragma GCC unroll 9
      for (uint32_t j = 0; j < kQuads; ++j) {
        const VF key = hn::LoadDup128(d, key_at + j * kQuadFloats);
#pragma GCC unroll 3
        for (uint32_t g = 0; g < kGroups; ++g) sum[g][j] = hn::MulAdd(row[g], key, sum[g][j]);
      }
    }
  }
#pragma GCC unroll 9
  for (uint32_t j = 0; j < kQuads; ++j) {
    const VF scale = hn::LoadDup128(d, scales + j * kQuad);
#pragma GCC unroll 3
    for (uint32_t g = 0; g < kGroups; ++g) {
      float* to = logits + (j * kGroups + g) * kVectorFloats;
      hn::Store(first ? hn::Mul(sum[g][j], scale) : hn::MulAdd(sum[g][j], scale, hn::Load(d, to)),
                d, to);
    }
  }
}

// Computes the logits of every key of the tile. Keys from `count` to the end of a register block
// are repeated or stale: their logits are computed and never read.
template <uint32_t kGroups>
HWY_INLINE void QuadLogits(const AttentionShape& shape, const std::byte* const* rows,
                           uint32_t count, const BlockScratch& scratch, float* logits,
                           NextTilePrefetch& prefetch) {
  constexpr uint32_t kQuads = kGroups == 3 ? 6 : 9;  // 9, 18 and 18 accumulators in 32 registers
  static_assert(kTileRows % (kQuads * kQuad) == 0);
  const auto strips = [&](uint32_t begin, uint32_t j, float* keys) {
    const uint32_t quads = std::min(kQuads, RoundUp(count - j, kQuad) / kQuad);
    return NextQuads(rows + j, begin < shape.d_qk ? quads : 0, begin,
                     std::min(kPanelWidth, shape.d_qk - begin), keys);
  };
  float* keys = scratch.keys;
  float* next_keys = scratch.keys + kQuads * kQuadFloats;
  strips(0, 0, keys).Finish();
  for (uint32_t begin = 0; begin < shape.d_qk; begin += kPanelWidth) {
    const uint32_t depth = std::min(kPanelWidth, shape.d_qk - begin);
    const float* scales = scratch.scales + begin / kPanelWidth * kKeyStride;
    for (uint32_t j = 0; j < count; j += kQuads * kQuad) {
      const uint32_t next_j = j + kQuads * kQuad;
      NextQuads next = next_j < count ? strips(begin, next_j, next_keys)
                                      : strips(begin + kPanelWidth, 0, next_keys);
      QuadLogitBlock<kGroups, kQuads>(scratch.q + size_t{begin} * kGroups * kVectorFloats, keys,
                                      scales + j, depth, begin == 0,
                                      logits + j / kQuad * kGroups * kVectorFloats, next, prefetch);
      next.Finish();
      std::swap(keys, next_keys);
    }
  }
}

// Writes the four blocks of `weights` to four rows of `to`.
HWY_INLINE void StoreQuad(VF weights, float* to) {
  const hn::Half<DF> d8;
  const hn::Half<decltype(d8)> d4;
  const auto low = hn::LowerHalf(d8, weights), high = hn::UpperHalf(d8, weights);
  hn::Store(hn::LowerHalf(d4, low), d4, to);
  hn::Store(hn::UpperHalf(d4, low), d4, to + kKeyStride);
  hn::Store(hn::LowerHalf(d4, high), d4, to + 2 * kKeyStride);
  hn::Store(hn::UpperHalf(d4, high), d4, to + 3 * kKeyStride);
}

// Same as SoftmaxVector of mla_tile.inl.h, for the 4 query rows of one group. Works in place,
// except that weights are written to `weights`.
HWY_INLINE void QuadSoftmax(float scale_value, const uint32_t* visible, uint32_t count,
                            uint32_t groups, float* logits, float* weights, float* m, float* l,
                            float* alpha) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto scale = hn::Set(d, scale_value);
  const auto none = hn::Set(d, kEmptyM);
  const auto seen = hn::BitCast(di, SpreadBlock(reinterpret_cast<const float*>(visible)));
  const auto key = hn::And(hn::Iota(di, 0), hn::Set(di, 3));
  const uint32_t stride = groups * kVectorFloats;
  auto lane_max = none;
  for (uint32_t j = 0; j < count; j += kQuad) {
    float* at = logits + j / kQuad * stride;
    const auto index = hn::Add(key, hn::Set(di, static_cast<int32_t>(j)));
    const auto mask = hn::RebindMask(d, hn::Lt(index, seen));
    const auto logit = hn::IfThenElse(mask, hn::Mul(hn::Load(d, at), scale), none);
    hn::Store(logit, d, at);
    lane_max = hn::Max(lane_max, logit);
  }
  lane_max = hn::Max(lane_max, hn::Shuffle2301(lane_max));
  lane_max = hn::Max(lane_max, hn::Shuffle1032(lane_max));
  const auto old_max = SpreadBlock(m);
  const auto new_max = hn::Max(old_max, lane_max);
  // As in SoftmaxVector: if no key was seen, subtract 0.
  const auto base = hn::IfThenElse(hn::Eq(new_max, none), hn::Zero(d), new_max);
  const auto factor = ExpNonPositive(d, hn::Sub(old_max, base));
  auto sum = hn::Zero(d);
  for (uint32_t j = 0; j < count; j += kQuad) {
    const auto logit = hn::Load(d, logits + j / kQuad * stride);
    const auto weight = ExpNonPositive(d, hn::Sub(logit, base));
    StoreQuad(weight, weights + j);
    // Adds one key after the other, in every lane of the row's block.
    sum = hn::Add(sum, hn::Broadcast<0>(weight));
    sum = hn::Add(sum, hn::Broadcast<1>(weight));
    sum = hn::Add(sum, hn::Broadcast<2>(weight));
    sum = hn::Add(sum, hn::Broadcast<3>(weight));
  }
  alignas(64) float lanes[3][kVectorFloats];
  hn::Store(new_max, d, lanes[0]);
  hn::Store(hn::MulAdd(SpreadBlock(l), factor, sum), d, lanes[1]);
  hn::Store(factor, d, lanes[2]);
  for (uint32_t i = 0; i < kQuad; ++i) {
    m[i] = lanes[0][i * kQuad];
    l[i] = lanes[1][i * kQuad];
    alpha[i] = lanes[2][i * kQuad];
  }
}

// Writes the tile's weights to scratch.logits, like NarrowWeights.
template <uint32_t kGroups>
HWY_INLINE void QuadWeights(const AttentionShape& shape, const std::byte* const* rows,
                            uint32_t count, const uint32_t* visible, const BlockScratch& scratch,
                            float* alpha, const BlockState& state, NextTilePrefetch& prefetch) {
  float* logits = scratch.logits + size_t{kNarrowRowsMax} * kKeyStride;
  QuadLogits<kGroups>(shape, rows, count, scratch, logits, prefetch);
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t i = g * kQuad;
    QuadSoftmax(shape.softmax_scale, visible + i, count, kGroups, logits + g * kVectorFloats,
                scratch.logits + size_t{i} * kKeyStride, state.m + i, state.l + i, alpha + i);
  }
}

#endif  // not HWY_SCALAR

// Writes the weights of one tile, [rows][kKeyStride], to scratch.logits. Updates m and l, and
// writes the factor for each row's o to `alpha`.
HWY_INLINE void NarrowWeights(const AttentionShape& shape, uint32_t query_rows,
                              const std::byte* const* rows, uint32_t count, const uint32_t* visible,
                              const BlockScratch& scratch, float* alpha, const BlockState& state,
                              NextTilePrefetch& prefetch) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kWide) {
    if (UsesQuads(query_rows)) {
      if (query_rows <= 4) {
        return QuadWeights<1>(shape, rows, count, visible, scratch, alpha, state, prefetch);
      }
      if (query_rows <= 8) {
        return QuadWeights<2>(shape, rows, count, visible, scratch, alpha, state, prefetch);
      }
      return QuadWeights<3>(shape, rows, count, visible, scratch, alpha, state, prefetch);
    }
  }
#endif
  NarrowLogits(shape, query_rows, rows, count, scratch, prefetch);
  for (uint32_t i = 0; i < query_rows; ++i) {
    alpha[i] = NarrowSoftmax(shape.softmax_scale, visible[i], scratch.logits + i * kKeyStride,
                             state.m + i, state.l + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
