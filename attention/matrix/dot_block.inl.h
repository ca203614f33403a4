// The BlockKernel on VDPBF16PS.
//
// matrix_dot.cc includes this fragment last.

#pragma once

namespace ckv::matrix {

template <class L>
class DotBlock final : public MatrixBlock<L> {
  using Base = MatrixBlock<L>;

 public:
  void Attend(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
              std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
              float* total) const override {
    const Workspace work = Workspace::Cut(shape, scratch);
    if (block.precision == Precision::kFast)
      Base::template AttendRun<DotKernel<L, true>>(shape, block, run, work, slot, total);
    else
      Base::template AttendRun<DotKernel<L, false>>(shape, block, run, work, slot, total);
  }
};

}  // namespace ckv::matrix
