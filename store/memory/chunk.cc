// Chunks and their writer. ChunkWriter: Begin checks the description and allocates the extent;
// Write copies rows of a layer in order, with gaps cleared; Finish computes checksums of layers and
// stripes, and refuses missing bytes or a layer that differs from its announced checksum. A Chunk
// never changes after that. ValidateChunkInfo checks that the id follows from the content.

#include "store/memory/chunk.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "proto/base/xxh3.h"
#include "proto/token_id.h"
#include "store/memory/chunk_id.h"

namespace ckv {
namespace {

absl::Status Refuse(const ChunkInfo& info, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("chunk %s: %s", info.id.ShortHex(), what));
}

}  // namespace

absl::Status ValidateChunkInfo(const ChunkInfo& info, const Geometry& geometry) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  if (info.token_ids.size() > kChunkTokenCountMax) {
    return Refuse(
        info, absl::StrFormat("%d tokens, limit %d", info.token_ids.size(), kChunkTokenCountMax));
  }
  if (info.position > kPositionMax) {
    return Refuse(info, absl::StrFormat("position %d, limit %d", info.position, kPositionMax));
  }
  if (info.layer_checksums.size() != geometry.layers) {
    return Refuse(info, absl::StrFormat("%d layer checksums, the geometry has %d layers",
                                        info.layer_checksums.size(), geometry.layers));
  }
  if (const auto ids = CheckTokenIds("token_ids", info.token_ids); !ids.ok())
    return Refuse(info, std::string(ids.message()));
  if (const auto keys = ValidateExtraKeys(info.extra_keys, info.token_count()); !keys.ok())
    return Refuse(info, std::string(keys.message()));
  const ChunkId expected =
      TaggedChunkId(ComputeChunkId(ModelFingerprint(geometry), info.parent, info.position,
                                   info.token_ids, info.extra_keys),
                    info.verification_tag);
  if (info.id != expected) {
    return Refuse(info, absl::StrFormat("its model, parent, position, tokens and extra keys give "
                                        "the id %s",
                                        expected.ShortHex()));
  }
  return absl::OkStatus();
}

ChunkLayout LayOutChunk(const Geometry& geometry, uint32_t token_count) {
  ChunkLayout layout;
  layout.layer_bytes = uint64_t{token_count} * geometry.row_bytes();
  layout.layer_stride_bytes =
      (layout.layer_bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  layout.total_bytes = geometry.layers * layout.layer_stride_bytes;
  return layout;
}

uint64_t ChecksumOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Chunk::Chunk(ChunkInfo info, const Geometry* geometry, Extent extent)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(LayOutChunk(*geometry, info_.token_count())),
      extent_(std::move(extent)) {
  CKV_CHECK(extent_.bytes().size() == layout_.total_bytes);
  const uint32_t token_count = info_.token_count();
  stripe_checksums_.reserve(size_t{geometry_->layers} * StripeCount(token_count));
  const uint64_t row_bytes = geometry_->row_bytes();
  for (uint32_t l = 0; l < geometry_->layers; ++l) {
    for (uint32_t token = 0; token < token_count; token += kStripeTokens) {
      const uint64_t rows = std::min(kStripeTokens, token_count - token);
      stripe_checksums_.push_back(
          StripeChecksum(layer(l).subspan(token * row_bytes, rows * row_bytes)));
    }
  }
}

Chunk::Chunk(ChunkInfo info, const Geometry* geometry, Extent extent,
             std::vector<uint64_t> stripe_checksums)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(LayOutChunk(*geometry, info_.token_count())),
      extent_(std::move(extent)),
      stripe_checksums_(std::move(stripe_checksums)) {
  CKV_CHECK(extent_.bytes().size() == layout_.total_bytes);
  CKV_CHECK(stripe_checksums_.size() ==
            size_t{geometry_->layers} * StripeCount(info_.token_count()));
}

std::span<const std::byte> Chunk::layer(uint32_t layer) const {
  assert(layer < geometry_->layers);
  return extent_.bytes().subspan(layer * layout_.layer_stride_bytes, layout_.layer_bytes);
}

std::span<const uint64_t> Chunk::stripe_checksums(uint32_t layer) const {
  const size_t count = StripeCount(info_.token_count());
  assert(layer < geometry_->layers);
  return std::span(stripe_checksums_).subspan(layer * count, count);
}

ChunkWriter::ChunkWriter(ChunkInfo info, const Geometry* geometry, Extent extent)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(LayOutChunk(*geometry, info_.token_count())),
      extent_(std::move(extent)),
      written_bytes_(geometry->layers, 0) {
  // The arena does not clear: what an earlier chunk left between two layers must not go out with
  // this one.
  const size_t padding_bytes = layout_.layer_stride_bytes - layout_.layer_bytes;
  if (padding_bytes == 0) return;
  for (uint32_t layer = 0; layer < geometry->layers; ++layer) {
    std::byte* end = extent_.bytes().data() + layer * layout_.layer_stride_bytes;
    std::memset(end + layout_.layer_bytes, 0, padding_bytes);
  }
}

absl::StatusOr<ChunkWriter> ChunkWriter::Begin(ChunkInfo info, const Geometry* geometry,
                                               Arena* arena) {
  CKV_RETURN_IF_ERROR(ValidateChunkInfo(info, *geometry));
  CKV_ASSIGN_OR_RETURN(Extent extent,
                       arena->Allocate(LayOutChunk(*geometry, info.token_count()).total_bytes));
  return ChunkWriter(std::move(info), geometry, std::move(extent));
}

absl::Status ChunkWriter::Write(uint32_t layer, uint64_t offset_bytes,
                                std::span<const std::byte> bytes) {
  if (layer >= written_bytes_.size()) {
    return Refuse(info_, absl::StrFormat("layer %d, there are %d", layer, written_bytes_.size()));
  }
  uint64_t& written_bytes = written_bytes_[layer];
  if (offset_bytes != written_bytes) {
    return Refuse(info_, absl::StrFormat("layer %d: rows at byte %d, the next ones start at %d",
                                         layer, offset_bytes, written_bytes));
  }
  if (bytes.size() > layout_.layer_bytes - written_bytes) {
    return Refuse(info_, absl::StrFormat("layer %d: %d bytes at %d, the layer has %d", layer,
                                         bytes.size(), offset_bytes, layout_.layer_bytes));
  }
  if (bytes.empty()) return absl::OkStatus();
  std::byte* to = extent_.bytes().data() + layer * layout_.layer_stride_bytes + offset_bytes;
  std::memcpy(to, bytes.data(), bytes.size());
  written_bytes += bytes.size();
  return absl::OkStatus();
}

absl::StatusOr<Chunk> ChunkWriter::Finish() && {
  for (uint32_t layer = 0; layer < written_bytes_.size(); ++layer) {
    if (written_bytes_[layer] != layout_.layer_bytes) {
      return Refuse(info_, absl::StrFormat("layer %d: %d of %d bytes were written", layer,
                                           written_bytes_[layer], layout_.layer_bytes));
    }
  }
  Chunk chunk(std::move(info_), geometry_, std::move(extent_));
  for (uint32_t layer = 0; layer < geometry_->layers; ++layer) {
    const uint64_t checksum = ChecksumOf(chunk.layer(layer));
    if (checksum != chunk.info().layer_checksums[layer]) {
      return absl::DataLossError(absl::StrFormat(
          "chunk %s: layer %d: the bytes' checksum is %016x, should be %016x",
          chunk.info().id.ShortHex(), layer, checksum, chunk.info().layer_checksums[layer]));
    }
  }
  return chunk;
}

}  // namespace ckv
