#include "attention/block_kernel.h"

#include <algorithm>

#include "attention/mla_block.h"

namespace ckv {
namespace {

class VectorBlockKernel final : public BlockKernel {
 public:
  uint32_t block_rows() const override { return kBlockRows; }
  uint32_t span_rows() const override { return kSpanRows; }

  size_t StateFloats(const AttentionShape& shape, uint32_t packed_rows) const override {
    return BlockState::FloatCount(shape, packed_rows);
  }
  float* TotalIn(const AttentionShape& shape, std::span<std::byte> scratch) const override {
    return BlockScratch::Cut(shape, scratch).total;
  }
  float* ResultsIn(const AttentionShape& shape, std::span<std::byte> scratch) const override {
    return BlockScratch::Cut(shape, scratch).results;
  }

  void Clear(const AttentionShape&, const RowBlock& block, float* total) const override {
    const BlockState state = BlockState::At(total, block.packed_rows());
    std::fill_n(state.m, block.packed_rows(), kEmptyM);
    std::fill_n(state.l, block.packed_rows(), 0.0f);
  }

  void Pack(const AttentionShape& shape, const RowBlock& block,
            std::span<std::byte> scratch) const override {
    PackQueries(shape, block, BlockScratch::Cut(shape, scratch).q);
  }

  void Attend(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
              std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
              float* total) const override {
    const BlockScratch cut = BlockScratch::Cut(shape, scratch);
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t next = i + 1 < run.count ? run.begins[i + 1] : run.next;
      const BlockState result = BlockState::At(slot(i), block.packed_rows());
      AttendSpan(shape, block, run.begins[i], next, cut, result);
      if (total != nullptr)
        FoldSpan(shape, block.count, result, BlockState::At(total, block.packed_rows()));
    }
  }

  void Fold(const AttentionShape& shape, const RowBlock& block, uint32_t begin, uint32_t end,
            const float* span, float* total) const override {
    const BlockState from = BlockState::At(const_cast<float*>(span), block.packed_rows());
    const BlockState to = BlockState::At(total, block.packed_rows());
    FoldSpan(shape, end - begin, from.From(shape, begin), to.From(shape, begin));
  }

  void Write(const AttentionShape& shape, const RowBlock& block, float* total) const override {
    WriteBlock(shape, block, BlockState::At(total, block.packed_rows()));
  }
};

}  // namespace

uint32_t SpanEnd(const RowBlock& block, uint32_t begin, uint32_t span_rows) {
  const uint32_t end = block.key_count();
  if (block.indices == nullptr) return begin + std::min(span_rows, end - begin);
  uint32_t attended = 0;
  while (begin < end && attended < span_rows) attended += block.Selects(begin++) ? 1 : 0;
  return begin;
}

const BlockKernel& VectorKernel() {
  static const auto* const kernel = new VectorBlockKernel;
  return *kernel;
}

}  // namespace ckv
