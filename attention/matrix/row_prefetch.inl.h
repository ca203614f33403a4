// Prefetches the next rows, a few cache lines at each step of the work on the current ones.
// Requested all at once, they would queue up.
//
// matrix_amx.cc, matrix_model.cc and matrix_portable.cc include this fragment after
// few_rows.inl.h, matrix_dot.cc after the lanes.

#pragma once

namespace ckv::matrix {

// `kStride` is the distance in bytes between the lines it prefetches. A processor that fetches
// lines in pairs needs only every other one.
template <class L, uint32_t kStride>
class RowPrefetch {
 public:
  // Prefetches `row_bytes` of each of the `count` rows within `steps` steps. Borrows `rows` until
  // the last step.
  void Set(const std::byte* const* rows, uint32_t count, uint32_t row_bytes, uint32_t steps) {
    row_ = rows;
    left_ = count;
    offset_ = 0;
    row_bytes_ = row_bytes;
    const uint32_t lines = count * ((row_bytes + kStride - 1) / kStride);
    lines_a_step_ = (lines + steps - 1) / std::max(1u, steps);
  }
  HWY_INLINE void Step() {
    for (uint32_t i = 0; i < lines_a_step_ && left_ > 0; ++i) {
      L::Prefetch(*row_ + offset_);
      offset_ += kStride;
      if (offset_ < row_bytes_) continue;
      offset_ = 0;
      ++row_;
      --left_;
    }
  }

 private:
  const std::byte* const* row_ = nullptr;
  uint32_t left_ = 0;
  uint32_t offset_ = 0;
  uint32_t row_bytes_ = 0;
  uint32_t lines_a_step_ = 0;
};

}  // namespace ckv::matrix
