#include "client/publish/chunk_assembler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/corpus.h"
#include "proto/token_id.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace ckv {

ChunkAssembler::ChunkAssembler(const Geometry& geometry, ChunkInputs inputs)
    : geometry_(geometry),
      inputs_(std::move(inputs)),
      layer_bytes_(uint64_t{inputs_.token_ids.size()} * geometry.row_bytes()),
      filled_(geometry.layers),
      rows_(std::make_shared_for_overwrite<std::byte[]>(layer_bytes_ * geometry.layers)) {}

absl::StatusOr<std::unique_ptr<ChunkAssembler>> ChunkAssembler::Begin(const Geometry& geometry,
                                                                      ChunkInputs inputs,
                                                                      uint64_t bytes_max) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  const size_t tokens = inputs.token_ids.size();
  if (tokens == 0 || tokens > kChunkTokenCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a chunk of %d tokens; it must have 1 to %d", tokens, kChunkTokenCountMax));
  }
  CKV_RETURN_IF_ERROR(CheckTokenIds("token_ids", inputs.token_ids));
  CKV_ASSIGN_OR_RETURN(inputs.extra_keys, SortExtraKeys(std::move(inputs.extra_keys), tokens));
  const uint64_t bytes = tokens * geometry.token_bytes();
  if (bytes > bytes_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the rows of a chunk of %d tokens take %d bytes, and %d are free for chunks that are put\n"
        "  put fewer at once, or smaller ones",
        tokens, bytes, bytes_max));
  }
  return std::unique_ptr<ChunkAssembler>(new ChunkAssembler(geometry, std::move(inputs)));
}

absl::Status ChunkAssembler::Add(uint32_t layer, uint64_t offset, std::span<const std::byte> rows) {
  if (layer >= geometry_.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d; the geometry has %d", layer, geometry_.layers));
  }
  if (offset != filled_[layer]) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d: rows at byte %d, and those from byte %d on are due", layer,
                        offset, filled_[layer]));
  }
  if (rows.size() > layer_bytes_ - offset) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layer %d: %d bytes of rows; %d tokens of %d bytes have %d", layer, offset + rows.size(),
        inputs_.token_ids.size(), geometry_.row_bytes(), layer_bytes_));
  }
  std::copy(rows.begin(), rows.end(), rows_.get() + layer * layer_bytes_ + offset);
  filled_[layer] += rows.size();
  return absl::OkStatus();
}

absl::StatusOr<AssembledChunk> ChunkAssembler::Finish() {
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    if (filled_[layer] == layer_bytes_) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("the chunk is not whole: %d of %d bytes of layer %d are there",
                        filled_[layer], layer_bytes_, layer));
  }
  AssembledChunk assembled;
  assembled.token_hash = TokenHashOf(inputs_.token_ids, inputs_.key, inputs_.extra_keys);
  SourceChunk& chunk = assembled.chunk;
  chunk.info.parent = inputs_.parent;
  chunk.info.position = inputs_.position;
  chunk.info.token_ids = std::move(inputs_.token_ids);
  chunk.info.extra_keys = std::move(inputs_.extra_keys);
  const ChunkId plain =
      ComputeChunkId(ModelFingerprint(geometry_), chunk.info.parent, chunk.info.position,
                     chunk.info.token_ids, chunk.info.extra_keys);
  chunk.info.verification_tag = VerificationTagOf(plain, inputs_.key);
  chunk.info.id = TaggedChunkId(plain, chunk.info.verification_tag);
  chunk.rows = [rows = rows_.get(), bytes = layer_bytes_](uint32_t layer) {
    return std::span<const std::byte>(rows + layer * bytes, bytes);
  };
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    chunk.info.layer_checksums.push_back(ChecksumOf(chunk.rows(layer)));
  }
  chunk.owned = std::move(rows_);
  return assembled;
}

}  // namespace ckv
