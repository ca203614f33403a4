// The two products of attention on a tile unit. The kernel's vector work runs between the tile
// instructions, which leave the vector ports free for 64 operations per step of two by two tiles.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after the tiles
// (tile_amx.inl.h or tile_model.inl.h).

#pragma once

namespace ckv::matrix {

// `T` is TileAmx or TileModel.
template <class T>
class TileProducts {
 public:
  using Lanes = typename T::Lanes;
  // Whether FewRowValues can be used, which gives the same bits as Values.
  static constexpr bool kFewRows = Lanes::kCanFlush;

  static void Configure() { T::Configure(); }
  static void Release() { T::Release(); }

  // Computes logits of 64 keys x 16 query rows, or of 32 keys x 32 query rows with kTiles = 2. They
  // are sums over steps of 32 columns, ascending, from zero. keys[0] is the first group of keys;
  // keys[1] is the second if there are 64. Writes four results of 16 keys x 16 rows to `to`, in the
  // order of the tiles below. Calls between(step) after each step. `kSteps` equals `steps`, or is 0
  // if not known at compile time: a constant lets the compiler schedule the work of between().
  template <int kTiles, int kSteps, class Between>
  HWY_INLINE void Logits(const KeyGroup* keys, uint32_t row_terms, const uint32_t* queries,
                         int steps, float* const (&to)[4], Between&& between) {
    tiles_.template Zero<0>();
    tiles_.template Zero<1>();
    tiles_.template Zero<2>();
    tiles_.template Zero<3>();
    // Low terms first: rounding would lose them if they were added to the sum of the high terms.
    for (uint32_t term = row_terms; term-- > 1;) {
      for (int d = 0; d < steps; ++d) LogitStep<kTiles>(keys, term, queries, steps, d);
    }
    if constexpr (kSteps > 0) {
#pragma GCC unroll 32
      for (int d = 0; d < kSteps; ++d) {
        LogitStep<kTiles>(keys, 0, queries, kSteps, d);
        between(d);
      }
    } else {
      for (int d = 0; d < steps; ++d) {
        LogitStep<kTiles>(keys, 0, queries, steps, d);
        between(d);
      }
    }
    tiles_.template Store<0>(to[0]);
    tiles_.template Store<1>(to[1]);
    tiles_.template Store<2>(to[2]);
    tiles_.template Store<3>(to[3]);
  }

  // Sums weights times values: 16 query rows x 64 columns, or 32 x 32 with kTiles = 2. Sums run
  // over the span's groups for each term, low terms first, from zero. `weights` is
  // [tile][term][group], `values` [row term][chunk][group]. Writes the four results to `sums`.
  // Calls between(first, last, group) after each group of a term. `first` is set for the first pair
  // of weight term and row term, `last` for the last pair.
  template <int kTiles, int kTerms, class Between>
  HWY_INLINE void Values(const uint32_t* weights, const uint32_t* values, uint32_t row_terms,
                         uint32_t groups, float* sums, Between&& between) {
    constexpr uint32_t kChunks = kTiles == 2 ? 1 : 2;
    tiles_.template Zero<0>();
    tiles_.template Zero<1>();
    tiles_.template Zero<2>();
    tiles_.template Zero<3>();
#pragma GCC unroll 3
    for (int term = kTerms - 1; term >= 0; --term) {
      for (uint32_t row_term = row_terms; row_term-- > 0;) {
        const uint32_t* const v = values + size_t{row_term} * kChunks * kSpanGroups * 512;
        const uint32_t* const p = weights + size_t(term) * kSpanGroups * 256;
        for (uint32_t g = 0; g < groups; ++g) {
          ValueStep<kTiles, kTerms>(p + size_t{g} * 256, v + size_t{g} * 512);
          between(term == kTerms - 1 && row_term == row_terms - 1, term == 0 && row_term == 0, g);
        }
      }
    }
    tiles_.template Store<0>(sums);
    tiles_.template Store<1>(sums + 256);
    tiles_.template Store<2>(sums + 512);
    tiles_.template Store<3>(sums + 768);
  }

 private:
  template <int kTiles>
  HWY_INLINE void LogitStep(const KeyGroup* keys, uint32_t term, const uint32_t* queries, int steps,
                            int d) {
    const uint16_t* const k0 = keys[0].rows[term] + d * kStepColumns;
    const size_t stride0 = keys[0].stride_bytes;
    const uint16_t* const k1 = Down(k0, stride0);
    if constexpr (kTiles == 2) {
      tiles_.template Load<6>(queries + d * 256, 64);
      tiles_.template LoadOnce<4>(k0, stride0);
      tiles_.template Dot<0, 4, 6>();
      tiles_.template Load<7>(queries + (size_t(steps) + d) * 256, 64);
      tiles_.template Dot<1, 4, 7>();
      tiles_.template LoadOnce<5>(k1, stride0);
      tiles_.template Dot<2, 5, 6>();
      tiles_.template Dot<3, 5, 7>();
    } else {
      const uint16_t* const k2 = keys[1].rows[term] + d * kStepColumns;
      const size_t stride1 = keys[1].stride_bytes;
      tiles_.template Load<7>(queries + d * 256, 64);
      tiles_.template LoadOnce<4>(k0, stride0);
      tiles_.template Dot<0, 4, 7>();
      tiles_.template LoadOnce<5>(k1, stride0);
      tiles_.template Dot<1, 5, 7>();
      tiles_.template LoadOnce<6>(k2, stride1);
      tiles_.template Dot<2, 6, 7>();
      tiles_.template LoadOnce<4>(Down(k2, stride1), stride1);
      tiles_.template Dot<3, 4, 7>();
    }
  }

  template <int kTiles, int kTerms>
  HWY_INLINE void ValueStep(const uint32_t* p, const uint32_t* v) {
    if constexpr (kTiles == 2) {
      tiles_.template Load<6>(v, 64);
      tiles_.template LoadOnce<4>(p, 64);
      tiles_.template Dot<0, 4, 6>();
      tiles_.template Load<7>(v + 256, 64);
      tiles_.template Dot<1, 4, 7>();
      tiles_.template LoadOnce<5>(p + size_t{kTerms} * kSpanGroups * 256, 64);
      tiles_.template Dot<2, 5, 6>();
      tiles_.template Dot<3, 5, 7>();
    } else {
      const uint32_t* const second = v + size_t{kSpanGroups} * 512;
      tiles_.template Load<4>(p, 64);
      tiles_.template Load<5>(v, 64);
      tiles_.template Dot<0, 4, 5>();
      tiles_.template Load<6>(v + 256, 64);
      tiles_.template Dot<1, 4, 6>();
      tiles_.template Load<7>(second, 64);
      tiles_.template Dot<2, 4, 7>();
      tiles_.template Load<5>(second + 256, 64);
      tiles_.template Dot<3, 4, 5>();
    }
  }

  // Returns the address 16 rows after `row`.
  static HWY_INLINE const uint16_t* Down(const uint16_t* row, size_t stride_bytes) {
    return reinterpret_cast<const uint16_t*>(reinterpret_cast<const std::byte*>(row) +
                                             16 * stride_bytes);
  }

  T tiles_;
};

}  // namespace ckv::matrix
