// Cuts a call into blocks and spreads them over the threads of the pool. In order:
//   1. Checks the shape and each piece.
//   2. PlanCall counts blocks of whole and half size, and chooses the way with the better balance.
//   3. Many blocks: each thread computes whole blocks (ComputeBlock). Few blocks: all threads
//      compute the spans of one block at a time (WaveCompute), and then fold the results together.
// The bits depend on neither way: spans are folded in the same order in both.

#include "attention/mla_partial.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "attention/block_kernel.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Blocks are cut from runs. A run is one selected piece, or the longest sequence of dense pieces of
// one precision over the same rows, whose query rows then share blocks. That is the gain of
// batching: 8 requests of 16 rows read and convert each cKV row once instead of 8 times.
struct Run {
  uint32_t first_piece = 0;
  uint32_t piece_count = 0;
  uint32_t row_count = 0;
  uint32_t group_rows = 0;  // selected: rows that share an index list; dense: 0
  // Rows per block of the call: the kernel's, or fewer if threads share its query rows.
  uint32_t block_rows = 0;

  uint32_t blocks_per_group() const { return (group_rows + block_rows - 1) / block_rows; }
  uint64_t block_count() const {
    if (group_rows == 0) return (uint64_t{row_count} + block_rows - 1) / block_rows;
    return uint64_t{(row_count + group_rows - 1) / group_rows} * blocks_per_group();
  }
};

Precision PrecisionOf(const AttentionPiece& piece) {
  return PrecisionOf(piece.precision, piece.out.dtype);
}

Run RunFrom(std::span<const AttentionPiece> pieces, uint32_t first, uint32_t block_rows) {
  const AttentionPiece& head = pieces[first];
  Run run{first, 1, head.q.count, 0, block_rows};
  if (head.selection.present()) {
    // No group is longer than the piece: a huge group_rows must not overflow the block count.
    run.group_rows = std::max(1u, std::min(head.selection.group_rows, head.q.count));
    return run;
  }
  for (uint32_t p = first + 1; p < pieces.size(); ++p) {
    if (!ShareRows(head, pieces[p])) break;
    run.row_count += pieces[p].q.count;
    ++run.piece_count;
  }
  return run;
}

BlockRow RowOf(const AttentionShape& shape, const AttentionPiece& piece, uint32_t i) {
  BlockRow row;
  row.q = piece.q.data + size_t{i} * piece.q.stride;
  row.limit = piece.row_limits != nullptr ? piece.row_limits[i] : kNoLimit;
  const size_t value_bytes = piece.out.dtype == PartialDtype::kF32 ? 4 : 2;
  row.o = static_cast<std::byte*>(piece.out.o) + size_t{i} * shape.d_v * value_bytes;
  row.m = piece.out.m + i;
  row.l = piece.out.l + i;
  row.dtype = piece.out.dtype;
  return row;
}

// Rows [begin, begin + block_rows) of a dense run, which may begin and end inside pieces.
void FillDense(const AttentionShape& shape, std::span<const AttentionPiece> pieces, const Run& run,
               uint32_t begin, RowBlock* block) {
  block->keys = pieces[run.first_piece].rows;
  block->precision = PrecisionOf(pieces[run.first_piece]);
  block->indices = nullptr;
  block->count = 0;
  uint32_t piece_begin = 0;
  for (uint32_t p = run.first_piece; p < run.first_piece + run.piece_count; ++p) {
    const AttentionPiece& piece = pieces[p];
    const uint32_t piece_end = piece_begin + piece.q.count;
    while (begin >= piece_begin && begin < piece_end && block->count < run.block_rows) {
      block->rows[block->count++] = RowOf(shape, piece, begin++ - piece_begin);
    }
    if (block->count == run.block_rows) return;
    piece_begin = piece_end;
  }
}

// Returns the longest sequence of rows from `begin`, before `end` and of one limit, that fits a
// block. The limit filters the index list, so it must be the whole block's.
void FillSelected(const AttentionShape& shape, const AttentionPiece& piece, uint32_t begin,
                  uint32_t end, RowBlock* block) {
  const uint32_t group = begin / piece.selection.group_rows;
  block->keys = piece.rows;
  block->precision = PrecisionOf(piece);
  block->indices = piece.selection.indices + size_t{group} * piece.selection.k;
  block->index_count = piece.selection.k;
  block->count = 0;
  for (uint32_t i = begin; i < end; ++i) {
    const BlockRow row = RowOf(shape, piece, i);
    if (block->count > 0 && row.limit != block->rows[0].limit) break;
    block->rows[block->count++] = row;
  }
  block->index_limit = std::min(piece.rows.count, block->rows[0].limit);
}

// Calls compute(block) for the RowBlocks of block number `index` of the run. There is one, or
// several for a selection whose rows differ in their limits.
template <typename Compute>
void ForEachRowBlock(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                     const Run& run, uint64_t index, Compute compute) {
  RowBlock block;
  if (run.group_rows == 0) {
    FillDense(shape, pieces, run, static_cast<uint32_t>(index * run.block_rows), &block);
    compute(block);
    return;
  }
  const AttentionPiece& piece = pieces[run.first_piece];
  const uint32_t group = static_cast<uint32_t>(index / run.blocks_per_group());
  const uint32_t part = static_cast<uint32_t>(index % run.blocks_per_group());
  const uint32_t group_begin = group * run.group_rows;
  const uint32_t group_end = std::min(run.row_count, group_begin + run.group_rows);
  uint32_t i = group_begin + part * run.block_rows;
  const uint32_t end = std::min(group_end, i + run.block_rows);
  while (i < end) {
    FillSelected(shape, piece, i, end, &block);
    compute(block);
    i += block.count;
  }
}

// Spans that one thread hands to the kernel at once: a matrix kernel overlaps neighbours.
constexpr uint32_t kRunSpansMax = 32;
// A block of up to 16 rows leaves room for the results of eight spans in each worker's scratch.
constexpr uint32_t kWaveSpanCountMax =
    WorkerPool::kThreadCountMax * (kBlockRowsMax / kRowsPerVector);

// Computes the block's spans on one thread, one after the other.
void ComputeBlock(const BlockKernel& kernel, const AttentionShape& shape, const RowBlock& block,
                  std::span<std::byte> scratch) {
  float* const total = kernel.TotalIn(shape, scratch);
  float* const result = kernel.ResultsIn(shape, scratch);
  kernel.Clear(shape, block, total);
  kernel.Pack(shape, block, scratch);
  std::array<uint32_t, kRunSpansMax> begins;
  const uint32_t end = block.key_count();
  for (uint32_t next = 0; next < end;) {
    uint32_t count = 0;
    for (; count < kRunSpansMax && next < end; next = SpanEnd(block, next, kernel.span_rows()))
      begins[count++] = next;
    kernel.Attend(
        shape, block, {begins.data(), count, next, next}, scratch,
        [result](uint32_t) { return result; }, total);
  }
  kernel.Write(shape, block, total);
}

// All threads compute spans of one block, in waves of as many spans as there is room for results.
// Each thread takes a run of them, so that it can prefetch from one to the next. The first run is
// folded as it is computed. Then all threads fold the others in ascending order, each its share of
// the query rows. Other cores wrote what they read, which costs 1 us per span of 16 rows. The sums
// are those of ComputeBlock, so the bits are too.
class WaveCompute {
 public:
  WaveCompute(const BlockKernel& kernel, const AttentionShape& shape, const RowBlock& block,
              WorkerPool& pool)
      : kernel_(kernel),
        shape_(shape),
        block_(block),
        pool_(pool),
        state_floats_(kernel.StateFloats(shape, block.packed_rows())) {}

  void Run() {
    total_ = kernel_.TotalIn(shape_, pool_.scratch(0));
    kernel_.Clear(shape_, block_, total_);
    const uint32_t slots = pool_.thread_count() * (kernel_.block_rows() / block_.packed_rows());
    const uint32_t end = block_.key_count();
    for (wave_end_ = 0; wave_end_ < end;) {
      wave_count_ = 0;
      while (wave_count_ < slots && wave_end_ < end) {
        begins_[wave_count_++] = wave_end_;
        wave_end_ = SpanEnd(block_, wave_end_, kernel_.span_rows());
      }
      Attend();
      FoldRest();
    }
    kernel_.Write(shape_, block_, total_);
  }

 private:
  void Attend() {
    const uint32_t tasks = std::min(pool_.thread_count(), wave_count_);
    folded_ = wave_count_ / tasks;
    pool_.Run(tasks, [&](uint32_t task, uint32_t worker) {
      const std::span<std::byte> scratch = pool_.scratch(worker);
      if (!packed_[worker]) kernel_.Pack(shape_, block_, scratch);
      packed_[worker] = true;
      const uint32_t begin = task * wave_count_ / tasks, end = (task + 1) * wave_count_ / tasks;
      const uint32_t run_end = end < wave_count_ ? begins_[end] : wave_end_;
      kernel_.Attend(
          shape_, block_, {&begins_[begin], end - begin, run_end, block_.key_count()}, scratch,
          [&](uint32_t i) { return Slot(begin + i); }, task == 0 ? total_ : nullptr);
    });
  }

  void FoldRest() {
    if (folded_ == wave_count_) return;
    // Below 4 rows, a quarter of a microsecond per span, handing out costs more than it saves.
    const uint32_t shares = std::clamp(block_.count / 4, 1u, pool_.thread_count());
    pool_.Run(shares, [&](uint32_t share, uint32_t) {
      const uint32_t begin = share * block_.count / shares;
      const uint32_t end = (share + 1) * block_.count / shares;
      for (uint32_t i = folded_; i < wave_count_; ++i)
        kernel_.Fold(shape_, block_, begin, end, Slot(i), total_);
    });
  }

  // A slot is in some worker's scratch memory, but belongs to the span that is computed into it.
  float* Slot(uint32_t i) {
    const uint32_t threads = pool_.thread_count();
    return kernel_.ResultsIn(shape_, pool_.scratch(i % threads)) + i / threads * state_floats_;
  }

  const BlockKernel& kernel_;
  const AttentionShape& shape_;
  const RowBlock& block_;
  WorkerPool& pool_;
  const size_t state_floats_;
  std::array<bool, WorkerPool::kThreadCountMax> packed_ = {};
  float* total_ = nullptr;
  uint32_t folded_ = 0;  // spans of the wave that are in total_ after Attend
  std::array<uint32_t, kWaveSpanCountMax> begins_;  // the first key of each span of the wave
  uint32_t wave_count_ = 0;
  uint32_t wave_end_ = 0;  // the end of its last span
};

// Walks the block numbers of a whole call. Each worker's only grow, so each keeps its own place.
struct Cursor {
  uint32_t piece = 0;
  uint64_t first_block = 0;  // the first block of the run that begins at `piece`

  // Returns the run that holds `block`, which must not be before the previous call's block.
  Run Seek(std::span<const AttentionPiece> pieces, uint32_t block_rows, uint64_t block) {
    for (;;) {
      const Run run = RunFrom(pieces, piece, block_rows);
      if (block < first_block + run.block_count()) return run;
      first_block += run.block_count();
      piece += run.piece_count;
    }
  }
};

void CheckPiece(const AttentionShape& shape, const AttentionPiece& piece) {
  if (piece.q.count == 0) return;
  CKV_CHECK(piece.q.data != nullptr && piece.q.stride >= shape.d_qk);
  CKV_CHECK(piece.out.o != nullptr && piece.out.m != nullptr && piece.out.l != nullptr);
  CKV_CHECK(!piece.selection.present() || piece.selection.group_rows > 0);
  if (piece.rows.count == 0) return;
  CKV_CHECK(piece.rows.data != nullptr && piece.rows.stride_bytes >= RowBytes(shape));
  CKV_CHECK(!piece.rows.paged() || piece.rows.blocks.block_rows > 0);
}

void CheckShape(const AttentionShape& shape) {
  CKV_CHECK(shape.d_qk > 0 && shape.d_qk <= kRowWidthMax && shape.d_qk % 2 == 0);
  CKV_CHECK(shape.d_v > 0 && shape.d_v <= shape.d_qk);
  if (shape.row_dtype == RowDtype::kBf16) return;
  CKV_CHECK(shape.row_dtype == RowDtype::kFp8DsMla);
  CKV_CHECK(shape.d_v % kFp8ScaleGroup == 0 && shape.d_v + shape.d_rope == shape.d_qk);
}

// How the work of a call is cut. The bits do not depend on it.
struct Schedule {
  uint32_t block_rows = kBlockRowsMax;
  uint64_t block_count = 0;
  bool by_rows = true;  // threads take blocks; else they share each block's spans
};

// The blocks of the whole call, and whether every run ends in a full one.
std::pair<uint64_t, bool> CountBlocks(std::span<const AttentionPiece> pieces, uint32_t block_rows) {
  uint64_t count = 0;
  bool full = true;
  for (uint32_t p = 0; p < pieces.size();) {
    const Run run = RunFrom(pieces, p, block_rows);
    count += run.block_count();
    full = full && run.row_count % block_rows == 0;
    p += run.piece_count;
  }
  return {count, full};
}

// With four blocks per thread, an uneven end costs at most a fifth of the time, if they have the
// same cKV rows. Fewer blocks are split by query rows only if that is even: 128 rows on two threads
// are two blocks of 64. Otherwise, and if runs have other rows, threads share the spans of each
// block.
Schedule PlanCall(std::span<const AttentionPiece> pieces, uint32_t block_rows, uint32_t threads) {
  const auto [whole_count, whole_full] = CountBlocks(pieces, block_rows);
  if (threads == 1 || whole_count >= uint64_t{4} * threads) return {block_rows, whole_count, true};
  const auto [column_count, column_full] = CountBlocks(pieces, block_rows / 2);
  const bool same_rows =
      std::all_of(pieces.begin(), pieces.end(), [&](const AttentionPiece& piece) {
        return piece.rows.count == pieces[0].rows.count && piece.row_limits == nullptr;
      });
  if (same_rows && column_full && column_count > 0 && column_count % threads == 0) {
    return {block_rows / 2, column_count, true};
  }
  return {block_rows, whole_count, false};
}

}  // namespace

namespace {

// Everything that ShareRows compares. Paged rows of all sequences begin at one address, and differ
// in their tables.
auto SortKeyOf(const AttentionPiece& piece) {
  return std::tuple(piece.rows.data, piece.rows.blocks.table, piece.rows.count,
                    piece.rows.stride_bytes, piece.selection.present(), PrecisionOf(piece));
}

}  // namespace

bool ShareRows(const AttentionPiece& a, const AttentionPiece& b) {
  return !a.selection.present() && !b.selection.present() && a.rows.data == b.rows.data &&
         a.rows.count == b.rows.count && a.rows.stride_bytes == b.rows.stride_bytes &&
         a.rows.blocks == b.rows.blocks && PrecisionOf(a) == PrecisionOf(b);
}

void GatherSharedRows(std::span<AttentionPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
    return SortKeyOf(a) < SortKeyOf(b);
  });
}

void AttendPartials(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                    WorkerPool& pool) noexcept {
  AttendPartialsOn(KernelFor(shape), shape, pieces, pool);
}

void AttendPartialsOn(const BlockKernel& kernel, const AttentionShape& shape,
                      std::span<const AttentionPiece> pieces, WorkerPool& pool) noexcept {
  CheckShape(shape);
  uint64_t query_rows = 0;
  for (const AttentionPiece& piece : pieces) {
    CheckPiece(shape, piece);
    query_rows += piece.q.count;
  }
  CKV_CHECK(query_rows <= kNoLimit);  // so that rows and blocks are numbered in 32 bits
  const Schedule plan = PlanCall(pieces, kernel.block_rows(), pool.thread_count());
  if (!plan.by_rows) {
    Cursor cursor;
    for (uint64_t index = 0; index < plan.block_count; ++index) {
      const Run run = cursor.Seek(pieces, plan.block_rows, index);
      ForEachRowBlock(shape, pieces, run, index - cursor.first_block, [&](const RowBlock& block) {
        WaveCompute(kernel, shape, block, pool).Run();
      });
    }
    return;
  }
  std::array<Cursor, WorkerPool::kThreadCountMax> cursors;
  pool.Run(static_cast<uint32_t>(plan.block_count), [&](uint32_t index, uint32_t worker) {
    Cursor& cursor = cursors[worker];
    const Run run = cursor.Seek(pieces, plan.block_rows, index);
    ForEachRowBlock(shape, pieces, run, index - cursor.first_block, [&](const RowBlock& block) {
      ComputeBlock(kernel, shape, block, pool.scratch(worker));
    });
  });
}

}  // namespace ckv
