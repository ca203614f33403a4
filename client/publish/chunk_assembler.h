// The rows of one chunk, as an engine hands them out: by layers, in pieces.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// Names a chunk before its rows are there.
struct ChunkInputs {
  ChunkId parent;         // zero begins a chain, and so does a standalone chunk
  uint64_t position = 0;  // canonical position of the first token
  std::vector<int32_t> token_ids;
  TenantKey key = {};  // the key of the corpus' tenant (Publisher::KeyOf); zero makes a plain id
  ExtraKeys extra_keys = {};  // counted from the first token, in any order
};

// A whole chunk, and the print by which prompts find it.
struct AssembledChunk {
  SourceChunk chunk;
  TokenPrint print;
};

// Keeps one chunk's rows, layers x tokens x row_bytes bytes, until they are put. One thread at a
// time.
class ChunkAssembler {
 public:
  // Takes the memory at once, so that a put that cannot end does not begin.
  //   InvalidArgument     there are no tokens, or more than kChunkTokenCountMax, or a token id or
  //                       extra key is invalid (SortExtraKeys).
  //   ResourceExhausted   the rows take more than `bytes_max`.
  static absl::StatusOr<std::unique_ptr<ChunkAssembler>> Begin(const Geometry& geometry,
                                                               ChunkInputs inputs,
                                                               uint64_t bytes_max);

  // Takes rows of one layer. Layers come in any order, and those of one layer one after another:
  // `offset` is the number of the layer's bytes that came before. Copies them.
  //   InvalidArgument     there is no such layer, or the rows do not follow or do not fit.
  absl::Status Add(uint32_t layer, uint64_t offset, std::span<const std::byte> rows);

  uint64_t bytes() const { return layer_bytes_ * geometry_.layers; }  // all rows of the chunk
  // Returns the chunk, with its id and the checksums of its layers. To be called once.
  //   FailedPrecondition  rows are missing; says of which layer.
  absl::StatusOr<AssembledChunk> Finish();

 private:
  ChunkAssembler(const Geometry& geometry, ChunkInputs inputs);

  const Geometry geometry_;
  ChunkInputs inputs_;
  uint64_t layer_bytes_;
  std::vector<uint64_t> filled_;       // [layers], bytes
  std::shared_ptr<std::byte[]> rows_;  // [layers][tokens][row_bytes]
};

}  // namespace ckv
