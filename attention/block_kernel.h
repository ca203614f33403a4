// A call is cut into blocks of query rows and spans of cKV rows. mla_partial.cc cuts and schedules
// them; the vector targets (mla_block.cc) and the matrix targets (matrix/) compute them. Internal
// to this folder.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/functional/function_ref.h"
#include "attention/fp8.h"
#include "attention/grade.h"
#include "attention/partial.h"
#include "attention/worker_pool.h"

namespace ckv {

inline constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
// No kernel takes more query rows at once.
inline constexpr uint32_t kBlockRowsMax = 128;
// Query rows are packed in whole vectors of the widest target.
inline constexpr uint32_t kRowsPerVector = 16;

constexpr uint32_t RoundUp(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns how many bytes of one cKV row a kernel reads.
constexpr uint32_t RowBytes(const AttentionShape& shape) {
  if (shape.row_dtype == RowDtype::kBf16) return shape.d_qk * 2;
  return shape.d_v + shape.d_v / kFp8ScaleGroup * 4 + (shape.d_qk - shape.d_v) * 2;
}

// One query row of a block: the place to read it, and the place for its partial.
struct BlockRow {
  const uint16_t* q = nullptr;
  uint32_t limit = kNoLimit;  // dense: attends rows below it
  void* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  PartialDtype dtype = PartialDtype::kF32;
};

// Query rows of one grade that read the same cKV rows in the same order.
struct RowBlock {
  BlockRow rows[kBlockRowsMax];
  uint32_t count = 0;
  Grade grade = Grade::kExact;
  RowView keys;
  const int32_t* indices = nullptr;  // null if dense
  uint32_t index_count = 0;
  uint32_t index_limit = 0;  // an index at or above it is skipped

  uint32_t packed_rows() const { return RoundUp(count, kRowsPerVector); }
  // Whether the entry at `place` of the index list names a row that the block attends.
  bool Selects(uint32_t place) const {
    return indices[place] >= 0 && static_cast<uint32_t>(indices[place]) < index_limit;
  }
  // The end of the block's spans: a row or, for a selected block, a place in the index list.
  uint32_t key_count() const {
    if (indices != nullptr) return index_count;
    uint32_t limit = 0;
    for (uint32_t i = 0; i < count; ++i) limit = std::max(limit, rows[i].limit);
    return std::min(limit, keys.count);
  }
};

// Returns the end of the span of `span_rows` attended rows that begins at `begin`, where the next
// one begins; key_count() after the last. Walking a block's spans this way reads its index list
// once, whatever it holds. The list comes from a peer and may be 4 M entries that are all skipped.
uint32_t SpanEnd(const RowBlock& block, uint32_t begin, uint32_t span_rows);

// Consecutive spans that one thread computes, by the keys they begin at (0, or a SpanEnd).
struct SpanRun {
  const uint32_t* begins = nullptr;
  uint32_t count = 0;
  uint32_t end = 0;   // the last span's end
  uint32_t next = 0;  // the span this thread computes afterwards, to prefetch; key_count() if none
};

// Computes blocks. The order of a query row's sums depends on the row, its keys and the kernel
// alone. Spans begin at multiples of span_rows() attended rows. Each is summed from an empty state,
// and they are folded in ascending order.
//
// The state of a block is StateFloats() floats of scratch memory, of which only the kernel knows
// the layout. Thread-safe: kernels have no state of their own.
class BlockKernel {
 public:
  virtual ~BlockKernel() = default;

  // Query rows of a block at most; at most kBlockRowsMax.
  virtual uint32_t block_rows() const = 0;
  // Attended rows of a span.
  virtual uint32_t span_rows() const = 0;

  // Floats of the state of `packed_rows` query rows, a multiple of kRowsPerVector.
  virtual size_t StateFloats(const AttentionShape& shape, uint32_t packed_rows) const = 0;
  // Places in a worker's scratch for one state of block_rows(), and for block_rows()' worth of
  // states of fewer rows. The rest is the kernel's.
  virtual float* TotalIn(const AttentionShape& shape, std::span<std::byte> scratch) const = 0;
  virtual float* ResultsIn(const AttentionShape& shape, std::span<std::byte> scratch) const = 0;

  // Makes `total` the state that saw nothing.
  virtual void Clear(const AttentionShape& shape, const RowBlock& block, float* total) const = 0;
  // Packs the block's query rows into `scratch`, once for each thread that attends it.
  virtual void Pack(const AttentionShape& shape, const RowBlock& block,
                    std::span<std::byte> scratch) const = 0;
  // Computes a run of spans. If `total` is null, span i of the run ends in the state slot(i). If
  // not, the spans are folded into it in order, and the slots are scratch memory.
  virtual void Attend(const AttentionShape& shape, const RowBlock& block, const SpanRun& run,
                      std::span<std::byte> scratch, absl::FunctionRef<float*(uint32_t)> slot,
                      float* total) const = 0;
  // Folds a span's state into the total, for the query rows [begin, end).
  virtual void Fold(const AttentionShape& shape, const RowBlock& block, uint32_t begin,
                    uint32_t end, const float* span, float* total) const = 0;
  // Divides by l, rounds to each row's dtype, and writes o, m and l to each row's place.
  virtual void Write(const AttentionShape& shape, const RowBlock& block, float* total) const = 0;
};

// The kernel of Highway's targets: f32 fused multiply-adds.
const BlockKernel& VectorKernel();
// The kernel of the target in use. `shape` may need the vector kernel where a matrix kernel cannot
// compute it (matrix/matrix_kernel.h).
const BlockKernel& KernelFor(const AttentionShape& shape);

struct AttentionPiece;
// AttendPartials on a kernel of the caller's choice.
void AttendPartialsOn(const BlockKernel& kernel, const AttentionShape& shape,
                      std::span<const AttentionPiece> pieces, WorkerPool& pool) noexcept;

}  // namespace ckv
