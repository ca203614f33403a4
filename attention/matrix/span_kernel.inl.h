// Partial attention over spans of keys on a tile unit, or on a model of one.
//
// For each span and item of the block (span_layout.h):
//   logits    queries x keys; meanwhile the softmax of the previous item
//   softmax   each span has its own maximum; weights are split into terms and transposed
//   values    starts when the weights of all items are ready. 32 columns of the keys at a time are
//             interleaved into a slice that stays in L1, while the previous slice is multiplied.
//             Sums are folded into the state like merged partials: o = o * to + sums * from
// The products use the tile unit and everything else the vector unit, so their instructions are
// interleaved. The values of one span are multiplied after the first logits of the next.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// span_fold.inl.h.

#pragma once

namespace ckv::matrix {

template <class Products, int kTiles, int kTerms, int kSteps>
class SpanKernel {
  using L = typename Products::Lanes;
  using F = typename L::F;
  using I = typename L::I;
  // Each step processes two sub-blocks of 32 keys x 16 rows: one group of keys for two tiles, or
  // two groups for one tile.
  static constexpr uint32_t kGroupsAtOnce = kTiles == 2 ? 1 : 2;
  static constexpr uint32_t kChunksAtOnce = kTiles == 2 ? 1 : 2;
  // Up to this many query rows are faster without tiles. One row takes 132 us instead of 215; four
  // rows take 290 us instead of 195.
  static constexpr uint32_t kFewRowsMax = 1;
  // Prefetches every other line. On Sapphire Rapids, prefetching every line took 15 % longer over
  // uncached rows, and 9 % longer over warm ones.
  static constexpr uint32_t kPrefetchStride = 128;
  static constexpr uint32_t kItemWeights = kTiles * kTerms * kSpanGroups * 256;
  static constexpr size_t kSliceWords = size_t{kRowTermsMax} * 2 * kSpanGroups * 512;

 public:
  SpanKernel(const AttentionShape& shape, const RowBlock& block, const Workspace& work)
      : shape_(shape),
        block_(block),
        work_(work),
        steps_(static_cast<int>(Workspace::Width(shape) / kStepColumns)),
        items_(RoundUp(block.packed_rows() / 16, kTiles) / kTiles),
        exp_(shape.softmax_scale) {}

  // Adds a span whose rows are ready, and prefetches the rows `ahead`. `span` and its keys must
  // stay unchanged until the next Add or Finish has returned.
  void Add(const Span* span, const std::byte* const* ahead, uint32_t ahead_count) {
    prefetch_.Set(ahead, ahead_count, RowBytes(shape_), StepsOf(*span));
    for (uint32_t item = 0; item < items_; ++item) {
      F max[kTiles];
      float* const logits = work_.logits[logits_turn_];
      if (pending_.on) {
        Begin();
        LogitsOf<true>(*span, item, logits, max);
        End();
        if (item == 0) Values(*last_);
      } else {
        LogitsOf<false>(*span, item, logits, max);
      }
      if (!span->all_see_all) MaskLogits(*span, item, logits, max);
      Suspend(span, item, logits, max);
      logits_turn_ ^= 1;
    }
    last_ = span;
  }

  // Calls Finish if the rows of the last span have low terms.
  void FinishLowTerms() {
    if (last_ != nullptr && last_->row_terms > 1) Finish();
  }
  // Completes the last span.
  void Finish() {
    if (last_ == nullptr) return;
    Begin();
    SoftmaxRest(0, 0);
    End();
    Values(*last_);
    last_ = nullptr;
  }

 private:
  // The pending softmax of an item whose logits are computed.
  struct Pending {
    bool on = false;
    const Span* span = nullptr;
    uint32_t item = 0;
    const float* logits = nullptr;
    uint32_t* weights = nullptr;
    uint32_t turns = 0;  // kGroupsAtOnce groups each
    F max[kTiles];       // the span's maximum; -inf if no key is seen
    F base[kTiles];      // subtracted from logits before exp
    F sum[kTiles][2];
  };

  uint32_t StepsOf(const Span& span) const {
    const uint32_t chunks = RoundUp(Chunks(), kChunksAtOnce) / kChunksAtOnce;
    return items_ *
           (span.groups / kGroupsAtOnce * static_cast<uint32_t>(steps_) + span.groups * chunks);
  }
  uint32_t Chunks() const { return (shape_.d_v + kStepColumns - 1) / kStepColumns; }

  static constexpr uint32_t TileOf(uint32_t sub) { return kTiles == 2 ? sub : 0; }
  static constexpr uint32_t GroupOf(uint32_t turn, uint32_t sub) {
    return kTiles == 2 ? turn : 2 * turn + sub;
  }
  // Returns the start of a sub-block's logits, 32 keys x 16 rows.
  static constexpr size_t LogitsAt(uint32_t turn, uint32_t sub) {
    return (size_t{TileOf(sub)} * kSpanKeys + GroupOf(turn, sub) * kGroupKeys) * 16;
  }

  // ---- logits, with the pending item's softmax between the steps

  template <bool kSoftmax>
  HWY_NOINLINE void LogitsOf(const Span& span, uint32_t item, float* logits, F* max) {
    const uint32_t* const queries = work_.queries + size_t{item} * kTiles * steps_ * 256;
    // Local copies, so that they stay in registers.
    const WeightExp<L> exp = exp_;
    Pending soft = pending_;
    F running[2] = {L::Set(kEmptyM), L::Set(kEmptyM)};
    const uint32_t turns = span.groups / kGroupsAtOnce;
    for (uint32_t turn = 0; turn < turns; ++turn) {
      float* const at0 = logits + LogitsAt(turn, 0);
      float* const at1 = logits + LogitsAt(turn, 1);
      // Tiles in the order of the products: keys 0..15 of both sub-blocks, then 16..31; or 64 keys.
      float* const two[4] = {at0, at1, at0 + 256, at1 + 256};
      float* const one[4] = {at0, at0 + 256, at1, at1 + 256};
      float* const(&to)[4] = kTiles == 2 ? two : one;
      const float* const before0 = turn > 0 ? logits + LogitsAt(turn - 1, 0) : nullptr;
      const float* const before1 = turn > 0 ? logits + LogitsAt(turn - 1, 1) : nullptr;
      products_.template Logits<kTiles, kSteps>(&span.keys[turn * kGroupsAtOnce], span.row_terms,
                                                queries, steps_, to,
                                                [&](int step) CKV_MATRIX_LAMBDA {
                                                  if constexpr (kSoftmax)
                                                    SoftmaxStep(exp, soft, turn, step);
                                                  if (before0 != nullptr)
                                                    MaxStep(before0, before1, step, running);
                                                  prefetch_.Step();
                                                });
    }
    const size_t last0 = LogitsAt(turns - 1, 0), last1 = LogitsAt(turns - 1, 1);
    for (uint32_t j = 0; j < kGroupKeys; ++j) {
      running[0] = L::Max(L::Load(logits + last0 + 16 * j), running[0]);
      running[1] = L::Max(L::Load(logits + last1 + 16 * j), running[1]);
    }
    if constexpr (kSoftmax) {
      pending_ = soft;
      SoftmaxRest(std::min(turns, soft.turns), std::min(turns - 1, soft.turns));
    }
    if constexpr (kTiles == 2) {
      max[0] = running[0];
      max[1] = running[1];
    } else {
      max[0] = L::Max(running[0], running[1]);
    }
  }

  // Step `step` does the items [ShareBegin(count, step), ShareBegin(count, step + 1)) of `count`.
  HWY_INLINE int ShareBegin(int count, int step) const {
    return count * step / (kSteps > 0 ? kSteps : steps_);
  }

  HWY_INLINE void MaxStep(const float* before0, const float* before1, int step, F* running) {
    for (int j = ShareBegin(kGroupKeys, step); j < ShareBegin(kGroupKeys, step + 1); ++j) {
      running[0] = L::Max(L::Load(before0 + 16 * j), running[0]);
      running[1] = L::Max(L::Load(before1 + 16 * j), running[1]);
    }
  }

  // A turn's weights are computed during its steps, and transposed during the next turn.
  HWY_INLINE void SoftmaxStep(const WeightExp<L>& exp, Pending& soft, uint32_t turn, int step) {
    if (turn < soft.turns) {
      for (int u = ShareBegin(16, step); u < ShareBegin(16, step + 1); ++u)
        WeightPair(exp, soft, turn, u);
    }
    if (turn > 0 && turn - 1 < soft.turns) {
      for (int k = ShareBegin(2 * kTerms, step); k < ShareBegin(2 * kTerms, step + 1); ++k)
        TransposeWeights(soft, turn - 1, k);
    }
  }

  // Does what remains after `weighed` turns of weights and `transposed` turns of transposes.
  HWY_NOINLINE void SoftmaxRest(uint32_t weighed, uint32_t transposed) {
    for (; transposed < weighed; ++transposed) TransposeTurn(transposed);
    for (; weighed < pending_.turns; ++weighed) {
      for (int u = 0; u < 16; ++u) WeightPair(exp_, pending_, weighed, u);
      TransposeTurn(weighed);
    }
  }
  void TransposeTurn(uint32_t turn) {
    for (int k = 0; k < 2 * kTerms; ++k) TransposeWeights(pending_, turn, k);
  }

  // Computes the weights of keys 2 pair and 2 pair + 1 of both sub-blocks. Even and odd groups have
  // separate sums of l, whatever kTiles is.
  HWY_INLINE void WeightPair(const WeightExp<L>& exp, Pending& soft, uint32_t turn, int pair) {
#pragma GCC unroll 2
    for (uint32_t sub = 0; sub < 2; ++sub) {
      const uint32_t tile = TileOf(sub);
      const float* const at = soft.logits + LogitsAt(turn, sub) + size_t(pair) * 32;
      I even[kTermsMax], odd[kTermsMax];
      const F base = soft.base[tile];
      const F first =
          SplitWeight<L, kTerms>(exp.template Of<kTerms>(L::Sub(L::Load(at), base)), even);
      const F second =
          SplitWeight<L, kTerms>(exp.template Of<kTerms>(L::Sub(L::Load(at + 16), base)), odd);
      F& sum = kTiles == 2 ? soft.sum[tile][turn & 1] : soft.sum[0][sub];
      sum = L::Add(sum, L::Add(first, second));
#pragma GCC unroll 3
      for (int t = 0; t < kTerms; ++t)
        L::StoreI(PairsAt(turn, sub, t) + pair * 16, L::PairUp(even[t], odd[t]));
    }
  }
  HWY_INLINE uint32_t* PairsAt(uint32_t turn, uint32_t sub, int term) const {
    return work_.pairs + (((turn & 1) * 2 + sub) * kTerms + static_cast<uint32_t>(term)) * 256;
  }
  // Does the k-th of the 2 * kTerms transposes of a turn.
  HWY_INLINE void TransposeWeights(const Pending& soft, uint32_t turn, int k) {
    const uint32_t sub = static_cast<uint32_t>(k) / kTerms;
    const int term = k % kTerms;
    uint32_t* const to =
        soft.weights + ((size_t{TileOf(sub)} * kTerms + static_cast<uint32_t>(term)) * kSpanGroups +
                        GroupOf(turn, sub)) *
                           256;
    L::Transpose(PairsAt(turn, sub, term), 16, to);
  }

  // ---- the softmax's bookkeeping

  // Sets logits of keys that a query row does not see to -inf, so that their weight is 0. Updates
  // `max`.
  HWY_NOINLINE void MaskLogits(const Span& span, uint32_t item, float* logits, F* max) {
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      const I seen = L::LoadI(&span.seen[(item * kTiles + tile) * 16]);
      float* const at = logits + size_t{tile} * kSpanKeys * 16;
      F running = L::Set(kEmptyM);
      for (uint32_t j = 0; j < span.groups * kGroupKeys; ++j) {
        const F logit =
            L::Select(L::LessI(L::SetI(j), seen), L::Load(at + 16 * j), L::Set(kEmptyM));
        L::Store(at + 16 * j, logit);
        running = L::Max(logit, running);
      }
      max[tile] = running;
    }
  }

  void Suspend(const Span* span, uint32_t item, const float* logits, const F* max) {
    pending_.on = true;
    pending_.span = span;
    pending_.item = item;
    pending_.logits = logits;
    pending_.weights = work_.weights + size_t{item} * kItemWeights;
    pending_.turns = span->groups / kGroupsAtOnce;
    for (int t = 0; t < kTiles; ++t) pending_.max[t] = max[t];
  }

  // Computes the new maximum, and the factors that fold the state and the span's sums.
  void Begin() {
    for (uint32_t t = 0; t < kTiles; ++t) {
      const uint32_t row = (pending_.item * kTiles + t) * 16;
      pending_.base[t] = fold_.BaseOf(pending_.max[t]);
      pending_.sum[t][0] = pending_.sum[t][1] = L::Set(0);
      if (row < block_.packed_rows()) fold_.Begin(exp_, pending_.span->state, row, pending_.max[t]);
    }
  }

  void End() {
    for (uint32_t t = 0; t < kTiles; ++t) {
      const uint32_t row = (pending_.item * kTiles + t) * 16;
      if (row >= block_.packed_rows()) continue;
      const F weights = L::Add(pending_.sum[t][0], pending_.sum[t][1]);
      fold_.End(pending_.span->state, row, pending_.max[t], weights);
    }
    pending_.on = false;
  }

  // ---- values

  void Values(const Span& span) {
    if constexpr (kTiles == 1 && Products::kFewRows) {
      if (block_.count <= kFewRowsMax && span.row_terms == 1) return ValuesOfFew(span);
    }
    ValuesOf(span);
  }

  // Computes the values of few query rows, one after the other.
  void ValuesOfFew(const Span& span) {
    alignas(64) float sums[kRowWidthMax + kStepColumns];
    for (uint32_t row = 0; row < block_.count; ++row) {
      {
        const typename L::FlushDenormals flush;
        SumRow(span, row, sums);
      }
      if (fold_.fate[row] == kSkip) continue;
      const F to = L::Set(fold_.to[row]), from = L::Set(fold_.from[row]);
      for (uint32_t tile = 0; tile < 2 * Chunks(); ++tile) {
        float* const o = span.state.o + size_t{tile} * 256 + row * 16;
        const F sum = L::Mul(L::Load(sums + tile * 16), from);
        L::Store(o, fold_.fate[row] == kFold ? L::MulAdd(L::Load(o), to, sum) : sum);
      }
    }
  }
  HWY_NOINLINE void SumRow(const Span& span, uint32_t row, float* sums) {
    const FewRowValues<L, kTerms> values(work_.weights, row, span.groups);
    for (uint32_t chunk = 0; chunk < Chunks(); ++chunk) {
      values.Sum(span.keys, chunk * kStepColumns, sums + chunk * kStepColumns);
      for (uint32_t g = 0; g < span.groups && row == 0; ++g) prefetch_.Step();
    }
  }

  // Sums to be folded while the next ones are computed.
  struct Unfolded {
    const float* sums = nullptr;
    float* o = nullptr;
    uint32_t row = 0;
  };

  HWY_NOINLINE void ValuesOf(const Span& span) {
    // Interleaving is hidden behind products: each group's step does `share` units of it.
    const uint32_t units = span.groups * 16 * kChunksAtOnce;
    // With one tile, the products of all terms hide it: 16 exact rows take 157 us, and 189 us with
    // the last term's products alone. With two tiles, those are enough: more places to interleave
    // make 128 rows 3 % slower.
    const uint32_t turns = kTiles == 2 ? items_ : items_ * span.row_terms * kTerms;
    const uint32_t share = (16 * kChunksAtOnce + turns - 1) / turns;
    const uint32_t chunks = Chunks();
    const uint32_t column_tiles = SpanState::ColumnTiles(shape_);
    Unfolded unfolded;
    uint32_t turn = 0;
    InterleaveUnits(span, 0, SliceAt(0), 0, units);
    for (uint32_t chunk = 0; chunk < chunks; chunk += kChunksAtOnce) {
      uint32_t* const slice = SliceAt(chunk / kChunksAtOnce);
      uint32_t* const next_slice = SliceAt(chunk / kChunksAtOnce + 1);
      const bool more = chunk + kChunksAtOnce < chunks;
      uint32_t unit = more ? 0 : units;
      for (uint32_t item = 0; item < items_; ++item, turn ^= 1) {
        float* const sums = work_.sums + size_t{turn} * 1024;
        products_.template Values<kTiles, kTerms>(
            work_.weights + size_t{item} * kItemWeights, slice, span.row_terms, span.groups, sums,
            [&](bool first, bool last, uint32_t group) CKV_MATRIX_LAMBDA {
              if (first && unfolded.sums != nullptr) FoldPart(unfolded, group, span.groups);
              if (kTiles == 2 && !last) return;
              const uint32_t end = std::min(unit + share, units);
              InterleaveUnits(span, chunk + kChunksAtOnce, next_slice, unit, end);
              unit = end;
              if (last) prefetch_.Step();
            });
        unfolded = {sums, span.state.o + (size_t{item} * kTiles * column_tiles + 2 * chunk) * 256,
                    item * kTiles * 16};
      }
      InterleaveUnits(span, chunk + kChunksAtOnce, next_slice, unit, units);
    }
    if (unfolded.sums != nullptr) FoldPart(unfolded, 0, 1);
  }

  uint32_t* SliceAt(uint32_t turn) const { return work_.values + (turn & 1) * kSliceWords; }

  // Interleaves the units [begin, end). A unit is a pair of keys of one chunk.
  HWY_INLINE void InterleaveUnits(const Span& span, uint32_t chunk, uint32_t* slice, uint32_t begin,
                                  uint32_t end) {
    const uint32_t pairs = span.groups * 16, chunks = Chunks();
    for (uint32_t u = begin; u < end;) {
      const uint32_t which = kChunksAtOnce == 2 && u >= pairs ? 1 : 0;
      const uint32_t pair = u - which * pairs, first = pair % 16;
      if (chunk + which >= chunks) return;
      const KeyGroup& group = span.keys[pair / 16];
      const uint32_t count = std::min(end - u, 16 - first);
      for (uint32_t term = 0; term < span.row_terms; ++term) {
        const auto* row = reinterpret_cast<const std::byte*>(group.rows[term]) +
                          size_t{2 * first} * group.stride_bytes +
                          size_t{chunk + which} * kStepColumns * sizeof(uint16_t);
        uint32_t* to = slice + (size_t{term} * kChunksAtOnce + which) * kSpanGroups * 512 +
                       size_t{pair / 16} * 512 + first * 16;
        for (uint32_t i = 0; i < count; ++i, to += 16, row += 2 * group.stride_bytes) {
          L::Interleave(reinterpret_cast<const uint16_t*>(row),
                        reinterpret_cast<const uint16_t*>(row + group.stride_bytes), to, to + 256);
        }
      }
      u += count;
    }
  }

  // Folds part `part` of `parts` of four tiles of sums into o, eight rows at a time.
  HWY_INLINE void FoldPart(const Unfolded& unfolded, uint32_t part, uint32_t parts) {
    const uint32_t eighths = (8 + parts - 1) / parts;
    for (uint32_t i = part * eighths; i < std::min(8u, (part + 1) * eighths); ++i)
      FoldEighth(unfolded, i);
  }
  HWY_INLINE void FoldEighth(const Unfolded& unfolded, uint32_t eighth) {
    // With two tiles, sums are rows 0..15 with both halves of the columns, then rows 16..31.
    const size_t second = kTiles == 2 ? size_t{SpanState::ColumnTiles(shape_)} * 256 : 512;
    const uint32_t tile = eighth / 2, begin = eighth % 2 * 8;
    const uint32_t row = unfolded.row + begin + (kTiles == 2 ? tile / 2 * 16 : 0);
    if (row >= block_.packed_rows()) return;
    const float* const sums = unfolded.sums + size_t{tile} * 256 + begin * 16;
    float* const o = unfolded.o + (tile < 2 ? 0 : second) + (tile & 1) * 256 + begin * 16;
    if (fold_.all[row / 16]) {
#pragma GCC unroll 8
      for (uint32_t i = 0; i < 8; ++i) {
        const F sum = L::Mul(L::Load(sums + i * 16), L::Set(fold_.from[row + i]));
        L::Store(o + i * 16, L::MulAdd(L::Load(o + i * 16), L::Set(fold_.to[row + i]), sum));
      }
      return;
    }
    for (uint32_t i = 0; i < 8; ++i) {
      if (fold_.fate[row + i] == kSkip) continue;
      const F sum = L::Mul(L::Load(sums + i * 16), L::Set(fold_.from[row + i]));
      L::Store(o + i * 16, fold_.fate[row + i] == kFold
                               ? L::MulAdd(L::Load(o + i * 16), L::Set(fold_.to[row + i]), sum)
                               : sum);
    }
  }

  const AttentionShape& shape_;
  const RowBlock& block_;
  const Workspace& work_;
  const int steps_;
  const uint32_t items_;
  const WeightExp<L> exp_;
  Products products_;
  RowPrefetch<L, kPrefetchStride> prefetch_;
  Pending pending_;
  const Span* last_ = nullptr;
  uint32_t logits_turn_ = 0;
  SpanFold<L> fold_;
};

}  // namespace ckv::matrix
