// The rows read from disk for one request: pins of chunks loaded whole, and single layers with only
// the rows it needs.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/chunk_store.h"

namespace ckv {

// The limit of bytes read for one request without their chunk. They lie beside store.capacity. The
// limit is a 32nd of it, at least 4 MiB (a V3 layer of 2048 tokens has 2.4 MB), at most 64 MiB.
constexpr uint64_t ColdRowBytesMax(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / 32, uint64_t{4} << 20, uint64_t{64} << 20);
}

// Filled by one thread, then read by any (ReadyRequest::cold_rows). The store must outlive it.
class ColdRows {
 public:
  explicit ColdRows(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ColdRows(const ColdRows&) = delete;
  ColdRows& operator=(const ColdRows&) = delete;

  // Keeps a chunk that was loaded whole in memory until this object ends.
  void Keep(ChunkPin pin) { pins_.push_back(std::move(pin)); }
  // Reads `stripes` (ascending) of one layer of the chunk. The layer's other rows are zero and must
  // not be used. A second call for the chunk, with the same layer, adds stripes.
  //   ResourceExhausted   more than bytes_max over all calls, or no memory.
  //   and ChunkRows::Read's errors.
  absl::Status Add(ChunkLocator chunk, const ChunkRows& rows, uint32_t layer,
                   std::span<const uint32_t> stripes);

  struct Layer {
    ChunkLocator chunk;
    const std::byte* rows = nullptr;  // [token_count][row_bytes]
    uint32_t token_count = 0;
  };
  // The layer added for the chunk, or null if none was.
  const Layer* Find(ChunkLocator chunk) const;
  // Bytes read by Add so far.
  uint64_t bytes() const { return bytes_; }

 private:
  absl::StatusOr<std::byte*> MapLayer(uint64_t layer_bytes);
  struct Unmap {
    size_t bytes = 0;
    void operator()(std::byte* memory) const;
  };

  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::vector<ChunkPin> pins_;
  absl::flat_hash_map<uint32_t, Layer> layers_;  // by the chunk's slot
  // Address space for whole layers; only pages whose rows were read take memory.
  std::vector<std::unique_ptr<std::byte, Unmap>> memory_;
};

// Fills `stripes` with the stripes, ascending, that hold the rows in `indices` of a chunk of
// `token_count` tokens. Indices outside the chunk select nothing (attention/mla_partial.h). A peer
// on shm that changes its indices meanwhile may get an answer over zeros, which harms only itself.
void SelectedStripes(std::span<const int32_t> indices, uint32_t token_count,
                     std::vector<uint32_t>* stripes);

}  // namespace ckv
