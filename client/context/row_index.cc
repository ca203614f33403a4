#include "client/context/row_index.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "client/context/context_chunks.h"

namespace ckv {
namespace {

// Selections name rows by i32.
constexpr uint64_t kIndexedRowsMax = std::numeric_limits<int32_t>::max();
// Starts of one bucket that are searched one by one.
constexpr uint32_t kLinearMax = 8;

}  // namespace

RowIndex::RowIndex(std::span<const ContextChunk> chunks, std::span<const uint64_t> first_rows,
                   uint64_t row_count) {
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if (first_rows[i] <= kIndexedRowsMax)
      starts_.push_back({static_cast<uint32_t>(first_rows[i]), i});
  }
  std::sort(starts_.begin(), starts_.end(),
            [](const Start& a, const Start& b) { return a.row < b.row; });
  if (starts_.empty()) return;
  const auto tokens_of = [&](size_t start) { return chunks[starts_[start].chunk].token_count; };
  size_t alike = 1;
  while (alike + 1 < starts_.size() && tokens_of(alike) == tokens_of(0)) ++alike;
  if (alike + 1 < starts_.size() || tokens_of(starts_.size() - 1) > tokens_of(0)) {
    FillBuckets(row_count);
    return;
  }
  tokens_each_ = tokens_of(0);
  each_shift_ = 31 + static_cast<uint32_t>(std::bit_width(tokens_each_ - 1));
  each_multiplier_ = ((uint64_t{1} << each_shift_) + tokens_each_ - 1) / tokens_each_;
}

void RowIndex::FillBuckets(uint64_t row_count) {
  const uint64_t rows = std::min(row_count, kIndexedRowsMax + 1);
  bucket_shift_ = static_cast<uint32_t>(std::bit_width(rows / starts_.size()));
  if (bucket_shift_ > 0) --bucket_shift_;
  const uint64_t bucket_count = (rows >> bucket_shift_) + 2;
  uint32_t start = 0;
  for (uint64_t bucket = 0; bucket < bucket_count; ++bucket) {
    while (start + 1 < starts_.size() && starts_[start + 1].row <= bucket << bucket_shift_) ++start;
    buckets_.push_back(start);
  }
}

RowIndex::Place RowIndex::FindInBuckets(uint32_t row) const {
  const uint32_t bucket = row >> bucket_shift_;
  uint32_t start = buckets_[bucket];
  const uint32_t last = buckets_[bucket + 1];
  if (last - start > kLinearMax) {
    const auto after = std::upper_bound(starts_.begin() + start, starts_.begin() + last + 1, row,
                                        [](uint32_t r, const Start& s) { return r < s.row; });
    start = static_cast<uint32_t>(after - starts_.begin() - 1);
  } else {
    while (start < last && starts_[start + 1].row <= row) ++start;
  }
  return {starts_[start].chunk, row - starts_[start].row};
}

}  // namespace ckv
