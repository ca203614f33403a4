// The base of the BlockKernels over units that multiply bf16: all but the work on spans.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// span_kernel.inl.h, matrix_dot.cc after dot_kernel.inl.h.

#pragma once

namespace ckv::matrix {

template <class L>
class MatrixBlock : public BlockKernel {
  using F = typename L::F;

 public:
  uint32_t block_rows() const override { return kBlockRowsMax; }
  uint32_t span_rows() const override { return kSpanKeys; }

  size_t StateFloats(const AttentionShape& shape, uint32_t packed_rows) const override {
    return SpanState::FloatCount(shape, packed_rows);
  }
  float* TotalIn(const AttentionShape& shape, std::span<std::byte> scratch) const override {
    return Workspace::Cut(shape, scratch).total;
  }
  float* ResultsIn(const AttentionShape& shape, std::span<std::byte> scratch) const override {
    return Workspace::Cut(shape, scratch).results;
  }

  void Clear(const AttentionShape&, const RowBlock& block, float* total) const override {
    ClearState(SpanState::At(total, block.packed_rows()), block.packed_rows());
  }

  // Rows beyond the block's are zeros.
  void Pack(const AttentionShape& shape, const RowBlock& block,
            std::span<std::byte> scratch) const override {
    uint32_t* const queries = Workspace::Cut(shape, scratch).queries;
    const uint32_t width = Workspace::Width(shape), steps = width / kStepColumns;
    alignas(64) uint16_t rows[16 * kRowWidthMax];
    for (uint32_t tile = 0; tile < Tiles(block); ++tile) {
      std::memset(rows, 0, size_t{16} * width * sizeof(uint16_t));
      for (uint32_t i = 0; i < 16 && tile * 16 + i < block.count; ++i)
        std::memcpy(rows + size_t{i} * width, block.rows[tile * 16 + i].q, size_t{shape.d_qk} * 2);
      for (uint32_t d = 0; d < steps; ++d) {
        L::Transpose(reinterpret_cast<const uint32_t*>(rows) + d * 16, width / 2,
                     queries + (size_t{tile} * steps + d) * 256);
      }
    }
  }

  void Fold(const AttentionShape& shape, const RowBlock& block, uint32_t begin, uint32_t end,
            const float* span, float* total) const override {
    const WeightExp<L> exp(shape.softmax_scale);
    const SpanState from = SpanState::At(const_cast<float*>(span), block.packed_rows());
    const SpanState to = SpanState::At(total, block.packed_rows());
    for (uint32_t i = begin; i < end; ++i) {
      if (from.empty(i)) continue;
      if (to.empty(i)) {
        CopyRow(shape, from.o, to.o, i);
        to.m[i] = from.m[i];
        to.l[i] = from.l[i];
      } else {
        FoldRow(shape, exp, from, to, i);
      }
    }
  }

  void Write(const AttentionShape& shape, const RowBlock& block, float* total) const override {
    const SpanState state = SpanState::At(total, block.packed_rows());
    const bool selects_any = block.indices != nullptr && SelectsAny(block);
    for (uint32_t i = 0; i < block.count; ++i) {
      const BlockRow& row = block.rows[i];
      const bool attends_any =
          block.indices != nullptr ? selects_any : std::min(row.limit, block.keys.count) > 0;
      if (!attends_any) {
        std::memset(row.o, 0, size_t{shape.d_v} * (row.dtype == PartialDtype::kF32 ? 4 : 2));
        *row.m = kEmptyM;
        *row.l = 0;
        continue;
      }
      // Every logit was -inf, which only infinite values cause: there is no answer. A NaN m could
      // be taken for an empty part; with a finite one the NaN of l and o reaches the answer. + 0
      // turns a -0 into a +0.
      float l = state.l[i];
      const bool lost = l == 0;
      if (lost) l = std::numeric_limits<float>::quiet_NaN();
      WriteRow(shape, state.o, i, l, lost, row);
      *row.m = l == l ? state.m[i] * shape.softmax_scale + 0.0f : 0.0f;
      *row.l = l;
    }
  }

 protected:
  // Query tiles of the block, as items take them.
  static uint32_t Tiles(const RowBlock& block) {
    const uint32_t tiles = block.packed_rows() / 16;
    return tiles == 1 ? 1 : RoundUp(tiles, 2);
  }

  // Runs `Kernel`, which takes spans: SpanKernel or DotKernel.
  template <class Kernel>
  static HWY_NOINLINE void AttendRun(const AttentionShape& shape, const RowBlock& block,
                                     const SpanRun& run, const Workspace& work,
                                     absl::FunctionRef<float*(uint32_t)> slot, float* total) {
    const uint32_t rows = block.packed_rows();
    SpanRows<L> reader(shape, block, work);
    Kernel kernel(shape, block, work);
    Span spans[2];
    const std::byte* ahead[kSpanKeys];
    uint32_t turn = 0;
    for (uint32_t i = 0; i < run.count; ++i) {
      const SpanState state = SpanState::At(total != nullptr ? total : slot(i), rows);
      if (total == nullptr) ClearState(state, rows);
      reader.Open(run.begins[i], i + 1 < run.count ? run.begins[i + 1] : run.end);
      const uint32_t ahead_count = AddressesAfter(block, run, i, ahead);
      // The low terms of fp8 rows have one place, so the span before must be done with them.
      while (kernel.FinishLowTerms(), reader.Prepare(turn, &spans[turn])) {
        Span& span = spans[turn];
        span.state = state;
        kernel.Add(&span, ahead, ahead_count);
        turn ^= 1;
      }
    }
    kernel.Finish();
  }

 private:
  static void ClearState(const SpanState& state, uint32_t rows) {
    for (uint32_t i = 0; i < rows; ++i) {
      state.m[i] = kEmptyM;
      state.l[i] = 0;
    }
  }

  // The rows of the span after the i-th of the run.
  static uint32_t AddressesAfter(const RowBlock& block, const SpanRun& run, uint32_t i,
                                 const std::byte** rows) {
    const uint32_t begin = i + 1 < run.count ? run.begins[i + 1] : run.next;
    uint32_t end = block.key_count();
    if (i + 2 < run.count)
      end = run.begins[i + 2];
    else if (i + 1 < run.count)
      end = run.end;
    else if (begin < end)
      end = SpanEnd(block, begin, kSpanKeys);
    return SpanRows<L>::Addresses(block, begin, end, rows);
  }

  // Returns the start of row i in o; its column tiles are 256 floats apart.
  static size_t RowAt(const AttentionShape& shape, uint32_t i) {
    return (size_t{i / 16} * SpanState::ColumnTiles(shape)) * 256 + i % 16 * 16;
  }

  static void CopyRow(const AttentionShape& shape, const float* from, float* to, uint32_t i) {
    const size_t at = RowAt(shape, i);
    for (uint32_t tile = 0; tile < SpanState::ColumnTiles(shape); ++tile)
      L::Store(to + at + tile * 256, L::Load(from + at + tile * 256));
  }

  static void FoldRow(const AttentionShape& shape, const WeightExp<L>& exp, const SpanState& from,
                      const SpanState& to, uint32_t i) {
    F a, b;
    SpanFold<L>::Join(exp, from, to, i, &a, &b);
    const size_t at = RowAt(shape, i);
    for (uint32_t tile = 0; tile < SpanState::ColumnTiles(shape); ++tile) {
      float* const o = to.o + at + tile * 256;
      const F sum = L::Mul(L::Load(from.o + at + tile * 256), b);
      L::Store(o, L::MulAdd(L::Load(o), a, sum));
    }
  }

  // Whether the rows of a selected block attend any row. The list may be a peer's 4 M entries that
  // are all skipped, so it is read once for the block.
  static bool SelectsAny(const RowBlock& block) {
    for (uint32_t place = 0; place < block.index_count; ++place) {
      if (block.Selects(place)) return true;
    }
    return false;
  }

  static void WriteRow(const AttentionShape& shape, const float* o, uint32_t i, float l, bool lost,
                       const BlockRow& row) {
    const F factor = L::Set(1.0f / l);
    const size_t at = RowAt(shape, i);
    for (uint32_t column = 0; column < shape.d_v; column += kStepColumns) {
      const float* const tile = o + at + size_t{column / 16} * 256;
      F first = factor, second = factor;
      if (!lost) L::JoinColumns(L::Load(tile), L::Load(tile + 256), &first, &second);
      WriteColumns(L::Mul(first, factor), column, shape.d_v, row);
      WriteColumns(L::Mul(second, factor), column + 16, shape.d_v, row);
    }
  }

  // Writes up to 16 values to the columns from `column` on. o may be wire memory, at any address.
  static void WriteColumns(F values, uint32_t column, uint32_t d_v, const BlockRow& row) {
    if (column >= d_v) return;
    const size_t count = std::min<uint32_t>(16, d_v - column);
    auto* const bytes = static_cast<std::byte*>(row.o);
    if (count == 16) {  // a tenth of a call of 128 rows would be copies of unknown length
      if (row.dtype == PartialDtype::kF32)
        L::Store(reinterpret_cast<float*>(bytes + size_t{column} * 4), values);
      else
        L::StoreBf16(values, bytes + size_t{column} * 2);
      return;
    }
    if (row.dtype == PartialDtype::kF32) {
      alignas(64) float lanes[16];
      L::Store(lanes, values);
      std::memcpy(bytes + size_t{column} * 4, lanes, count * 4);
    } else {
      alignas(64) uint16_t lanes[16];
      L::StoreBf16(values, lanes);
      std::memcpy(bytes + size_t{column} * 2, lanes, count * 2);
    }
  }
};

}  // namespace ckv::matrix
