// Divides a fetch into parts that fit a slot, without a lock and without I/O. There are two kinds:
//   Begin, Next           a cursor over chunk, tensor and token. A part has as many whole tensors
//                         with rows of one size as fit, else tokens of one tensor
//   BeginSelection, Next  SortLayer sorts the indices of each layer by chunk, into groups. A part
//                         has indices of one group

#include "client/call/fetch_plan.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {

uint32_t SentRowBytes(const Geometry& geometry, uint32_t tensor, const ColumnRange& columns) {
  return columns.bytes != 0 ? columns.bytes : geometry.tensor_row_bytes(tensor);
}

absl::Status CheckColumns(const Geometry& geometry, const ColumnRange& columns, bool rotated) {
  const uint32_t row_bytes = geometry.row_bytes();
  if (columns.begin > row_bytes || columns.bytes > row_bytes - columns.begin ||
      (columns.begin | columns.bytes) % 4 != 0 || (columns.bytes == 0 && columns.begin != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: %d bytes from %d of rows of %d, must be multiples of 4",
                        columns.bytes, columns.begin, row_bytes));
  }
  const uint32_t band = row_bytes - geometry.d_rope * 2, end = columns.begin + columns.bytes;
  const bool whole = columns.bytes == 0 || (columns.begin <= band && end == row_bytes);
  if (rotated && !whole && end > band) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: bytes %d to %d are part of the RoPE band from %d on: it can only be "
        "rotated whole",
        columns.begin, end, band));
  }
  return absl::OkStatus();
}

absl::Status PutSelected(const SelectionCall& call, const SelectedRows& chosen,
                         std::span<std::byte> place) {
  const uint64_t width = SentRowBytes(call.corpus->geometry, chosen.layer, call.columns);
  const uint64_t bytes = call.indices[chosen.layer - call.layer_begin].size() * width;
  if (place.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: a place of %d bytes for %d of layer %d", place.size(), bytes, chosen.layer));
  }
  for (size_t i = 0; i < chosen.ordinals.size(); ++i) {
    std::memcpy(place.data() + chosen.ordinals[i] * width, chosen.rows.data() + i * width, width);
  }
  return absl::OkStatus();
}

void FetchPlan::Begin(const FetchCall& call, const LaneShape& shape, const FetchFrom& from) {
  call_ = &call;
  selected_ = false;
  body_bytes_max_ = FetchBodyBytesMax(shape.reply_bytes_max);
  at_ = before_ = {from.chunk, from.tensor, 0, 0};
  SkipEmpty();
}

uint32_t FetchPlan::TokensMax(uint32_t tensor) const {
  const uint32_t rows =
      body_bytes_max_ / SentRowBytes(call_->corpus->geometry, tensor, call_->columns);
  // Whole stripes if they fit, because the store keeps their checksums.
  return rows < kStripeTokens ? rows : rows - rows % kStripeTokens;
}

void FetchPlan::SkipEmpty() {
  while (!done() && call_->corpus->chunks[at_.chunk].token_count == 0)
    at_ = {at_.chunk + 1, call_->tensor_begin, 0, 0};
}

bool FetchPlan::Next(FetchPart* part) {
  before_ = at_;
  if (done()) return false;
  if (selected_) return NextSelected(part);
  const Geometry& geometry = call_->corpus->geometry;
  const uint32_t token_count = call_->corpus->chunks[at_.chunk].token_count;
  const uint32_t tokens_max = TokensMax(at_.tensor);
  // The rows of layers have one size, and index keys have one.
  const uint32_t same_end = at_.tensor < geometry.layers
                                ? std::min(geometry.layers, call_->tensor_end)
                                : call_->tensor_end;
  *part = {.chunk = at_.chunk, .entry = {}, .indices = {}, .ordinals = {}};
  FetchEntry& entry = part->entry;
  entry.column_begin = call_->columns.begin;
  entry.column_bytes = call_->columns.bytes;
  entry.tensor_begin = at_.tensor;
  entry.token_begin = at_.token;
  entry.token_count = std::min(tokens_max, token_count - at_.token);
  entry.tensor_count = 1;
  if (entry.token_count == token_count)
    entry.tensor_count = std::min(tokens_max / token_count, same_end - at_.tensor);
  at_.token += entry.token_count;
  if (at_.token == token_count) {
    at_.token = 0;
    at_.tensor += entry.tensor_count;
  }
  if (at_.tensor == call_->tensor_end) {
    at_ = {at_.chunk + 1, call_->tensor_begin, 0, 0};
    SkipEmpty();
  }
  return true;
}

absl::Status FetchPlan::BeginSelection(const FetchCall& call, const LaneShape& shape,
                                       std::span<const std::span<const int32_t>> indices) {
  call_ = &call;
  selected_ = true;
  at_ = before_ = {};
  const uint32_t width = SentRowBytes(call.corpus->geometry, call.tensor_begin, call.columns);
  const size_t free_bytes = shape.request_bytes_max - sizeof(RequestHeader) - sizeof(FetchEntry);
  indices_max_ =
      static_cast<uint32_t>(std::min<size_t>({FetchBodyBytesMax(shape.reply_bytes_max) / width,
                                              free_bytes / sizeof(int32_t), kFetchIndexCountMax}));
  if (indices_max_ == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: an index does not fit a slot: request_bytes_max %d", shape.request_bytes_max));
  }
  uint64_t count = 0;
  for (const std::span<const int32_t> layer : indices) count += layer.size();
  if (count > kSelectionIndexCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: %d indices, limit %d", count, kSelectionIndexCountMax));
  }
  row_of_chunk_.assign(1, 0);
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk)
    row_of_chunk_.push_back(row_of_chunk_.back() + call.corpus->chunks[chunk].token_count);
  requested_.assign(row_of_chunk_.size() - 1, false);
  groups_.clear();
  indices_.clear();
  ordinals_.clear();
  indices_.reserve(count);
  ordinals_.reserve(count);
  for (size_t i = 0; i < indices.size(); ++i)
    CKV_RETURN_IF_ERROR(SortLayer(call.tensor_begin + static_cast<uint32_t>(i), indices[i]));
  return absl::OkStatus();
}

// Sorts by chunk and keeps the order within a chunk (a counting sort).
absl::Status FetchPlan::SortLayer(uint32_t layer, std::span<const int32_t> indices) {
  const size_t chunk_count = requested_.size(), base = indices_.size();
  chunk_of_index_.resize(indices.size());
  count_of_chunk_.assign(chunk_count, 0);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || static_cast<uint64_t>(indices[i]) >= row_of_chunk_.back()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "fetch: index %d of layer %d is %d of %d", i, layer, indices[i], row_of_chunk_.back()));
    }
    const auto next = std::upper_bound(row_of_chunk_.begin(), row_of_chunk_.end(),
                                       static_cast<uint64_t>(indices[i]));
    chunk_of_index_[i] = static_cast<uint32_t>(next - row_of_chunk_.begin() - 1);
    ++count_of_chunk_[chunk_of_index_[i]];
  }
  size_t begin = base;
  for (uint32_t c = 0; c < chunk_count; ++c) {
    const size_t end = begin + count_of_chunk_[c];
    if (end > begin) {
      groups_.push_back({layer, call_->chunk_begin + c, begin, end});
      requested_[c] = true;
    }
    count_of_chunk_[c] = static_cast<uint32_t>(begin);  // the place of its next index
    begin = end;
  }
  indices_.resize(begin);
  ordinals_.resize(begin);
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint32_t c = chunk_of_index_[i], to = count_of_chunk_[c]++;
    indices_[to] = static_cast<int32_t>(static_cast<uint64_t>(indices[i]) - row_of_chunk_[c]);
    ordinals_[to] = static_cast<uint32_t>(i);
  }
  return absl::OkStatus();
}

bool FetchPlan::NextSelected(FetchPart* part) {
  const Group& group = groups_[at_.group];
  const size_t begin = group.begin + at_.token;
  const auto count = static_cast<uint32_t>(std::min<size_t>(indices_max_, group.end - begin));
  *part = {.chunk = group.chunk,
           .entry = {.tensor_begin = group.layer,
                     .tensor_count = 1,
                     .token_count = count,
                     .index_count = count,
                     .column_begin = call_->columns.begin,
                     .column_bytes = call_->columns.bytes},
           .indices = std::span(indices_).subspan(begin, count),
           .ordinals = std::span(ordinals_).subspan(begin, count)};
  at_.token += count;
  if (begin + count == group.end) at_ = {0, 0, 0, at_.group + 1};
  return true;
}

void FetchPlan::Skip(uint64_t count) {
  FetchPart part;
  while (count > 0 && Next(&part)) --count;
}

bool FetchPlan::Asks(uint32_t chunk) const {
  if (selected_) return requested_[chunk - call_->chunk_begin];
  return chunk >= at_.chunk && call_->corpus->chunks[chunk].token_count != 0;
}

}  // namespace ckv
