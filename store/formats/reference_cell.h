// Reference rows: rows of an engine's cache that refer to chunks of a corpus, which are stored
// elsewhere.
//
// An engine's attention call does not identify its request, but it passes the rows that the request
// attends. A reference is one of these rows, and names the chunks to attend. Because the reference
// is in the cache, the engine carries it through copies, forks, batches and restored states.
//
// Every value of the row is a quiet NaN of bf16. If no reader recognizes the reference, the result
// is NaN, and never a plausible value. Six bits of the mantissa and the sign are free: 7 bits per
// value, 504 bytes in a row of 576 values. These bytes are, little-endian:
//
//   bytes  a reference
//       8  "ckv-cell"
//       4  version, 1
//       4  layer
//      32  digest of the chunks (DigestOfChunks)
//     4+4  chunk_begin, chunk_end
//       8  position of the first token
//       8  token_count
//     1+1  lengths of the names of the corpus and the tenant, then both names
//          zeros
//       8  checksum of all bytes before it, the last in the row

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv {

inline constexpr uint32_t kReferenceVersion = 1;

// Chunks of a corpus as one sequence attends them at one layer: consecutive, with the first token
// at `position`.
struct CellReference {
  std::string corpus;
  std::string tenant;  // "" is the shared tenant
  std::array<uint8_t, 32> digest{};
  uint32_t chunk_begin = 0;  // ordinals
  uint32_t chunk_end = 0;
  uint64_t position = 0;
  uint64_t token_count = 0;
  uint32_t layer = 0;

  friend bool operator==(const CellReference&, const CellReference&) = default;
};

// Returns a digest that identifies these chunks and their model. If the corpus is published again,
// an engine's reference still means the rows for which it was made.
//   SHA-256(15 as u64 | "ckv.reference.1" | fingerprint | count u64 | ids)
std::array<uint8_t, 32> DigestOfChunks(const Geometry& geometry,
                                       std::span<const ChunkPlacement> chunks);

// Returns the reference, at layer 0, to chunks [chunk_begin, chunk_end): a non-empty range that the
// corpus contains. If `position` is unset, the first token is at its canonical position.
CellReference ReferenceTo(const Corpus& corpus, uint32_t chunk_begin, uint32_t chunk_end,
                          std::optional<uint64_t> position);

// Fills `row`, a row of bf16 values at any address, with the reference.
//   InvalidArgument     the row is too short or has half a value. Or the reference has an invalid
//                       name or layer, no chunk, no token, or a position beyond kPositionMax.
//                       The message reports which.
absl::Status EncodeReference(const CellReference& reference, std::span<std::byte> row);

// Returns whether a row of bf16 values is a reference of any version. A row that an engine computed
// is never one, because its NaNs all have the same payload.
bool IsReference(std::span<const std::byte> row);

// Decodes a reference from an untrusted row.
//   InvalidArgument     the row is not a reference.
//   FailedPrecondition  the reference has another version.
//   DataLoss            the reference was changed: its checksum is wrong, or a field is out of
//                       range. An engine that shifts positions rotates its rows, and so damages it.
absl::StatusOr<CellReference> DecodeReference(std::span<const std::byte> row);

}  // namespace ckv
