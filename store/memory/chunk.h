// One chunk: its description and its tensors (proto/chunk_layout.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/chunk_layout.h"
#include "proto/corpus.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/memory/arena.h"

namespace ckv {

// Describes a chunk without its rows. Check a description from outside with ValidateChunkInfo.
struct ChunkInfo {
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;           // canonical position of the first token
  std::vector<int32_t> token_ids;  // [token_count]
  // XXH3-64 of each tensor, [tensors]. The id hashes only the inputs, so rows need checksums.
  std::vector<uint64_t> tensor_checksums;
  // The verification tag: binds a keyed id to its inputs (store/memory/chunk_id.h). Zero if the id
  // has no key.
  VerificationTag verification_tag = {};
  // Pictures and other keys that affect the rows, sorted, counted from the chunk's first token.
  ExtraKeys extra_keys = {};

  uint32_t token_count() const { return static_cast<uint32_t>(token_ids.size()); }
};

// Checks the limits, the token ids and the extra keys. Also checks that the id is the result of
// ComputeChunkId or TaggedChunkId for the inputs and the tag.
//   InvalidArgument     a check failed; the message names it.
absl::Status ValidateChunkInfo(const ChunkInfo& info, const Geometry& geometry);

// Returns XXH3-64 of the bytes.
uint64_t ChecksumOf(std::span<const std::byte> bytes);

// A whole, immutable chunk. Movable; any thread may read it. Its arena must outlive it.
class Chunk {
 public:
  // Takes ownership of `extent`, which has the tensors in ChunkLayout, and computes their
  // stripe checksums. `geometry` must outlive the chunk (ChunkTable::Intern).
  Chunk(ChunkInfo info, const Geometry* geometry, Extent extent);
  // The same, for rows already checked against these checksums, [tensors][StripeCount].
  Chunk(ChunkInfo info, const Geometry* geometry, Extent extent,
        std::vector<uint64_t> stripe_checksums);

  const ChunkInfo& info() const { return info_; }
  const Geometry& geometry() const { return *geometry_; }
  const ChunkLayout& layout() const { return layout_; }
  // Returns the rows of one tensor, layout().bytes(tensor) bytes. `tensor` is below
  // geometry().tensor_count().
  std::span<const std::byte> tensor(uint32_t tensor) const;
  // Returns the rows of one layer, which is below geometry().layers.
  std::span<const std::byte> layer(uint32_t layer) const { return tensor(layer); }
  // Returns StripeChecksum of each stripe of a tensor, as of the chunk's construction.
  std::span<const uint64_t> stripe_checksums(uint32_t tensor) const;
  // Releases the memory to the caller. No thread may read the chunk's rows afterwards.
  Extent TakeExtent() && { return std::move(extent_); }

 private:
  ChunkInfo info_;
  const Geometry* geometry_;
  ChunkLayout layout_;
  Extent extent_;
  std::vector<uint64_t> stripe_checksums_;  // [tensors][StripeCount(token_count)]
};

// Receives a chunk into an arena. Tensors may arrive in any order; the bytes of one arrive in
// order, without gaps (I3: published when whole). Movable; one thread at a time. The arena must
// outlive the writer. Destroying the writer frees the memory.
class ChunkWriter {
 public:
  // Reserves memory for the chunk. `geometry` must outlive the writer and its chunk.
  //   InvalidArgument     the info or the geometry is not valid; the message names the field.
  //   ResourceExhausted   the arena has no room.
  static absl::StatusOr<ChunkWriter> Begin(ChunkInfo info, const Geometry* geometry, Arena* arena);

  // Copies rows of one tensor, beginning `offset_bytes` after its first byte.
  //   InvalidArgument     there is no such tensor, the bytes exceed it, or they do not begin where
  //                       its previous bytes ended.
  absl::Status Write(uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Checks that all bytes have arrived and that every tensor's checksum matches. Do not use the
  // writer afterwards.
  //   InvalidArgument     bytes are missing; the message names the tensor.
  //   DataLoss            a tensor's checksum does not match its rows.
  absl::StatusOr<Chunk> Finish() &&;

 private:
  ChunkWriter(ChunkInfo info, const Geometry* geometry, Extent extent);

  ChunkInfo info_;
  const Geometry* geometry_;
  ChunkLayout layout_;
  Extent extent_;
  std::vector<uint64_t> written_bytes_;  // per tensor
};

}  // namespace ckv
