#include "client/bindings/c/fetch/block_place.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/paged/row_blocks.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

static_assert(std::has_unique_object_representations_v<ckv_block_place>);

// So that no sum of the table's rows overflows.
constexpr uint64_t kTableRowsMax = uint64_t{1} << 40;

}  // namespace

absl::Status WriteFence::Write(absl::FunctionRef<absl::Status()> write) {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::CancelledError("the fetch was cancelled");
  return write();
}

void WriteFence::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

absl::Status BlockPlace::Take(const ckv_block_place* from, uint64_t token_count,
                              uint32_t layer_count, uint32_t row_bytes, MemoryKind memory) {
  ckv_block_place place;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_block_place", from, place));
  if (place.layers == nullptr) return Missing("ckv_block_place: layers");
  if (place.table == nullptr) return Missing("ckv_block_place: table");
  if (place.reserved != 0) return absl::InvalidArgumentError("ckv_block_place: reserved is not 0");
  block_rows_ = place.block_rows;
  block_count_ = place.block_count;
  row_bytes_ = row_bytes;
  memory_ = memory;
  table_begin_ = place.table_begin;
  token_begin_ = place.token_begin;
  token_end_ = place.token_end == 0 ? token_count : place.token_end;
  if (token_begin_ > token_end_ || token_end_ > token_count) {
    return absl::InvalidArgumentError(absl::StrFormat("ckv_block_place: tokens %d to %d of %d",
                                                      token_begin_, token_end_, token_count));
  }
  const uint64_t block_bytes = uint64_t{block_rows_} * row_bytes;
  block_stride_bytes_ = place.block_stride_bytes == 0 ? block_bytes : place.block_stride_bytes;
  table_.assign(place.table, place.table + place.table_count);
  const RowBlocks blocks = {table_.data(), block_rows_, block_stride_bytes_};
  const absl::Status status = CheckRowBlocks(blocks, place.table_count, block_count_, row_bytes);
  if (!status.ok())
    return absl::InvalidArgumentError(absl::StrCat("ckv_block_place: ", status.message()));
  if (memory == MemoryKind::kDevice && block_stride_bytes_ != block_bytes) {
    return absl::InvalidArgumentError(
        "ckv_block_place: blocks of a device's cache that are not neighbours");
  }
  const uint64_t table_rows = uint64_t{place.table_count} * block_rows_;
  if (table_begin_ > kTableRowsMax || table_begin_ + token_end_ > table_rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ckv_block_place: rows %d to %d of a table of %d blocks of %d rows",
        table_begin_ + token_begin_, table_begin_ + token_end_, place.table_count, block_rows_));
  }
  for (uint32_t layer = 0; layer < layer_count; ++layer) {
    if (place.layers[layer] == nullptr) return Missing("ckv_block_place: a layer");
    layers_.push_back(static_cast<std::byte*>(place.layers[layer]));
  }
  return absl::OkStatus();
}

absl::Status BlockPlace::WriteBlocks(uint32_t layer, uint64_t row, const RowView& rows) const {
  for (uint32_t i = 0; i < rows.count;) {
    const uint64_t at = row + i, in_block = at % block_rows_;
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(rows.count - i, block_rows_ - in_block));
    std::memcpy(
        layers_[layer] + table_[at / block_rows_] * block_stride_bytes_ + in_block * row_bytes_,
        rows.data + size_t{i} * rows.stride_bytes, size_t{count} * row_bytes_);
    i += count;
  }
  return absl::OkStatus();
}

absl::Status BlockPlace::Write(uint32_t layer, uint64_t token, const RowView& rows,
                               ComputeStream* stream) const {
  const uint64_t begin = std::max(token, token_begin_);
  const uint64_t end = std::min(token + rows.count, token_end_);
  if (begin >= end) return absl::OkStatus();
  RowView wanted = rows;
  wanted.data += (begin - token) * rows.stride_bytes;
  wanted.count = static_cast<uint32_t>(end - begin);
  const uint64_t row = table_begin_ + begin;
  if (memory_ != MemoryKind::kDevice) return WriteBlocks(layer, row, wanted);
  const uint64_t bytes = uint64_t{block_count_} * block_stride_bytes_;
  const PagedPlace to = {{layers_[layer], bytes}, table_, row, block_rows_, memory_};
  absl::Status written =
      stream->backend().Scatter(RopeRotation(RopeParams(), 0, 0), wanted, row_bytes_, to, *stream);
  written.Update(stream->Wait());
  return written;
}

}  // namespace ckv::c
