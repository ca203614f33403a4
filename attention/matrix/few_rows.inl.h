// The product of weights and values for one query row, without tiles. Its vector instructions give
// the same bits as TDPBF16PS.
//
// A tile always computes 16 query rows, and its values must be interleaved first. If rows are few,
// that takes longer than all other work. Here lanes are columns, so values are used in their stored
// order. One row takes 6 multiply-adds for 32 columns of a key with three terms.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// dense_tiles.inl.h.

#pragma once

namespace ckv::matrix {

// As in TileModel, even and odd keys are summed separately with fused multiply-adds. Then both sums
// are added, and then the accumulator. The caller holds an L::FlushDenormals around Sum.
template <class L, int kTerms>
class FewRowValues {
  using F = typename L::F;
  using I = typename L::I;

 public:
  // `weights` is [term][group][256 words]; words [row][16] of each group are the query row's.
  FewRowValues(const uint32_t* weights, uint32_t row, uint32_t groups) : groups_(groups) {
    for (int term = 0; term < kTerms; ++term) {
      for (uint32_t g = 0; g < groups; ++g) {
        const I pairs = L::LoadI(weights + (size_t(term) * kSpanGroups + g) * 256 + row * 16);
        L::Store(weights_[term][g][0], L::AsF(L::template ShiftLeft<16>(pairs)));
        L::Store(weights_[term][g][1], L::AsF(L::AndI(pairs, L::SetI(0xffff0000u))));
      }
    }
  }

  // Sums weights times 32 columns from `column` on over the span's keys, low terms first, from
  // zero. Writes sums[0..15] and sums[16..31], in the order of Lanes::Interleave.
  HWY_INLINE void Sum(const std::array<KeyGroup, kSpanGroups>& keys, uint32_t column,
                      float* sums) const {
    F parts[kTerms][kSpanGroups][2];
    for (uint32_t g = 0; g < groups_; ++g) {
      const auto* const rows = reinterpret_cast<const std::byte*>(keys[g].rows[0] + column);
      Group(rows, keys[g].stride_bytes, g, parts);
    }
    F low = L::Set(0), high = L::Set(0);
    for (int term = kTerms - 1; term >= 0; --term) {
      for (uint32_t g = 0; g < groups_; ++g) {
        low = L::Add(low, parts[term][g][0]);
        high = L::Add(high, parts[term][g][1]);
      }
    }
    L::JoinPairs(low, high, sums, sums + 16);
  }

 private:
  // Sums over 32 keys. A word is a pair of columns; index [0] is the even column, [1] the odd one.
  HWY_INLINE void Group(const std::byte* rows, size_t stride, uint32_t g,
                        F (&parts)[kTerms][kSpanGroups][2]) const {
    F even[kTerms][2], odd[kTerms][2];
#pragma GCC unroll 3
    for (int t = 0; t < kTerms; ++t) even[t][0] = even[t][1] = odd[t][0] = odd[t][1] = L::Set(0);
    const I upper = L::SetI(0xffff0000u);
    for (uint32_t pair = 0; pair < 16; ++pair, rows += 2 * stride) {
      const I first = L::LoadI(rows), second = L::LoadI(rows + stride);
      const F first0 = L::AsF(L::template ShiftLeft<16>(first));
      const F first1 = L::AsF(L::AndI(first, upper));
      const F second0 = L::AsF(L::template ShiftLeft<16>(second));
      const F second1 = L::AsF(L::AndI(second, upper));
#pragma GCC unroll 3
      for (int t = 0; t < kTerms; ++t) {
        const F w0 = L::Set(weights_[t][g][0][pair]), w1 = L::Set(weights_[t][g][1][pair]);
        even[t][0] = L::MulAdd(w0, first0, even[t][0]);
        even[t][1] = L::MulAdd(w0, first1, even[t][1]);
        odd[t][0] = L::MulAdd(w1, second0, odd[t][0]);
        odd[t][1] = L::MulAdd(w1, second1, odd[t][1]);
      }
    }
#pragma GCC unroll 3
    for (int t = 0; t < kTerms; ++t) {
      parts[t][g][0] = L::Add(even[t][0], odd[t][0]);
      parts[t][g][1] = L::Add(even[t][1], odd[t][1]);
    }
  }

  uint32_t groups_;
  alignas(64) float weights_[kTerms][kSpanGroups][2][16];  // [0]: even keys, [1]: odd keys
};

}  // namespace ckv::matrix
