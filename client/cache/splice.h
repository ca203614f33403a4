// Splice: rows at their canonical positions become rows of a paged cache at another one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/rope.h"
#include "client/paged_cache.h"
#include "proto/geometry.h"

namespace ckv {

// Where rows of one layer go: row r of the destination is row r % 64 of block table[r / 64].
// Borrowed.
struct SpliceTarget {
  std::span<std::byte> layer;  // [blocks][64][row_bytes]
  std::span<const CacheBlock> table;
  uint64_t row_begin = 0;  // of the destination: any, inside a block too
};

// The rotation that takes rows of `geometry` from their canonical positions to `delta` positions
// further on (or back, negative): closed form, angles in f64, so a far position costs nothing.
// Identity for delta 0, and for geometries without a band (d_rope = 0 or style kNone).
RopeRotation SpliceRotation(const Geometry& geometry, int64_t delta);

// Copies `rows` into the blocks and rotates their RoPE bands on the way, in one pass.
//
//   rotation   of SpliceRotation; the identity copies and turns nothing
//   rows       [token][row_bytes] of one layer, bf16 or fp8_ds_mla; whole rows, any address
//   target     the rows land at [row_begin, row_begin + tokens); nothing else is written
//
// `rows` are the canonical rows, as the store has them and as a fetch shows them without a
// position: their bands are rounded once. A rotated chunk is never rotated again; to move one,
// splice the canonical rows anew. The latent part (and the scales of fp8 rows) is copied bit for
// bit. A selection is not spliced: its rows have no common delta.
//
// Error of a band: <= 2^-8 of each pair's length against the rotation of the bf16 values, <= 3 x
// 2^-8 against that of the values before they were rounded for the store.
// Thread-safe for targets that do not overlap. What does not fit the table is our bug (CKV_CHECK).
// Cost: reads and writes each row once; no allocation.
void Splice(const RopeRotation& rotation, const Geometry& geometry, std::span<const std::byte> rows,
            const SpliceTarget& target) noexcept;

// The same for canonical rows that a transfer has put to their final place: turns the bands there.
// Once; see above.
void SpliceInPlace(const RopeRotation& rotation, const Geometry& geometry,
                   std::span<std::byte> rows) noexcept;

}  // namespace ckv
