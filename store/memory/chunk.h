// One chunk: its description and its rows, [layer][token][row], 64-byte aligned.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/arena.h"

namespace ckv {

// What a chunk is, without its rows. Checked as a whole by ValidateChunkInfo.
struct ChunkInfo {
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;           // canonical position of the first token
  std::vector<int32_t> token_ids;  // [token_count]
  // XXH3-64 of each layer's rows, [layers]: the bytes' own checksums, beside the id of the inputs.
  std::vector<uint64_t> layer_checksums;

  uint32_t token_count() const { return static_cast<uint32_t>(token_ids.size()); }
};

// Limits, and that the id is the one its inputs give.
//   InvalidArgument     names what does not fit.
absl::Status ValidateChunkInfo(const ChunkInfo& info, const Geometry& geometry);

// Where a layer lies in a chunk's bytes: layer x stride, each layer 64-byte aligned.
struct ChunkLayout {
  uint64_t layer_bytes = 0;         // token_count x row_bytes
  uint64_t layer_stride_bytes = 0;  // layer_bytes rounded up to 64
  uint64_t total_bytes = 0;         // layers x layer_stride_bytes
};
ChunkLayout LayOutChunk(const Geometry& geometry, uint32_t token_count);

uint64_t ChecksumOf(std::span<const std::byte> bytes);  // XXH3-64

// A whole, immutable chunk. Movable; the arena must outlive it.
class Chunk {
 public:
  // Of rows that are there; checksums their stripes. `geometry` must outlive the chunk (the table
  // interns it).
  Chunk(ChunkInfo info, const Geometry* geometry, Extent extent);
  // Of rows that were checked against these, [layers][StripeCount(token_count)].
  Chunk(ChunkInfo info, const Geometry* geometry, Extent extent,
        std::vector<uint64_t> stripe_checksums);

  const ChunkInfo& info() const { return info_; }
  const Geometry& geometry() const { return *geometry_; }
  const ChunkLayout& layout() const { return layout_; }
  // token_count x row_bytes bytes of one layer; layer < geometry().layers.
  std::span<const std::byte> layer(uint32_t layer) const;
  // StripeChecksum of each of a layer's stripes, as its rows were when they became this chunk.
  std::span<const uint64_t> stripe_checksums(uint32_t layer) const;
  // Its memory, for whoever was the last to read the rows.
  Extent TakeExtent() && { return std::move(extent_); }

 private:
  ChunkInfo info_;
  const Geometry* geometry_;
  ChunkLayout layout_;
  Extent extent_;
  std::vector<uint64_t> stripe_checksums_;  // [layers][StripeCount(token_count)]
};

// A chunk being received: bytes come in any order of layers, in order inside a layer; Finish checks
// that all came and that every layer's checksum holds (I3: published when whole).
class ChunkWriter {
 public:
  //   InvalidArgument     the info or geometry.
  //   ResourceExhausted   the arena is full.
  static absl::StatusOr<ChunkWriter> Begin(ChunkInfo info, const Geometry* geometry, Arena* arena);

  //   InvalidArgument     outside the layer, or not where its last piece ended.
  absl::Status Write(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> bytes);

  // Not used afterwards.
  //   InvalidArgument     bytes are missing; says of which layer.
  //   DataLoss            a layer's checksum does not match.
  absl::StatusOr<Chunk> Finish() &&;

 private:
  ChunkWriter(ChunkInfo info, const Geometry* geometry, Extent extent);

  ChunkInfo info_;
  const Geometry* geometry_;
  ChunkLayout layout_;
  Extent extent_;
  std::vector<uint64_t> written_bytes_;  // a layer
};

}  // namespace ckv
