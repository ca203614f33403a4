// Splices rows: copies them from their canonical positions to other positions in a paged cache.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "attention/rope.h"
#include "proto/geometry.h"

namespace ckv {

// Returns the rotation that moves rows of `geometry` from their canonical positions by `delta`,
// which may be negative. A closed form with angles in f64, so distant positions cost the same. The
// identity for delta 0 and for geometries without a RoPE band (d_rope = 0 or style kNone).
RopeRotation SpliceRotation(const Geometry& geometry, int64_t delta);

// Copies `rows` into the blocks and rotates their RoPE bands, in one pass on `stream`.
//
//   rotation   from SpliceRotation; the identity copies without rotating
//   rows       [token][row_bytes] of one layer, bf16 or fp8_ds_mla; whole rows in host or pinned
//              memory, any address
//   to         rows are written to [row_begin, row_begin + tokens); nothing else is written
//
// `rows` are the canonical rows, as in the store and as returned by a fetch without a position.
// Their bands are rounded once. A rotated chunk is never rotated again: to move one, splice the
// canonical rows again. The latent part and the scales of fp8 rows are copied bit for bit. A
// selection is not spliced, because its rows have no common delta.
//
// Error of a band: <= 2^-8 of each pair's length against the rotation of the bf16 values. Against
// the values before rounding for the store it is <= 3 x 2^-8.
// The rows must fit the table (CKV_CHECK). Errors, lifetimes and order as Backend::Scatter.
// Cost: reads and writes each row once; no allocation.
absl::Status Splice(const RopeRotation& rotation, const Geometry& geometry,
                    std::span<const std::byte> rows, const PagedPlace& to, ComputeStream& stream,
                    MemoryKind rows_memory = MemoryKind::kHost);

// Rotates the RoPE bands of canonical rows that a transfer has put in their final place, in host or
// pinned memory. Call it once per row; the notes above apply.
absl::Status SpliceInPlace(const RopeRotation& rotation, const Geometry& geometry,
                           std::span<std::byte> rows, ComputeStream& stream,
                           MemoryKind rows_memory = MemoryKind::kHost);

}  // namespace ckv
