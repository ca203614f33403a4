// The two products of attention with VDPBF16PS: 16 sums of two products at a time. Nothing else
// fits between its instructions, so the kernel's vector work runs before them.

#pragma once

namespace ckv::matrix {

// The interface of TileProducts, where it is described. The sums of this unit differ: every
// instruction adds the odd product, then the even one, to the accumulator. Logits are sums over 192
// columns from zero, which are then added. One chain over all columns would err more than
// AttendPartials may.
template <class L>
class DotProducts {
 public:
  using Lanes = L;
  static constexpr bool kFewRows = false;  // FewRowValues has another order

  static void Configure() {}
  static void Release() {}

  template <int kTiles, int kSteps, class Between>
  HWY_INLINE void Logits(const KeyGroup* keys, uint32_t row_terms, const uint32_t* queries,
                         int steps, float* const (&to)[4], Between&& between) {
    for (int d = 0; d < steps; ++d) between(d);
    // Places of 16 keys x 16 rows: which group and half the keys are, and which tile the rows.
    for (uint32_t i = 0; i < 4; ++i) {
      const KeyGroup& group = keys[kTiles == 2 ? 0 : i / 2];
      const uint32_t half = kTiles == 2 ? i / 2 : i % 2;
      const uint32_t tile = kTiles == 2 ? i % 2 : 0;
      for (uint32_t key = 0; key < 16; ++key) L::Store(to[i] + 16 * key, L::Set(0));
      for (uint32_t term = row_terms; term-- > 0;) {
        LogitTile(group, half, term, queries + size_t{tile} * steps * 256, steps, to[i]);
      }
    }
  }

  template <int kTiles, int kTerms, class Between>
  HWY_INLINE void Values(const uint32_t* weights, const uint32_t* values, uint32_t row_terms,
                         uint32_t groups, float* sums, Between&& between) {
    const bool single = kTerms == 1 && row_terms == 1;
    for (uint32_t g = 0; g < groups; ++g) between(true, single, g);
    for (uint32_t g = 0; !single && g < groups; ++g) between(false, true, g);
    constexpr uint32_t kChunks = kTiles == 2 ? 1 : 2;
    for (uint32_t i = 0; i < 2; ++i) {  // two tiles of 16 columns each
      const uint32_t* const p =
          weights + (kTiles == 2 ? i : 0) * size_t{kTerms} * kSpanGroups * 256;
      const uint32_t* const v = values + (kTiles == 2 ? 0 : i) * size_t{kSpanGroups} * 512;
      for (uint32_t row = 0; row < 16; row += kRows)
        ValueRows<kTerms, kChunks>(p + row * 16, v, row_terms, groups, sums + i * 512 + row * 16);
    }
  }

 private:
  using F = typename L::F;
  static constexpr uint32_t kKeys = 16;  // accumulators of a logit block
  static constexpr uint32_t kRows = 8;   // times two column tiles
  static constexpr int kChainSteps = 6;  // 192 columns

  static HWY_INLINE F Dot(F sum, const uint32_t* word, __m512i pairs) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(int(*word))),
                            reinterpret_cast<__m512bh>(pairs));
  }

  static HWY_NOINLINE void LogitTile(const KeyGroup& group, uint32_t half, uint32_t term,
                                     const uint32_t* queries, int steps, float* to) {
    const auto* const keys = reinterpret_cast<const std::byte*>(group.rows[term]) +
                             size_t{half} * 16 * group.stride_bytes;
    for (int begin = 0; begin < steps; begin += kChainSteps) {
      F sum[kKeys];
#pragma GCC unroll 16
      for (uint32_t j = 0; j < kKeys; ++j) sum[j] = L::Set(0);
      const int pair_end = std::min(steps, begin + kChainSteps) * 16;
      for (int pair = begin * 16; pair < pair_end; ++pair) {
        const __m512i q = L::LoadI(queries + size_t(pair) * 16);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < kKeys; ++j) {
          uint32_t word;  // rows lie at any address
          std::memcpy(&word, keys + j * group.stride_bytes + size_t(pair) * 4, sizeof(word));
          sum[j] = Dot(sum[j], &word, q);
        }
      }
#pragma GCC unroll 16
      for (uint32_t j = 0; j < kKeys; ++j)
        L::Store(to + 16 * j, L::Add(L::Load(to + 16 * j), sum[j]));
    }
  }

  // Eight query rows times the 32 columns of a chunk.
  template <int kTerms, uint32_t kChunks>
  static HWY_NOINLINE void ValueRows(const uint32_t* weights, const uint32_t* values,
                                     uint32_t row_terms, uint32_t groups, float* sums) {
    F low[kRows], high[kRows];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) low[i] = high[i] = L::Set(0);
    for (int term = kTerms - 1; term >= 0; --term) {
      for (uint32_t row_term = row_terms; row_term-- > 0;) {
        for (uint32_t g = 0; g < groups; ++g) {
          const uint32_t* const p = weights + (size_t(term) * kSpanGroups + g) * 256;
          const uint32_t* const v =
              values + size_t{row_term} * kChunks * kSpanGroups * 512 + size_t{g} * 512;
          for (uint32_t pair = 0; pair < 16; ++pair) {
            const __m512i left = L::LoadI(v + pair * 16), right = L::LoadI(v + 256 + pair * 16);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < kRows; ++i) {
              low[i] = Dot(low[i], p + i * 16 + pair, left);
              high[i] = Dot(high[i], p + i * 16 + pair, right);
            }
          }
        }
      }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
      L::Store(sums + i * 16, low[i]);
      L::Store(sums + 256 + i * 16, high[i]);
    }
  }
};

}  // namespace ckv::matrix
