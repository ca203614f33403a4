// The second product for one query row, without tiles: the bits of TDPBF16PS in vector
// instructions.
//
// A tile computes 16 query rows or none, and its values must be interleaved first. That takes
// longer than all else if rows are few. Here lanes are columns, so values are used as they lie. One
// row takes 6 multiply-adds for 32 columns of a key with three terms.

#pragma once

namespace ckv::matrix {

// As TileModel has it, even and odd keys are summed apart with fused multiply-adds, then both sums
// are added, then the accumulator. The caller makes denormals zero meanwhile (L::FlushDenormals).
template <class L, int kTerms>
class FewRowValues {
  using F = typename L::F;
  using I = typename L::I;

 public:
  // Weights of the query row that words [row][16] of each group hold: [term][group][256 words].
  FewRowValues(const uint32_t* weights, uint32_t row, uint32_t groups) : groups_(groups) {
    for (int term = 0; term < kTerms; ++term) {
      for (uint32_t g = 0; g < groups; ++g) {
        const I pairs = L::LoadI(weights + (size_t(term) * kSpanGroups + g) * 256 + row * 16);
        L::Store(weights_[term][g][0], L::AsF(L::template ShiftLeft<16>(pairs)));
        L::Store(weights_[term][g][1], L::AsF(L::AndI(pairs, L::SetI(0xffff0000u))));
      }
    }
  }

  // Sums over the span's keys of weights times 32 columns from `column` on, low terms first, from
  // zero. They go to sums[0..15] and sums[16..31], in the order of Lanes::Interleave.
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
  // 32 keys. Column pairs are words: [0] are even columns, [1] odd ones.
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
  alignas(64) float weights_[kTerms][kSpanGroups][2][16];  // [0] of even keys, [1] of odd ones
};

}  // namespace ckv::matrix
