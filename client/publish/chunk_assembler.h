// Assembles the tensors of one chunk from the pieces that an engine passes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "proto/chunk_layout.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// The inputs that determine a chunk's id, known before its rows.
struct ChunkInputs {
  ChunkId parent;         // zero for a standalone chunk and the first of a chain
  uint64_t position = 0;  // canonical position of the first token
  std::vector<int32_t> token_ids;
  TenantKey key = {};  // the key of the corpus's tenant (Publisher::KeyOf); zero makes a plain id
  ExtraKeys extra_keys = {};  // counted from the first token, in any order
};

// A complete chunk, and the token hashes by which prompts find it.
struct AssembledChunk {
  SourceChunk chunk;
  TokenHash token_hash;
};

// Stores one chunk's tensors (proto/chunk_layout.h) until they are put. Use it by one
// thread at a time.
class ChunkAssembler {
 public:
  // Allocates all memory at once, so that a put that cannot finish does not begin.
  //   InvalidArgument     there are no tokens or more than kChunkTokenCountMax, or a token id or
  //                       extra key is not valid (SortExtraKeys).
  //   ResourceExhausted   the rows take more than `bytes_max`.
  static absl::StatusOr<std::unique_ptr<ChunkAssembler>> Begin(const Geometry& geometry,
                                                               ChunkInputs inputs,
                                                               uint64_t bytes_max);

  // Copies rows of one tensor. Tensors may arrive in any order, but the rows of one in sequence:
  // `offset` is the number of its bytes already added.
  //   InvalidArgument     there is no such tensor, or the rows are out of sequence or do not fit.
  absl::Status Add(uint32_t tensor, uint64_t offset, std::span<const std::byte> rows);

  uint64_t bytes() const { return layout_.total_bytes(); }
  // Returns the chunk with its id and the checksums of its tensors. Call once.
  //   FailedPrecondition  rows are missing; names the tensor.
  absl::StatusOr<AssembledChunk> Finish();

 private:
  ChunkAssembler(const Geometry& geometry, ChunkInputs inputs);

  const Geometry geometry_;
  ChunkInputs inputs_;
  const ChunkLayout layout_;
  std::vector<uint64_t> filled_;       // [tensors], bytes
  std::shared_ptr<std::byte[]> rows_;  // layout_
};

}  // namespace ckv
