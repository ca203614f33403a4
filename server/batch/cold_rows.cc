#include "server/batch/cold_rows.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {

void ColdRows::Keep(ChunkLocator chunk, StripeCache::Hold hold) {
  layers_[chunk.slot] = {{chunk, hold.rows(), hold.token_count()}, std::nullopt};
  holds_.push_back(std::move(hold));
}

absl::Status ColdRows::Add(ChunkLocator chunk, const ChunkRows& rows, uint32_t tensor,
                           std::span<const uint32_t> stripes) {
  const LayerShape shape = {rows.info().token_count(), rows.geometry().tensor_row_bytes(tensor)};
  const bool is_new = Find(chunk) == nullptr;
  uint64_t bytes = std::min(stripes.size() * kStripeTokens * shape.row_bytes, shape.bytes());
  if (!buffer_.empty()) bytes = is_new ? SparseLayer::WholePages(shape.bytes()) : 0;
  if (bytes > bytes_max_ - bytes_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d bytes for rows that are on disk, a request may take %d", bytes_ + bytes, bytes_max_));
  }
  const uint64_t place = std::exchange(bytes_, bytes_ + bytes);
  if (is_new) {
    absl::StatusOr<SparseLayer> made = buffer_.empty()
                                           ? SparseLayer::Map(shape)
                                           : SparseLayer::Over(shape, buffer_.data() + place);
    CKV_RETURN_IF_ERROR(made.status());
    layers_[chunk.slot] = {{chunk, made->rows(), shape.token_count}, own_.size()};
    own_.push_back(*std::move(made));
  }
  const std::optional<size_t> own = layers_[chunk.slot].own;
  CKV_CHECK(own.has_value());
  return own_[*own].Read(rows, tensor, stripes);
}

const ColdRows::Layer* ColdRows::Find(ChunkLocator chunk) const {
  const auto found = layers_.find(chunk.slot);
  if (found == layers_.end()) return nullptr;
  const Layer& layer = found->second.layer;
  return layer.chunk.generation == chunk.generation ? &layer : nullptr;
}

std::span<const int32_t> IndicesOf(const AttendRequest& request, const AttendSegment& segment,
                                   const PieceEntry& piece) {
  if (segment.candidates != 0) return request.chosen.subspan(piece.index_begin, piece.k);
  const size_t lists = (segment.row_count + piece.group_rows - 1) / piece.group_rows;
  return request.indices.subspan(piece.index_begin, lists * piece.k);
}

void AddSelectedStripes(std::span<const int32_t> indices, uint32_t token_count,
                        std::vector<uint32_t>* stripes) {
  std::vector<bool> selected(StripeCount(token_count));
  for (const uint32_t stripe : *stripes) selected[stripe] = true;
  for (const int32_t index : indices) {               // by value: read once, judged, then used
    const auto token = static_cast<uint32_t>(index);  // negative ones are beyond any chunk
    if (token < token_count) selected[token / kStripeTokens] = true;
  }
  stripes->clear();
  for (uint32_t s = 0; s < selected.size(); ++s) {
    if (selected[s]) stripes->push_back(s);
  }
}

}  // namespace ckv
