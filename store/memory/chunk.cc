// Chunks and their writer. ChunkWriter: Begin checks the description and allocates the extent;
// Write copies rows of a tensor in order, with gaps cleared; Finish computes checksums of tensors
// and stripes, and refuses missing bytes or a tensor that differs from its announced checksum. A
// Chunk never changes after that. ValidateChunkInfo checks that the id follows from the content.

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
  if (info.tensor_checksums.size() != geometry.tensor_count()) {
    return Refuse(info, absl::StrFormat("%d tensor checksums, the geometry has %d tensors",
                                        info.tensor_checksums.size(), geometry.tensor_count()));
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

uint64_t ChecksumOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Chunk::Chunk(ChunkInfo info, const Geometry* geometry, Extent extent)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(*geometry, info_.token_count()),
      extent_(std::move(extent)) {
  CKV_CHECK(extent_.bytes().size() == layout_.total_bytes());
  const uint32_t token_count = info_.token_count();
  stripe_checksums_.reserve(size_t{layout_.tensor_count()} * StripeCount(token_count));
  for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
    const uint64_t row_bytes = layout_.row_bytes(t);
    for (uint32_t token = 0; token < token_count; token += kStripeTokens) {
      const uint64_t rows = std::min(kStripeTokens, token_count - token);
      stripe_checksums_.push_back(
          StripeChecksum(tensor(t).subspan(token * row_bytes, rows * row_bytes)));
    }
  }
}

Chunk::Chunk(ChunkInfo info, const Geometry* geometry, Extent extent,
             std::vector<uint64_t> stripe_checksums)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(*geometry, info_.token_count()),
      extent_(std::move(extent)),
      stripe_checksums_(std::move(stripe_checksums)) {
  CKV_CHECK(extent_.bytes().size() == layout_.total_bytes());
  CKV_CHECK(stripe_checksums_.size() ==
            size_t{layout_.tensor_count()} * StripeCount(info_.token_count()));
}

std::span<const std::byte> Chunk::tensor(uint32_t tensor) const {
  assert(tensor < layout_.tensor_count());
  return extent_.bytes().subspan(layout_.begin(tensor), layout_.bytes(tensor));
}

std::span<const uint64_t> Chunk::stripe_checksums(uint32_t tensor) const {
  const size_t count = StripeCount(info_.token_count());
  assert(tensor < layout_.tensor_count());
  return std::span(stripe_checksums_).subspan(tensor * count, count);
}

ChunkWriter::ChunkWriter(ChunkInfo info, const Geometry* geometry, Extent extent)
    : info_(std::move(info)),
      geometry_(geometry),
      layout_(*geometry, info_.token_count()),
      extent_(std::move(extent)),
      written_bytes_(layout_.tensor_count(), 0) {
  // The arena does not clear: what an earlier chunk left between two tensors must not go out with
  // this one.
  for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
    std::byte* end = extent_.bytes().data() + layout_.begin(t) + layout_.bytes(t);
    std::fill_n(end, layout_.padded_bytes(t) - layout_.bytes(t), std::byte{0});
  }
}

absl::StatusOr<ChunkWriter> ChunkWriter::Begin(ChunkInfo info, const Geometry* geometry,
                                               Arena* arena) {
  CKV_RETURN_IF_ERROR(ValidateChunkInfo(info, *geometry));
  CKV_ASSIGN_OR_RETURN(Extent extent,
                       arena->Allocate(ChunkLayout(*geometry, info.token_count()).total_bytes()));
  return ChunkWriter(std::move(info), geometry, std::move(extent));
}

absl::Status ChunkWriter::Write(uint32_t tensor, uint64_t offset_bytes,
                                std::span<const std::byte> bytes) {
  if (tensor >= written_bytes_.size()) {
    return Refuse(info_, absl::StrFormat("tensor %d, there are %d", tensor, written_bytes_.size()));
  }
  uint64_t& written_bytes = written_bytes_[tensor];
  if (offset_bytes != written_bytes) {
    return Refuse(info_,
                  absl::StrFormat("%s: rows at byte %d, the next ones start at %d",
                                  geometry_->TensorName(tensor), offset_bytes, written_bytes));
  }
  if (bytes.size() > layout_.bytes(tensor) - written_bytes) {
    return Refuse(info_,
                  absl::StrFormat("%s: %d bytes at %d, it has %d", geometry_->TensorName(tensor),
                                  bytes.size(), offset_bytes, layout_.bytes(tensor)));
  }
  if (bytes.empty()) return absl::OkStatus();
  std::byte* to = extent_.bytes().data() + layout_.begin(tensor) + offset_bytes;
  std::memcpy(to, bytes.data(), bytes.size());
  written_bytes += bytes.size();
  return absl::OkStatus();
}

absl::StatusOr<Chunk> ChunkWriter::Finish() && {
  for (uint32_t t = 0; t < written_bytes_.size(); ++t) {
    if (written_bytes_[t] != layout_.bytes(t)) {
      return Refuse(info_,
                    absl::StrFormat("%s: %d of %d bytes were written", geometry_->TensorName(t),
                                    written_bytes_[t], layout_.bytes(t)));
    }
  }
  Chunk chunk(std::move(info_), geometry_, std::move(extent_));
  for (uint32_t t = 0; t < chunk.layout().tensor_count(); ++t) {
    const uint64_t checksum = ChecksumOf(chunk.tensor(t));
    if (checksum != chunk.info().tensor_checksums[t]) {
      return absl::DataLossError(absl::StrFormat(
          "chunk %s: %s: the bytes' checksum is %016x, should be %016x", chunk.info().id.ShortHex(),
          chunk.geometry().TensorName(t), checksum, chunk.info().tensor_checksums[t]));
    }
  }
  return chunk;
}

}  // namespace ckv
