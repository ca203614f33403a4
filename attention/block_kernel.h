// The interface of the attention kernels. A call is cut into blocks of query rows and spans of cKV
// rows. mla_partial.cc cuts and schedules them; the vector targets (mla_block.cc) and the matrix
// targets (matrix/) compute them. Internal to this folder.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/functional/function_ref.h"
#include "attention/fp8.h"
#include "attention/partial.h"
#include "attention/precision.h"
#include "attention/worker_pool.h"

namespace ckv {

inline constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
// The most query rows that any kernel takes at once.
inline constexpr uint32_t kBlockRowsMax = 128;
// Query rows are packed into whole vectors of the widest target.
inline constexpr uint32_t kRowsPerVector = 16;

constexpr uint32_t RoundUp(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns how many bytes of one cKV row a kernel reads.
constexpr uint32_t RowBytes(const AttentionShape& shape) {
  if (shape.row_dtype == RowDtype::kBf16) return shape.d_qk * 2;
  return shape.d_v + shape.d_v / kFp8ScaleGroup * 4 + (shape.d_qk - shape.d_v) * 2;
}

// One query row of a block: where to read it, and where to write its partial.
struct BlockRow {
  const uint16_t* q = nullptr;
  uint32_t limit = kNoLimit;  // dense: attends rows below this
  void* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;
};

// Query rows of one precision that read the same cKV rows in the same order.
struct RowBlock {
  BlockRow rows[kBlockRowsMax];
  uint32_t count = 0;
  Precision precision = Precision::kExact;
  RowView keys;
  const int32_t* indices = nullptr;  // null if dense
  uint32_t index_count = 0;
  uint32_t index_limit = 0;  // indices at or above this are skipped

  uint32_t packed_rows() const { return RoundUp(count, kRowsPerVector); }
  // Whether entry `place` of the index list is a row that the block attends.
  bool Selects(uint32_t place) const {
    return indices[place] >= 0 && static_cast<uint32_t>(indices[place]) < index_limit;
  }
  // Returns the end of the block's spans: a row or, if selected, a place in the index list.
  uint32_t key_count() const {
    if (indices != nullptr) return index_count;
    uint32_t limit = 0;
    for (uint32_t i = 0; i < count; ++i) limit = std::max(limit, rows[i].limit);
    return std::min(limit, keys.count);
  }
};

// Returns the end of the span of `span_rows` attended rows that begins at `begin`. The next span
// begins there; the last one ends at key_count(). Walking a block's spans this way reads its index
// list once, whatever its contents. A peer sends the list, which may be 4 M entries, all skipped.
uint32_t SpanEnd(const RowBlock& block, uint32_t begin, uint32_t span_rows);

// Consecutive spans that one thread computes, given by their first keys (0, or a SpanEnd).
struct SpanRun {
  const uint32_t* begins = nullptr;
  uint32_t count = 0;
  uint32_t end = 0;   // the last span's end
  uint32_t next = 0;  // the span this thread computes afterwards, to prefetch; key_count() if none
};

// Computes blocks. The order of a query row's sums depends only on the row, its keys and the
// kernel. Spans begin at multiples of span_rows() attended rows. Each is summed from an empty
// state, and they are folded in ascending order.
//
// The state of a block is StateFloats() floats of scratch memory, in a layout private to the
// kernel. Thread-safe: kernels have no state of their own.
class BlockKernel {
 public:
  virtual ~BlockKernel() = default;

  // Returns the most query rows in a block, at most kBlockRowsMax.
  virtual uint32_t block_rows() const = 0;
  // Returns the number of attended rows in a span.
  virtual uint32_t span_rows() const = 0;

  // Returns the floats in the state of `packed_rows` query rows, a multiple of kRowsPerVector.
  virtual size_t StateFloats(const AttentionShape& shape, uint32_t packed_rows) const = 0;
  // Return where a worker's scratch has room for states: TotalIn for one of block_rows() rows,
  // ResultsIn for several with block_rows() rows in total. The kernel uses the rest of the scratch.
  virtual float* TotalIn(const AttentionShape& shape, std::span<std::byte> scratch) const = 0;
  virtual float* ResultsIn(const AttentionShape& shape, std::span<std::byte> scratch) const = 0;

  // Sets `total` to the state that saw no key.
  virtual void Clear(const AttentionShape& shape, const RowBlock& block, float* total) const = 0;
  // Packs the block's query rows into `scratch`, once for each thread that attends it.
  virtual void Pack(const AttentionShape& shape, const RowBlock& block,
                    std::span<std::byte> scratch) const = 0;
  // Computes the spans of `run`. If `total` is null, the result of span i is written to slot(i). If
  // not, the spans are folded into `total` in order, and the slots are scratch memory.
  virtual void Attend(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
                      std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
                      float* total) const = 0;
  // Folds a span's state into `total`, for the query rows [begin, end).
  virtual void Fold(const AttentionShape& shape, const RowBlock& block, uint32_t begin,
                    uint32_t end, const float* span, float* total) const = 0;
  // Divides by l, rounds to each row's dtype, and writes each row's o, m and l to its BlockRow.
  virtual void Write(const AttentionShape& shape, const RowBlock& block, float* total) const = 0;
};

// Returns the kernel of Highway's targets: f32 fused multiply-adds.
const BlockKernel& VectorKernel();
// Returns the kernel of the target in use. Returns the vector kernel if the softmax scale of
// `shape` is outside [2^-60, 2^60]. Matrix kernels (matrix/matrix_kernel.h) cannot compute those.
const BlockKernel& KernelFor(const AttentionShape& shape);

struct AttentionPiece;
// Computes AttendPartials (mla_partial.h) on a kernel of the caller's choice.
void AttendPartialsOn(const BlockKernel& kernel, const AttentionShape& shape,
                      std::span<const AttentionPiece> pieces, WorkerPool& pool) noexcept;

}  // namespace ckv
