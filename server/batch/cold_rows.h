// What a request over chunks that are on disk is served from: pins of those that were read into
// memory for it, and of others the rows that it asks for, at their places in a layer.

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

// Rows of one request that are read without their chunk are beside store.capacity: a 32nd of it,
// but at least a V3 layer of 2048 tokens (2.4 MB).
constexpr uint64_t ColdRowBytesMax(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / 32, uint64_t{4} << 20, uint64_t{64} << 20);
}

// Made on the reading thread, then only read. The store must outlive it.
class ColdRows {
 public:
  explicit ColdRows(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ColdRows(const ColdRows&) = delete;
  ColdRows& operator=(const ColdRows&) = delete;

  void Keep(ChunkPin pin) { pins_.push_back(std::move(pin)); }
  // Reads these stripes of a layer, in ascending order; the layer's other rows are zero and not to
  // be used, unless they are added by another call for the chunk: a request may name it twice.
  //   ResourceExhausted   over bytes_max with what was added before, or no memory.
  //   and as ChunkRows::Read.
  absl::Status Add(ChunkLocator chunk, const ChunkRows& rows, uint32_t layer,
                   std::span<const uint32_t> stripes);

  // The layer that was added of the chunk, [token_count][row_bytes]; null: none was.
  struct Layer {
    ChunkLocator chunk;
    const std::byte* rows = nullptr;
    uint32_t token_count = 0;
  };
  const Layer* Find(ChunkLocator chunk) const;
  // That were read.
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
  // Each a whole layer's addresses: pages are there where rows were read.
  std::vector<std::unique_ptr<std::byte, Unmap>> memory_;
};

// The stripes of a chunk of `token_count` tokens that have rows which `indices` select, ascending;
// indices outside the chunk select none (attention/mla_partial.h). A peer that writes them
// meanwhile, on shm, gets an answer over zeros: it asked for nothing that can be answered.
void SelectedStripes(std::span<const int32_t> indices, uint32_t token_count,
                     std::vector<uint32_t>* stripes);

}  // namespace ckv
