// Splices rows: copies them from their canonical positions to rows of a paged cache at others.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/rope.h"
#include "client/cache/paged_cache.h"
#include "proto/geometry.h"

namespace ckv {

// The destination of rows of one layer, borrowed. Row r of it is row r % 64 of block table[r / 64].
struct SpliceTarget {
  std::span<std::byte> layer;  // [blocks][64][row_bytes]
  std::span<const CacheBlock> table;
  uint64_t row_begin = 0;  // first row of the destination, inside a block or not
};

// Returns the rotation that moves rows of `geometry` from their canonical positions by `delta`,
// which may be negative. It is a closed form with angles in f64, so a far position costs nothing.
// It is the identity for delta 0 and for geometries without a band (d_rope = 0 or style kNone).
RopeRotation SpliceRotation(const Geometry& geometry, int64_t delta);

// Copies `rows` into the blocks and rotates their RoPE bands on the way, in one pass.
//
//   rotation   from SpliceRotation; the identity copies without rotating
//   rows       [token][row_bytes] of one layer, bf16 or fp8_ds_mla; whole rows, any address
//   target     rows land at [row_begin, row_begin + tokens); nothing else is written
//
// `rows` are the canonical rows, as the store has them and as a fetch without a position shows
// them. Their bands are rounded once. A rotated chunk is never rotated again: to move one, splice
// the canonical rows anew. The latent part and the scales of fp8 rows are copied bit for bit. A
// selection is not spliced, because its rows have no common delta.
//
// Error of a band: <= 2^-8 of each pair's length against the rotation of the bf16 values. Against
// the values before they were rounded for the store it is <= 3 x 2^-8.
// Thread-safe for targets that do not overlap. The rows must fit the table (CKV_CHECK).
// Cost: reads and writes each row once; no allocation.
void Splice(const RopeRotation& rotation, const Geometry& geometry, std::span<const std::byte> rows,
            const SpliceTarget& target) noexcept;

// Rotates the bands of canonical rows that a transfer has put in their final place. Call it once
// per row; the notes above apply.
void SpliceInPlace(const RopeRotation& rotation, const Geometry& geometry,
                   std::span<std::byte> rows) noexcept;

}  // namespace ckv
