// Recombines partials of the same query rows into one.

#pragma once

#include <bit>
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
// A part with l = 0 or m = -inf is empty. It is skipped, whatever its o contains (even NaN), so it
// is the identity bit for bit. A part whose m is NaN or +inf is empty too: some inference engines
// mark an empty row that way. If all parts are empty, the result is the empty partial. If exactly
// one part is not empty, the result has its bits, unchanged. Sums run in f32 in the order of
// `parts`: callers fix that order by chunk ordinal (I2).
//
// Source: arXiv:1805.02867, applied per part. Cost: reads every o once; should run at memory speed.
void MergePartials(std::span<const ConstPartialView> parts, uint32_t row_count, uint32_t d_v,
                   const PartialView& out) noexcept;

// The highest level that MergeTree takes.
inline constexpr uint8_t kTreeLevelMax = 63;

// Returns the level at which the fixed tree joins two leaves with different ordinals. Level 1 joins
// the ordinals 2k and 2k + 1, level 2 joins these pairs into aligned groups of four.
constexpr uint8_t TreeLevel(uint32_t ordinal, uint32_t other) {
  return static_cast<uint8_t>(std::bit_width(ordinal ^ other));
}

// Merges `parts` two at a time, in a binary tree. The tree determines which sums are rounded. So
// any of its subtrees may be merged elsewhere, by this function and into f32, without changing a
// bit.
//
//   parts, out   as in MergePartials
//   levels[s]    the level of the node that joins parts s - 1 and s, at most kTreeLevelMax;
//                levels[0] is not read
//
// Lower levels are joined first, and equal ones from left to right. Two parts are joined as
// MergePartials joins them. A part that is empty in a row is left out of that row's tree, so it is
// the identity there too.
//
// In the tree over chunk ordinals, levels[s] is TreeLevel of any two leaves of parts s - 1 and s.
// Each part is a leaf or an aligned subtree. Cost: each level reads and writes one row of o, which
// stays in the L1 cache; nothing is allocated. Uses 260 KiB of stack.
void MergeTree(std::span<const ConstPartialView> parts, std::span<const uint8_t> levels,
               uint32_t row_count, uint32_t d_v, const PartialView& out) noexcept;

}  // namespace ckv
