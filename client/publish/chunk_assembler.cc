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
      layout_(geometry, static_cast<uint32_t>(inputs_.token_ids.size())),
      filled_(layout_.tensor_count()),
      rows_(std::make_shared_for_overwrite<std::byte[]>(layout_.total_bytes())) {}

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

absl::Status ChunkAssembler::Add(uint32_t tensor, uint64_t offset,
                                 std::span<const std::byte> rows) {
  if (tensor >= layout_.tensor_count()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d; the geometry has %d", tensor, layout_.tensor_count()));
  }
  if (offset != filled_[tensor]) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: rows at byte %d, and those from byte %d on are due",
                        geometry_.TensorName(tensor), offset, filled_[tensor]));
  }
  if (rows.size() > layout_.bytes(tensor) - offset) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes of rows; %d tokens of %d bytes have %d", geometry_.TensorName(tensor),
        offset + rows.size(), inputs_.token_ids.size(), layout_.row_bytes(tensor),
        layout_.bytes(tensor)));
  }
  std::copy(rows.begin(), rows.end(), rows_.get() + layout_.begin(tensor) + offset);
  filled_[tensor] += rows.size();
  return absl::OkStatus();
}

absl::StatusOr<AssembledChunk> ChunkAssembler::Finish() {
  for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
    if (filled_[t] == layout_.bytes(t)) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("the chunk is not whole: %d of %d bytes of %s are there", filled_[t],
                        layout_.bytes(t), geometry_.TensorName(t)));
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
  chunk.rows = [rows = rows_.get(), layout = layout_](uint32_t tensor) {
    return std::span<const std::byte>(rows + layout.begin(tensor), layout.bytes(tensor));
  };
  for (uint32_t t = 0; t < layout_.tensor_count(); ++t)
    chunk.info.tensor_checksums.push_back(ChecksumOf(chunk.rows(t)));
  chunk.owned = std::move(rows_);
  return assembled;
}

}  // namespace ckv
