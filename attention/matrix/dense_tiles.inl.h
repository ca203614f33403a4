// Dense layers on a tile unit. They use the products of attention, with rows of x in the place of
// keys and outputs in the place of query rows.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after weights.inl.h.

#pragma once

namespace ckv::matrix {

template <class Products>
class DenseTiles final : public DenseKernel {
  using L = typename Products::Lanes;

 public:
  void Multiply(const DenseCall& call, std::span<std::byte> scratch) const override {
    const uint32_t width = RoundUp(call.input, kStepColumns), steps = width / kStepColumns;
    CKV_CHECK(scratch.size() >= size_t{kTermsMax} * kDenseRowsMax * width * sizeof(uint16_t));
    auto* const terms = reinterpret_cast<uint16_t*>(scratch.data());
    KeyGroup rows;
    rows.stride_bytes = size_t{width} * sizeof(uint16_t);
    for (uint32_t t = 0; t < kTermsMax; ++t)
      rows.rows[t] = terms + size_t{t} * kDenseRowsMax * width;
    for (uint32_t i = 0; i < kDenseRowsMax; ++i)
      SplitRow(call, i, width, terms + size_t{i} * width);

    alignas(64) float sums[4][256];
    float* const to[4] = {sums[0], sums[1], sums[2], sums[3]};
    Products products;
    Products::Configure();
    for (uint32_t column = 0; column < call.output; column += 32) {
      const uint32_t* const weights = call.weights + size_t{column} / 16 * steps * 256;
      products.template Logits<2, 0>(&rows, kTermsMax, weights, static_cast<int>(steps), to,
                                     [](int) CKV_MATRIX_LAMBDA {});
      for (uint32_t i = 0; i < call.rows; ++i) {
        float* const y = call.y + i * call.y_stride + column;
        const float* const left = sums[i / 16 * 2] + i % 16 * 16;
        Write(left, std::min(16u, call.output - column), y);
        if (column + 16 < call.output)
          Write(left + 256, std::min(16u, call.output - column - 16), y + 16);
      }
    }
    Products::Release();
  }

 private:
  // Splits row i of x into three bf16 terms, the largest first. Rows beyond the call's are zeros.
  static void SplitRow(const DenseCall& call, uint32_t i, uint32_t width, uint16_t* to) {
    const size_t term_size = size_t{kDenseRowsMax} * width;
    for (uint32_t k = 0; k < width; k += 16) {
      alignas(64) float values[16] = {};
      if (i < call.rows && k < call.input) {
        std::memcpy(values, call.x + i * call.x_stride + k,
                    std::min(16u, call.input - k) * sizeof(float));
      }
      typename L::I terms[kTermsMax];
      SplitWeight<L, kTermsMax>(L::Load(values), terms);
      for (uint32_t t = 0; t < kTermsMax; ++t) L::StoreUpper(terms[t], to + t * term_size + k);
    }
  }

  static void Write(const float* from, uint32_t count, float* to) {
    if (count == 16)
      L::Store(to, L::Load(from));
    else
      std::memcpy(to, from, count * sizeof(float));
  }
};

}  // namespace ckv::matrix
