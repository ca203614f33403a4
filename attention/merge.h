// Recombines partials of the same query rows into one.

#pragma once

#include <cstdint>
#include <span>

#include "attention/partial.h"

namespace ckv {

inline constexpr uint32_t kMergePartCountMax = 1u << 20;

// Merges `parts` (disjoint sets of keys, the same query rows) in the order given.
//
//   parts[s]  o [row_count, d_v] of its dtype, m, l f32 [row_count]
//   out       o [row_count, d_v] of its dtype, m, l; must not alias any part
//
//   m = max_s m_s     w_s = l_s exp(m_s - m)     l = sum_s w_s     o = sum_s (w_s / l) o_s
//
// A part with l = 0 or m = -inf is empty. It is skipped, whatever its o holds (NaN included), so it
// is the identity bit for bit. A part whose m is NaN or +inf is empty too: other inference engines
// mark an empty row so. If all parts are empty, the result is the empty partial. If one part is not
// empty, the result has its bits, unchanged. Sums run in f32 in the order of `parts`: callers fix
// that order by chunk ordinal (I2).
//
// Source: arXiv:1805.02867, applied per part. Cost: reads every o once; should run at memory speed.
void MergePartials(std::span<const ConstPartialView> parts, uint32_t row_count, uint32_t d_v,
                   const PartialView& out) noexcept;

}  // namespace ckv
