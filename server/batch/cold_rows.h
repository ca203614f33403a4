// The rows of one request that were on disk. They are pins of chunks loaded whole, and single
// layers with only the rows that the request needs.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/batch/sparse_layer.h"
#include "server/batch/stripe_cache.h"
#include "store/chunk_store.h"
#include "transport/wire_attend.h"

namespace ckv {

// The limit of bytes read for one request alone, without loading their chunk. They are in addition
// to store.capacity, as are the stripes of a StripeCache. The limit is a 32nd of store.capacity, at
// least 4 MiB (a V3 layer of 2048 tokens has 2.4 MB) and at most 64 MiB.
constexpr uint64_t ColdRowBytesMax(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / 32, uint64_t{4} << 20, uint64_t{64} << 20);
}

// Filled by one thread, then read by any thread (ReadyRequest::cold_rows). The store and the cache
// must outlive it.
class ColdRows {
 public:
  // Keeps layers in this object's own memory, and only the rows that Add reads, up to `bytes_max`
  // bytes.
  explicit ColdRows(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  // Keeps layers in `buffer`, memory that a device can access, which must outlive this object. Each
  // layer takes all its bytes there, in whole pages, however few of its rows are read.
  explicit ColdRows(std::span<std::byte> buffer) : bytes_max_(buffer.size()), buffer_(buffer) {}
  ColdRows(const ColdRows&) = delete;
  ColdRows& operator=(const ColdRows&) = delete;

  // Keeps a chunk that was loaded whole in memory until this object is destroyed.
  void Keep(ChunkPin pin) { pins_.push_back(std::move(pin)); }
  // Keeps stripes of the chunk's layer in the cache until this object is destroyed. All holds for
  // one chunk must be of the same layer.
  void Keep(ChunkLocator chunk, StripeCache::Hold hold);
  // Reads `stripes` (ascending) of one tensor of the chunk. The tensor's other rows are zero and
  // must not be used. A second call for the chunk must name the same tensor, and adds stripes. Do
  // not call it for a chunk of which a hold is kept.
  //   ResourceExhausted   all calls together exceed bytes_max or the buffer, or no memory.
  //   and ChunkRows::Read's errors.
  absl::Status Add(ChunkLocator chunk, const ChunkRows& rows, uint32_t tensor,
                   std::span<const uint32_t> stripes);

  struct Layer {
    ChunkLocator chunk;
    const std::byte* rows = nullptr;  // [token_count][row_bytes]
    uint32_t token_count = 0;
  };
  // Returns the layer kept or added for the chunk, or null if there is none.
  const Layer* Find(ChunkLocator chunk) const;
  // Bytes of bytes_max or of the buffer that Add has used.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Found {
    Layer layer;
    std::optional<size_t> own;  // index of its memory in own_; unset for a hold
  };

  const uint64_t bytes_max_;
  const std::span<std::byte> buffer_;  // empty if layers are in this object's own memory
  uint64_t bytes_ = 0;
  std::vector<ChunkPin> pins_;
  absl::flat_hash_map<uint32_t, Found> layers_;  // by the chunk's slot
  std::vector<SparseLayer> own_;
  std::vector<StripeCache::Hold> holds_;
};

// Returns the indices of the rows that a segment's piece selects. They are in the request's slot.
std::span<const int32_t> IndicesOf(const AttendRequest& request, const AttendSegment& segment,
                                   const PieceEntry& piece);

// Adds to `stripes` the stripes that contain the rows in `indices` of a chunk of `token_count`
// tokens. The result is ascending, with each stripe once. Indices outside the chunk select nothing
// (attention/mla_partial.h). A peer on shm that changes its indices meanwhile may get a result over
// zeros, or over rows that are being read. That harms only the peer.
void AddSelectedStripes(std::span<const int32_t> indices, uint32_t token_count,
                        std::vector<uint32_t>* stripes);

}  // namespace ckv
