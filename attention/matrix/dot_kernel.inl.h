// Partial attention over spans of keys with VDPBF16PS, which adds two bf16 products to each of 16
// f32 sums. On Zen 4 and Zen 5 it has twice the rate of f32 multiply-adds.
//
// For each span:
//   logits    query rows in lanes times broadcast pairs of a key's columns
//   softmax   replaces the logits by weights, [key][16 query rows]
//   values    columns in lanes times broadcast weights, then folded into the state
//
// The precisions exact and wire multiply f32 weights by f32 values with multiply-adds. Splitting a
// weight into two terms would take as many instructions, and three terms half as many again. The
// precision fast rounds weights to bf16 and processes two keys at once.
//
// Instructions per key and 16 query rows, two per cycle on Zen 5: DeepSeek's logits take 288, its
// exact values 512, its fast values 256. The vector kernel takes 576 + 512.
//
// matrix_dot.cc includes this fragment after span_fold.inl.h.

#pragma once

namespace ckv::matrix {

template <class L, bool kFast>
class DotKernel {
  using F = typename L::F;
  using I = typename L::I;
  static constexpr uint32_t kTileLogits = kSpanKeys * 16;
  static_assert(kTileLogits * kBlockRowsMax / 16 <= kBlockRowsMax * kSpanKeys / 2 * kTermsMax,
                "logits reuse the memory of a tile unit's weights");
  static constexpr int kExpTerms = kFast ? 1 : 3;  // WeightExp::Of
  // Each logit is computed as sums over 192 columns, each from zero, which are then added. One
  // chain over all columns would exceed the error bound of AttendPartials.
  static constexpr uint32_t kChainSteps = 6;
  // Prefetches every line. On Zen 5, prefetching every other line took 1.6 times as long, for one
  // query row over uncached rows.
  static constexpr uint32_t kPrefetchStride = 64;
  // Up to this many query rows, lanes are keys. More rows would take as long as 16 rows in lanes.
  static constexpr uint32_t kFewRowsMax = 8;

 public:
  DotKernel(const AttentionShape& shape, const RowBlock& block, const Workspace& work)
      : shape_(shape),
        block_(block),
        work_(work),
        logits_(reinterpret_cast<float*>(work.weights)),
        steps_(Workspace::Width(shape) / kStepColumns),
        tiles_(block.packed_rows() / 16),
        chunks_((shape.d_v + kStepColumns - 1) / kStepColumns),
        exp_(shape.softmax_scale) {}

  // Attends a span whose rows are ready, and prefetches the rows `ahead`.
  void Add(const Span* span, const std::byte* const* ahead, uint32_t ahead_count) {
    keys_ = RoundUp(span->count, 16);
    prefetch_.Set(ahead, ahead_count, RowBytes(shape_), PrefetchSteps(*span));
    Logits(*span);
    for (uint32_t tile = 0; tile < tiles_; ++tile) Softmax(*span, tile);
    Values(*span);
  }
  // No work is pending between spans.
  void FinishLowTerms() {}
  void Finish() {}

 private:
  static HWY_INLINE F Dot(F sum, I pairs, I others) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pairs),
                            reinterpret_cast<__m512bh>(others));
  }
  static HWY_INLINE I Word(const void* at) {
    uint32_t word;  // rows may be at any address
    std::memcpy(&word, at, sizeof(word));
    return L::SetI(word);
  }
  static const std::byte* RowOf(const Span& span, uint32_t key, uint32_t term) {
    const KeyGroup& group = span.keys[key / kGroupKeys];
    return reinterpret_cast<const std::byte*>(group.rows[term]) +
           size_t{key % kGroupKeys} * group.stride_bytes;
  }

  // ---- logits

  // Returns how often `span` calls prefetch_.Step: once per 32 columns of each block of logits, and
  // once per 32 keys of each sum of values.
  uint32_t PrefetchSteps(const Span& span) const {
    const uint32_t blocks = tiles_ / 2 * (keys_ / 8) + tiles_ % 2 * (keys_ / 16);
    const uint32_t rows = block_.count, some = (chunks_ + 1) / 2;
    const uint32_t sums =
        rows == 1 ? (chunks_ + 7) / 8 : rows / 8 * chunks_ + (rows % 8 / 4 + rows % 4) * some;
    return blocks * span.row_terms * steps_ + sums * (RoundUp(keys_, kGroupKeys) / kGroupKeys);
  }

  void Logits(const Span& span) {
    const uint32_t* queries = work_.queries;
    uint32_t tile = 0;
    for (; tile + 2 <= tiles_; tile += 2, queries += size_t{2} * steps_ * 256) {
      for (uint32_t key = 0; key < keys_; key += 8)
        LogitBlock<8, 2>(span, key, queries, logits_ + size_t{tile} * kTileLogits + key * 16);
    }
    if (tile == tiles_) return;
    float* const to = logits_ + size_t{tile} * kTileLogits;
    for (uint32_t key = 0; key < keys_; key += 16) {
      if (block_.count == 1)
        FewLogits<1>(span, key, queries, to + key * 16);
      else if (block_.count <= 4)
        FewLogits<4>(span, key, queries, to + key * 16);
      else if (block_.count <= kFewRowsMax)
        FewLogits<8>(span, key, queries, to + key * 16);
      else
        LogitBlock<16, 1>(span, key, queries, to + key * 16);
    }
  }

  // Computes the logits of kKeys keys and kTiles tiles of query rows.
  template <uint32_t kKeys, uint32_t kTiles>
  HWY_NOINLINE void LogitBlock(const Span& span, uint32_t key, const uint32_t* queries, float* to) {
    const size_t stride = span.keys[key / kGroupKeys].stride_bytes;
    for (uint32_t t = 0; t < kTiles; ++t) {
      for (uint32_t j = 0; j < kKeys; ++j) L::Store(to + t * kTileLogits + 16 * j, L::Set(0));
    }
    for (uint32_t term = span.row_terms; term-- > 0;) {
      const std::byte* const keys = RowOf(span, key, term);
      for (uint32_t begin = 0; begin < steps_; begin += kChainSteps) {
        LogitChain<kKeys, kTiles>(keys, stride, queries, begin,
                                  std::min(steps_, begin + kChainSteps), to);
      }
    }
  }

  template <uint32_t kKeys, uint32_t kTiles>
  HWY_INLINE void LogitChain(const std::byte* keys, size_t stride, const uint32_t* queries,
                             uint32_t begin, uint32_t end, float* to) {
    F sum[kKeys][kTiles];
#pragma GCC unroll 16
    for (uint32_t j = 0; j < kKeys; ++j) {
#pragma GCC unroll 2
      for (uint32_t t = 0; t < kTiles; ++t) sum[j][t] = L::Set(0);
    }
    for (uint32_t step = begin; step < end; ++step) {
      prefetch_.Step();
      for (uint32_t pair = step * 16; pair < step * 16 + 16; ++pair) {
        I q[kTiles];
#pragma GCC unroll 2
        for (uint32_t t = 0; t < kTiles; ++t)
          q[t] = L::LoadI(queries + size_t{t} * steps_ * 256 + pair * 16);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < kKeys; ++j) {
          const I word = Word(keys + j * stride + pair * 4);
#pragma GCC unroll 2
          for (uint32_t t = 0; t < kTiles; ++t) sum[j][t] = Dot(sum[j][t], word, q[t]);
        }
      }
    }
#pragma GCC unroll 16
    for (uint32_t j = 0; j < kKeys; ++j) {
#pragma GCC unroll 2
      for (uint32_t t = 0; t < kTiles; ++t) {
        float* const at = to + t * kTileLogits + 16 * j;
        L::Store(at, L::Add(L::Load(at), sum[j][t]));
      }
    }
  }

  // Computes the same sums for up to kRows query rows, with 16 keys in lanes.
  template <uint32_t kRows>
  HWY_NOINLINE void FewLogits(const Span& span, uint32_t key, const uint32_t* queries, float* to) {
    const size_t stride = span.keys[key / kGroupKeys].stride_bytes;
    alignas(64) float logits[16][16] = {};
    for (uint32_t term = span.row_terms; term-- > 0;) {
      const std::byte* const keys = RowOf(span, key, term);
      for (uint32_t begin = 0; begin < steps_; begin += kChainSteps) {
        F sum[kRows];
#pragma GCC unroll 8
        for (F& one : sum) one = L::Set(0);
        const uint32_t end = std::min(steps_, begin + kChainSteps);
        for (uint32_t step = begin; step < end; ++step) {
          prefetch_.Step();
          I columns[16];
          L::LoadTransposed(keys + step * 64, stride, columns);
#pragma GCC unroll 16
          for (uint32_t pair = 0; pair < 16; ++pair) {
#pragma GCC unroll 8
            for (uint32_t i = 0; i < kRows; ++i)
              sum[i] = Dot(sum[i], Word(queries + (step * 16 + pair) * 16 + i), columns[pair]);
          }
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < kRows; ++i)
          L::Store(logits[i], L::Add(L::Load(logits[i]), sum[i]));
      }
    }
    L::Transpose(reinterpret_cast<const uint32_t*>(&logits[0][0]), 16,
                 reinterpret_cast<uint32_t*>(to));
  }

  // ---- softmax

  // Replaces a tile's logits by weights: f32, or bf16 pairs of two keys.
  HWY_NOINLINE void Softmax(const Span& span, uint32_t tile) {
    float* const at = logits_ + size_t{tile} * kTileLogits;
    const F max = span.all_see_all ? MaxOf(at) : Mask(span, tile, at);
    const F base = SpanFold<L>::BaseOf(max);
    fold_.Begin(exp_, span.state, tile * 16, max);
    // Two sums of l: keys 2k and 2k + 1 are added to sums[k % 2].
    F sums[2] = {L::Set(0), L::Set(0)};
    for (uint32_t pair = 0; pair < keys_ / 2; ++pair) {
      F weights[2];
#pragma GCC unroll 2
      for (uint32_t i = 0; i < 2; ++i) {
        const F logit = L::Load(at + (2 * pair + i) * 16);
        weights[i] = exp_.template Of<kExpTerms>(L::Sub(logit, base));
      }
      if constexpr (kFast) {
        I even, odd;
        weights[0] = SplitWeight<L, 1>(weights[0], &even);
        weights[1] = SplitWeight<L, 1>(weights[1], &odd);
        L::StoreI(at + pair * 16, L::PairUp(even, odd));
      } else {
        L::Store(at + 2 * pair * 16, weights[0]);
        L::Store(at + (2 * pair + 1) * 16, weights[1]);
      }
      sums[pair % 2] = L::Add(sums[pair % 2], L::Add(weights[0], weights[1]));
    }
    fold_.End(span.state, tile * 16, max, L::Add(sums[0], sums[1]));
  }

  F MaxOf(const float* at) const {
    F max = L::Set(kEmptyM);
    for (uint32_t j = 0; j < keys_; ++j) max = L::Max(L::Load(at + 16 * j), max);
    return max;
  }

  // Sets logits of keys that a query row does not see to -inf, so that their weight is 0. Returns
  // the maxima.
  F Mask(const Span& span, uint32_t tile, float* at) const {
    const I seen = L::LoadI(&span.seen[tile * 16]);
    F max = L::Set(kEmptyM);
    for (uint32_t j = 0; j < keys_; ++j) {
      const F logit = L::Select(L::LessI(L::SetI(j), seen), L::Load(at + 16 * j), L::Set(kEmptyM));
      L::Store(at + 16 * j, logit);
      max = L::Max(logit, max);
    }
    return max;
  }

  // ---- values

  // Processes 64 columns of the span's keys at a time: they stay in L1 while all query rows use
  // them.
  void Values(const Span& span) {
    if (block_.count == 1) return ValuesOf<1, 8>(span, 0, 0, chunks_);
    for (uint32_t chunk = 0; chunk < chunks_; chunk += 2) {
      const uint32_t end = std::min(chunk + 2, chunks_);
      uint32_t row = 0;
      for (; row + 8 <= block_.count; row += 8) ValuesOf<8, 1>(span, row, chunk, end);
      if (row + 4 <= block_.count) {
        ValuesOf<4, 2>(span, row, chunk, end);
        row += 4;
      }
      for (; row < block_.count; ++row) ValuesOf<1, 2>(span, row, chunk, end);
    }
  }

  // Computes values of kRows query rows from `row` on, for the 32-column chunks [begin, end).
  template <uint32_t kRows, uint32_t kChunks>
  HWY_INLINE void ValuesOf(const Span& span, uint32_t row, uint32_t begin, uint32_t end) {
    for (; begin + kChunks <= end; begin += kChunks) Sum<kRows, kChunks>(span, row, begin);
    if constexpr (kChunks > 1) {
      for (; begin < end; ++begin) Sum<kRows, 1>(span, row, begin);
    }
  }

  template <uint32_t kRows, uint32_t kChunks>
  HWY_INLINE void Sum(const Span& span, uint32_t row, uint32_t chunk) {
    if (span.row_terms == 1)
      SumTerms<kRows, kChunks, 1>(span, row, chunk);
    else
      SumTerms<kRows, kChunks, kRowTermsMax>(span, row, chunk);
  }

  // Sums weights times values over the span's keys, and folds the sums into the state.
  template <uint32_t kRows, uint32_t kChunks, uint32_t kRowTerms>
  HWY_NOINLINE void SumTerms(const Span& span, uint32_t row, uint32_t chunk) {
    F low[kRows][kChunks], high[kRows][kChunks];
    const float* const weights = logits_ + size_t{row / 16} * kTileLogits + row % 16;
    if constexpr (kFast)
      FastSums<kRows, kChunks, kRowTerms>(span, weights, chunk, low, high);
    else
      ExactSums<kRows, kChunks, kRowTerms>(span, weights, chunk, low, high);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (uint32_t c = 0; c < kChunks; ++c)
        FoldSums(span, row + i, chunk + c, low[i][c], high[i][c]);
    }
  }

  // Sums each half of a span from zero, then adds the two. Over rows with a mean of 1, the error of
  // one chain of 128 keys would be 1.2 times the bound of AttendPartials.
  template <uint32_t kRows, uint32_t kChunks, uint32_t kRowTerms>
  HWY_INLINE void ExactSums(const Span& span, const float* weights, uint32_t chunk,
                            F (&low)[kRows][kChunks], F (&high)[kRows][kChunks]) {
    const uint32_t half = std::min(keys_, kSpanKeys / 2);
    HalfSums<kRows, kChunks, kRowTerms>(span, 0, half, weights, chunk, low, high);
    F second_low[kRows][kChunks], second_high[kRows][kChunks];
    if (half < keys_) {
      HalfSums<kRows, kChunks, kRowTerms>(span, half, keys_, weights, chunk, second_low,
                                          second_high);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (uint32_t c = 0; c < kChunks; ++c) {
        if (half < keys_) {
          low[i][c] = L::Add(low[i][c], second_low[i][c]);
          high[i][c] = L::Add(high[i][c], second_high[i][c]);
        }
        const F even = low[i][c], odd = high[i][c];
        L::Zip(even, odd, &low[i][c], &high[i][c]);
      }
    }
  }

  // Sums over the keys [begin, end), from zero. Writes even columns to sum_low, odd ones to
  // sum_high.
  template <uint32_t kRows, uint32_t kChunks, uint32_t kRowTerms>
  HWY_NOINLINE void HalfSums(const Span& span, uint32_t begin, uint32_t end, const float* weights,
                             uint32_t chunk, F (&sum_low)[kRows][kChunks],
                             F (&sum_high)[kRows][kChunks]) {
    F low[kRows][kChunks], high[kRows][kChunks];  // in registers
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (uint32_t c = 0; c < kChunks; ++c) low[i][c] = high[i][c] = L::Set(0);
    }
    const I upper = L::SetI(0xffff0000u);
    const float* w = weights + begin * 16;
    for (uint32_t key = begin; key < end; key += kGroupKeys) {
      const KeyGroup& group = span.keys[key / kGroupKeys];
      const auto* row = reinterpret_cast<const std::byte*>(group.rows[0] + chunk * kStepColumns);
      const uint32_t count = std::min(kGroupKeys, end - key);
      prefetch_.Step();
      for (uint32_t j = 0; j < count; ++j, row += group.stride_bytes, w += 16) {
        F even[kChunks], odd[kChunks];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < kChunks; ++c) {
          const I pairs = L::LoadOnce(row + c * 64);
          even[c] = L::AsF(L::template ShiftLeft<16>(pairs));
          odd[c] = L::AsF(L::AndI(pairs, upper));
          if constexpr (kRowTerms > 1) AddLowTerms(group, j, chunk + c, &even[c], &odd[c]);
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < kRows; ++i) {
          const F weight = L::Set(w[i]);
#pragma GCC unroll 8
          for (uint32_t c = 0; c < kChunks; ++c) {
            low[i][c] = L::MulAdd(weight, even[c], low[i][c]);
            high[i][c] = L::MulAdd(weight, odd[c], high[i][c]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (uint32_t c = 0; c < kChunks; ++c) {
        sum_low[i][c] = low[i][c];
        sum_high[i][c] = high[i][c];
      }
    }
  }

  // Adds the low terms of an fp8 row's values to their first term. The sum is exact.
  static HWY_INLINE void AddLowTerms(const KeyGroup& group, uint32_t j, uint32_t chunk, F* even,
                                     F* odd) {
    const I upper = L::SetI(0xffff0000u);
    F e = L::Set(0), o = L::Set(0);
    for (uint32_t term = kRowTermsMax; term-- > 1;) {
      const auto* const row = reinterpret_cast<const std::byte*>(group.rows[term]) +
                              j * group.stride_bytes + size_t{chunk} * 64;
      const I pairs = L::LoadI(row);
      e = L::Add(e, L::AsF(L::template ShiftLeft<16>(pairs)));
      o = L::Add(o, L::AsF(L::AndI(pairs, upper)));
    }
    *even = L::Add(*even, e);
    *odd = L::Add(*odd, o);
  }

  // Sums over the keys in order, low terms of rows first, from zero. Writes the columns to `low`
  // and `high` in the order of Lanes::Interleave.
  template <uint32_t kRows, uint32_t kChunks, uint32_t kRowTerms>
  HWY_INLINE void FastSums(const Span& span, const float* weights, uint32_t chunk,
                           F (&low)[kRows][kChunks], F (&high)[kRows][kChunks]) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (uint32_t c = 0; c < kChunks; ++c) low[i][c] = high[i][c] = L::Set(0);
    }
    for (uint32_t term = kRowTerms; term-- > 0;) AddTerm(span, term, weights, chunk, low, high);
  }

  template <uint32_t kRows, uint32_t kChunks>
  HWY_INLINE void AddTerm(const Span& span, uint32_t term, const float* weights, uint32_t chunk,
                          F (&low)[kRows][kChunks], F (&high)[kRows][kChunks]) {
    const float* w = weights;
    for (uint32_t key = 0; key < keys_; key += kGroupKeys) {
      const KeyGroup& group = span.keys[key / kGroupKeys];
      const auto* row = reinterpret_cast<const std::byte*>(group.rows[term] + chunk * kStepColumns);
      const uint32_t pairs = std::min(kGroupKeys, keys_ - key) / 2;
      prefetch_.Step();
      for (uint32_t pair = 0; pair < pairs; ++pair, row += 2 * group.stride_bytes, w += 16) {
        I lo[kChunks], hi[kChunks];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < kChunks; ++c) {
          L::PairRows(L::LoadI(row + c * 64), L::LoadI(row + group.stride_bytes + c * 64), &lo[c],
                      &hi[c]);
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < kRows; ++i) {
          const I weight = Word(w + i);
#pragma GCC unroll 8
          for (uint32_t c = 0; c < kChunks; ++c) {
            low[i][c] = Dot(low[i][c], weight, lo[c]);
            high[i][c] = Dot(high[i][c], weight, hi[c]);
          }
        }
      }
    }
  }

  // Folds the sums of one row and chunk into o. A sum of only tiny negative products is -0. Keys of
  // weight 0 after them, which depend on a neighbour's limit, turn it to +0. So 0 is always added.
  HWY_INLINE void FoldSums(const Span& span, uint32_t row, uint32_t chunk, F low, F high) const {
    if (fold_.fate[row] == kSkip) return;
    float* const o = span.state.o +
                     (size_t{row / 16} * SpanState::ColumnTiles(shape_) + 2 * chunk) * 256 +
                     row % 16 * 16;
    const F from = L::Set(fold_.from[row]), to = L::Set(fold_.to[row]);
    low = L::Mul(L::Add(low, L::Set(0)), from);
    high = L::Mul(L::Add(high, L::Set(0)), from);
    if (fold_.fate[row] == kFold) {
      low = L::MulAdd(L::Load(o), to, low);
      high = L::MulAdd(L::Load(o + 256), to, high);
    }
    L::Store(o, low);
    L::Store(o + 256, high);
  }

  const AttentionShape& shape_;
  const RowBlock& block_;
  const Workspace& work_;
  float* const logits_;  // [tile][kSpanKeys][16 query rows]
  const uint32_t steps_;
  const uint32_t tiles_;
  const uint32_t chunks_;
  const WeightExp<L> exp_;
  uint32_t keys_ = 0;  // the span's keys, rounded up to a multiple of 16
  RowPrefetch<L, kPrefetchStride> prefetch_;
  SpanFold<L> fold_;
};

}  // namespace ckv::matrix
