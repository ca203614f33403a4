// Rows that stand for a corpus in an engine's cache: what is attended is elsewhere.
//
// An engine's attention does not say which request it serves, but it hands over the rows that the
// request sees. A reference is one of them, and says where the others are. It goes where the engine
// takes its sequence: copies, forks, batches and restored states.
//
// Every value of the row is a quiet NaN of bf16. If nobody knows the reference, the answer is NaN,
// and never a plausible one. Six bits of the mantissa and the sign are free, 7 bits a value: 504
// bytes in a row of 576 values. They are, little-endian:
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

// Chunks of a corpus, as one sequence attends them at one layer: one behind the other, the first
// token at `position`.
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

// Names these chunks and their model. A corpus may be published anew: an engine's reference still
// means the rows that it was made of.
//   SHA-256(15 as u64 | "ckv.reference.1" | fingerprint | count u64 | ids)
std::array<uint8_t, 32> DigestOfChunks(const Geometry& geometry,
                                       std::span<const ChunkPlacement> chunks);

// Returns the reference to chunks [chunk_begin, chunk_end) of a corpus, which has them, at layer 0.
// If there is no position, the first token stands at its canonical one.
CellReference ReferenceTo(const Corpus& corpus, uint32_t chunk_begin, uint32_t chunk_end,
                          std::optional<uint64_t> position);

// Fills `row` with the reference. It is a row of bf16 values, at any address.
//   InvalidArgument     the row is too short, has half a value, or the reference names no chunk, no
//                       token or a position beyond kPositionMax; says which.
absl::Status EncodeReference(const CellReference& reference, std::span<std::byte> row);

// Whether a row of bf16 values is a reference, of whatever version. A row that an engine computed
// is none: its NaNs have one payload.
bool IsReference(std::span<const std::byte> row);

// Reads a reference, which is not trusted.
//   InvalidArgument     the row is none.
//   FailedPrecondition  it is of another version.
//   DataLoss            it was changed: its checksum is wrong, or a field is beyond its limit. An
//                       engine that shifts positions rotates its rows, and so breaks it.
absl::StatusOr<CellReference> DecodeReference(std::span<const std::byte> row);

}  // namespace ckv
