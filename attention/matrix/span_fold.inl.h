// How a span's sums are folded into the state of a block, as partials are merged:
//   o = o * to + sums * from
// m and l are folded with the same factors.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// row_prefetch.inl.h, matrix_dot.cc after weights.inl.h.

#pragma once

namespace ckv::matrix {

// A query row's sums are left out, stored or folded. BlockKernel::Fold does the same with a span of
// another thread, so that the bits do not depend on who computed it.
inline constexpr float kSkip = 0;   // nothing was seen: the state stays as it is
inline constexpr float kStore = 1;  // the state saw nothing yet: its o is not initialised
inline constexpr float kFold = 2;

// Sixteen query rows at a time. `max` is a span's largest raw logit, -inf if nothing is seen.
template <class L>
struct SpanFold {
  using F = typename L::F;

  alignas(64) float to[kBlockRowsMax];
  alignas(64) float from[kBlockRowsMax];
  alignas(64) float fate[kBlockRowsMax];
  bool all[kBlockRowsMax / 16] = {};  // for each query tile: all of its rows are folded

  // The logit that a span's weights are measured from.
  static F BaseOf(F max) { return L::Select(L::Equal(max, L::Set(kEmptyM)), L::Set(0), max); }

  // The new maximum, and the factors.
  void Begin(const WeightExp<L>& exp, const SpanState& state, uint32_t row, F max) {
    const F none = L::Set(kEmptyM);
    const auto sees_none = L::Equal(max, none);
    const F old = L::Load(state.m + row);
    const F started =
        L::Select(L::Equal(L::Load(state.l + row), L::Set(0)), L::Set(kStore), L::Set(kFold));
    L::Store(fate + row, L::Select(L::Equal(old, none), started, L::Set(kFold)));
    const F both = L::Max(max, old);
    const F base = BaseOf(both);
    L::Store(to + row, L::Select(sees_none, L::Set(1), exp.template Of<3>(L::Sub(old, base))));
    L::Store(from + row,
             L::Select(sees_none, L::Set(-0.0f), exp.template Of<3>(L::Sub(max, base))));
    L::Store(state.m + row, both);
  }

  // The span's weights add to l. A span without weights is left out.
  void End(const SpanState& state, uint32_t row, F max, F weights) {
    const F known = L::Load(fate + row);
    const F if_none = L::Select(L::Equal(weights, L::Set(0)), L::Set(kSkip), known);
    L::Store(fate + row, L::Select(L::Equal(max, L::Set(kEmptyM)), if_none, known));
    all[row / 16] =
        std::all_of(fate + row, fate + row + 16, [](float one) { return one == kFold; });
    const F sum = L::Mul(weights, L::Load(from + row));
    L::Store(state.l + row, L::MulAdd(L::Load(state.l + row), L::Load(to + row), sum));
  }

  // The same of two states that are there, for one row: m and l of `to_state`, and its factors.
  static void Join(const WeightExp<L>& exp, const SpanState& from_state, const SpanState& to_state,
                   uint32_t row, F* to_factor, F* from_factor) {
    const F none = L::Set(kEmptyM), max = L::Set(from_state.m[row]), old = L::Set(to_state.m[row]);
    const auto sees_none = L::Equal(max, none);
    const F both = L::Max(max, old);
    const F base = BaseOf(both);
    *to_factor = L::Select(sees_none, L::Set(1), exp.template Of<3>(L::Sub(old, base)));
    *from_factor = L::Select(sees_none, L::Set(-0.0f), exp.template Of<3>(L::Sub(max, base)));
    alignas(64) float lanes[16];
    L::Store(lanes, L::MulAdd(L::Set(to_state.l[row]), *to_factor,
                              L::Mul(L::Set(from_state.l[row]), *from_factor)));
    to_state.l[row] = lanes[0];
    L::Store(lanes, both);
    to_state.m[row] = lanes[0];
  }
};

}  // namespace ckv::matrix
