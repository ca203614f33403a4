// Prepares the rows of a span for the products. Rows are read in place if possible. Selected rows,
// fp8 rows, odd widths and the end of a chunk are staged.
//
// Each matrix_*.cc with a kernel includes this fragment directly after the lanes; matrix_dot.cc
// after row_prefetch.inl.h.

#pragma once

namespace ckv::matrix {

// One span of a block, or the part of a span that the query rows with one limit see.
struct Span {
  uint32_t count = 0;   // keys that at least one of its query rows sees
  uint32_t groups = 0;  // 32 keys each; even, so that one-tile items can take two at once
  uint32_t row_terms = 1;
  bool all_see_all = false;  // all query rows see all keys of all groups
  SpanState state;           // the state to fold the span into
  std::array<KeyGroup, kSpanGroups> keys;
  alignas(64) std::array<int32_t, kBlockRowsMax> seen;  // keys that each query row sees
};

// Finds and stages spans, one after the other. At most two spans are in use at a time, in buffers 0
// and 1.
template <class L>
class SpanRows {
 public:
  SpanRows(const AttentionShape& shape, const RowBlock& block, const Workspace& work)
      : shape_(shape), block_(block), work_(work), width_(Workspace::Width(shape)) {}

  // Writes the addresses of the rows that the block attends in [begin, end), at most kSpanKeys.
  // Returns their number.
  static uint32_t Addresses(const RowBlock& block, uint32_t begin, uint32_t end,
                            const std::byte** rows) {
    const RowView& keys = block.keys;
    uint32_t count = 0;
    for (uint32_t i = begin; i < end; ++i) {
      if (block.indices != nullptr && !block.Selects(i)) continue;
      const uint32_t row = block.indices != nullptr ? static_cast<uint32_t>(block.indices[i]) : i;
      rows[count++] = keys.Row(row);
    }
    return count;
  }

  // Opens the span [begin, end): finds its rows' addresses and how many keys each query row sees.
  void Open(uint32_t begin, uint32_t end) {
    count_ = Addresses(block_, begin, end, rows_);
    least_ = count_;
    for (uint32_t i = 0; i < block_.count; ++i) {
      const uint32_t limit = block_.indices == nullptr ? block_.rows[i].limit : kNoLimit;
      seen_[i] = static_cast<int32_t>(std::min(limit - std::min(limit, begin), count_));
      least_ = std::min(least_, static_cast<uint32_t>(seen_[i]));
    }
    next_limit_ = IsSound() ? kNoLimit : 0;
  }

  // Prepares the next part of the opened span in buffer 0 or 1, and returns true. Returns false
  // after the last part, and for a span that no query row sees.
  //
  // A span usually is one part. But some query rows may see a NaN or an infinity that others do
  // not. A weight of 0 does not remove it from a product. Then there is one part for each
  // distinct number of keys that query rows see, with the rows beyond that number zeroed.
  bool Prepare(uint32_t buffer, Span* span) {
    const bool one_limit = next_limit_ != kNoLimit;
    span->count = 0;
    if (one_limit) {
      if (!NextLimit(span)) return false;
    } else {
      if (done_) return false;
      for (uint32_t i = 0; i < block_.count; ++i)
        span->count = std::max(span->count, static_cast<uint32_t>(seen_[i]));
      done_ = true;
      if (span->count == 0) return false;
    }
    // Padding rows see all keys, so that they need no mask.
    const auto all = static_cast<int32_t>(span->count);
    for (uint32_t i = 0; i < kBlockRowsMax; ++i) {
      span->seen[i] = i < block_.count ? seen_[i] : all;
      if (one_limit && span->seen[i] != all) span->seen[i] = 0;
    }
    span->groups = RoundUp(RoundUp(span->count, kGroupKeys) / kGroupKeys, 2);
    span->all_see_all = !one_limit && least_ == span->groups * kGroupKeys;
    Place(buffer, span);
    return true;
  }

 private:
  // Whether all values are finite in the rows that some query rows see and others do not.
  bool IsSound() {
    done_ = false;
    uint32_t most = 0;
    for (uint32_t i = 0; i < block_.count; ++i)
      most = std::max(most, static_cast<uint32_t>(seen_[i]));
    for (uint32_t j = least_; j < most; ++j) {
      if (!IsFinite(rows_[j])) return false;
    }
    return true;
  }

  // Checks only the d_v values: logits of unseen keys are replaced anyway.
  bool IsFinite(const std::byte* row) const {
    if (shape_.row_dtype == RowDtype::kBf16) {
      for (uint32_t d = 0; d < shape_.d_v; ++d) {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * d, sizeof(bits));
        if ((bits & 0x7f80u) == 0x7f80u) return false;
      }
      return true;
    }
    alignas(64) uint16_t terms[kRowTermsMax][kRowWidthMax];
    UnpackFp8(row, terms[0], terms[1], terms[2]);
    for (uint32_t d = 0; d < shape_.d_v; ++d) {
      if ((terms[0][d] & 0x7f80u) == 0x7f80u) return false;
    }
    return true;
  }

  // Sets the span's count to the next higher number of seen keys. Returns false if there is none.
  bool NextLimit(Span* span) {
    uint32_t limit = kNoLimit;
    for (uint32_t i = 0; i < block_.count; ++i) {
      const auto seen = static_cast<uint32_t>(seen_[i]);
      if (seen > next_limit_) limit = std::min(limit, seen);
    }
    if (limit == kNoLimit) return false;
    next_limit_ = limit;
    span->count = limit;
    return true;
  }

  void Place(uint32_t buffer, Span* span) {
    const bool may_be_read_in_place =
        block_.indices == nullptr && shape_.row_dtype == RowDtype::kBf16 && width_ == shape_.d_qk;
    span->row_terms = 1;
    for (uint32_t g = 0; g < span->groups; ++g) {
      KeyGroup& group = span->keys[g];
      if (may_be_read_in_place && (g + 1) * kGroupKeys <= span->count && LiesInOne(g)) {
        group.rows[0] = reinterpret_cast<const uint16_t*>(rows_[g * kGroupKeys]);
        group.stride_bytes = block_.keys.stride_bytes;
        continue;
      }
      group.stride_bytes = size_t{width_} * sizeof(uint16_t);
      group.rows[0] = work_.staged[buffer] + size_t{g} * kGroupKeys * width_;
      for (uint32_t t = 1; t < kRowTermsMax && work_.low_terms != nullptr; ++t) {
        group.rows[t] = work_.low_terms + (size_t{t - 1} * kSpanKeys + g * kGroupKeys) * width_;
      }
      for (uint32_t j = g * kGroupKeys; j < (g + 1) * kGroupKeys; ++j) Stage(buffer, j, span);
    }
    if (span->row_terms > 1) ClearLowTerms(*span);
  }

  // Whether the rows of a whole group are adjacent in memory. In a paged cache they are if a block
  // contains the group, or if its blocks are adjacent.
  bool LiesInOne(uint32_t g) const {
    const RowView& keys = block_.keys;
    if (!keys.paged()) return true;
    for (uint32_t j = g * kGroupKeys + 1; j < (g + 1) * kGroupKeys; ++j) {
      if (rows_[j] != rows_[j - 1] + keys.stride_bytes) return false;
    }
    return true;
  }

  void Stage(uint32_t buffer, uint32_t j, Span* span) {
    uint16_t* const to = work_.staged[buffer] + size_t{j} * width_;
    if (j >= span->count) {
      std::memset(to, 0, size_t{width_} * 2);
      return;
    }
    if (shape_.row_dtype == RowDtype::kBf16) {
      std::memcpy(to, rows_[j], size_t{shape_.d_qk} * 2);
    } else {
      uint16_t* const low = work_.low_terms + size_t{j} * width_;
      has_low_[j] = UnpackFp8(rows_[j], to, low, low + size_t{kSpanKeys} * width_);
      if (has_low_[j]) span->row_terms = kRowTermsMax;
    }
    std::memset(to + shape_.d_qk, 0, size_t{width_ - shape_.d_qk} * 2);
  }

  // Zeroes the low terms of rows with one term, so that they do not change any sum.
  void ClearLowTerms(const Span& span) {
    for (uint32_t j = 0; j < span.groups * kGroupKeys; ++j) {
      for (uint32_t t = 0; t < kRowTermsMax - 1; ++t) {
        uint16_t* const low = work_.low_terms + (size_t{t} * kSpanKeys + j) * width_;
        const uint32_t kept = j < span.count && has_low_[j] ? shape_.d_v : 0;
        std::memset(low + kept, 0, size_t{width_ - kept} * 2);
      }
    }
  }

  // Writes an fp8_ds_mla row as bf16 to `high`, [d_qk]. Writes the parts of scaled values that do
  // not fit a bf16 to `middle` and `low`, [d_v]; three terms hold 24 bits. Returns whether there
  // are any. Values have 4 significant bits, so there are none if the scale is a power of two.
  bool UnpackFp8(const std::byte* row, uint16_t* high, uint16_t* middle, uint16_t* low) const {
    std::memcpy(high + shape_.d_v, row + shape_.d_v + shape_.d_v / kFp8ScaleGroup * sizeof(float),
                size_t{shape_.d_qk - shape_.d_v} * 2);
    for (uint32_t d = 0; d < shape_.d_v; d += kFp8ScaleGroup) {
      const auto* const group = reinterpret_cast<const uint8_t*>(row + d);
      if (!L::UnpackE4m3(group, ScaleAt(row, d), high + d))
        return UnpackTerms(row, high, middle, low);
    }
    return false;
  }

  float ScaleAt(const std::byte* row, uint32_t column) const {
    float scale;
    std::memcpy(&scale, row + shape_.d_v + column / kFp8ScaleGroup * sizeof(float), sizeof(scale));
    return scale;
  }

  bool UnpackTerms(const std::byte* row, uint16_t* high, uint16_t* middle, uint16_t* low) const {
    typename L::I lost = L::SetI(0);
    const typename L::I upper = L::SetI(0xffff0000u);
    for (uint32_t d = 0; d < shape_.d_v; d += 16) {
      const typename L::F value =
          L::Mul(L::LoadE4m3(reinterpret_cast<const uint8_t*>(row + d)), L::Set(ScaleAt(row, d)));
      const typename L::I first = L::AndI(L::AsI(value), upper);
      const typename L::F rest = L::Sub(value, L::AsF(first));
      const typename L::I second = L::AndI(L::AsI(rest), upper);
      const typename L::F last = L::Sub(rest, L::AsF(second));
      L::StoreUpper(first, high + d);
      L::StoreUpper(second, middle + d);
      L::StoreUpper(L::AsI(last), low + d);
      lost = L::OrI(lost, L::AsI(rest));
    }
    return !L::IsZeroI(lost);
  }

  const AttentionShape& shape_;
  const RowBlock& block_;
  const Workspace& work_;
  const uint32_t width_;
  const std::byte* rows_[kSpanKeys];
  uint32_t count_ = 0;
  uint32_t least_ = 0;  // keys that all query rows see
  uint32_t next_limit_ = kNoLimit;
  bool done_ = false;
  int32_t seen_[kBlockRowsMax] = {};
  bool has_low_[kSpanKeys] = {};
};

}  // namespace ckv::matrix
