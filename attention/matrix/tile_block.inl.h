// The BlockKernel over a tile unit.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment last.

#pragma once

namespace ckv::matrix {

// `kSteps`: the width that has code of its own, in steps of 32 columns; 0 for none.
template <class Products, int kSteps>
class TileBlock final : public MatrixBlock<typename Products::Lanes> {
  using Base = MatrixBlock<typename Products::Lanes>;

 public:
  void Attend(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
              std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
              float* total) const override {
    const bool wide = Base::Tiles(block) > 1;
    switch (block.precision) {
      case Precision::kFast:
        return wide ? AttendAs<2, 1>(shape, block, run, scratch, slot, total)
                    : AttendAs<1, 1>(shape, block, run, scratch, slot, total);
      case Precision::kWire:
        return wide ? AttendAs<2, 2>(shape, block, run, scratch, slot, total)
                    : AttendAs<1, 2>(shape, block, run, scratch, slot, total);
      default:
        return wide ? AttendAs<2, 3>(shape, block, run, scratch, slot, total)
                    : AttendAs<1, 3>(shape, block, run, scratch, slot, total);
    }
  }

 private:
  template <int kTiles, int kTerms>
  static void AttendAs(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
                       std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
                       float* total) {
    const Workspace work = Workspace::Cut(shape, scratch);
    Products::Configure();
    if (kSteps > 0 && Workspace::Width(shape) == kSteps * kStepColumns)
      Base::template AttendRun<SpanKernel<Products, kTiles, kTerms, kSteps>>(shape, block, run,
                                                                             work, slot, total);
    else
      Base::template AttendRun<SpanKernel<Products, kTiles, kTerms, 0>>(shape, block, run, work,
                                                                        slot, total);
    Products::Release();
  }
};

}  // namespace ckv::matrix
