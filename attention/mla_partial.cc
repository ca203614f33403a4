#include "attention/mla_partial.h"

#include <algorithm>
#include <array>

#include "attention/mla_block.h"
#include "proto/status.h"

namespace ckv {
namespace {

// A run is what blocks are cut from: one selected piece, or the longest sequence of dense pieces
// over the same rows, whose query rows then share blocks. That is what batching requests buys: 8
// requests of 16 rows read and convert each cKV row twice instead of 8 times.
struct Run {
  uint32_t first_piece = 0;
  uint32_t piece_count = 0;
  uint32_t row_count = 0;
  uint32_t group_rows = 0;  // selected: rows that share an index list; dense: 0

  uint32_t blocks_per_group() const { return (group_rows + kBlockRows - 1) / kBlockRows; }
  uint64_t block_count() const {
    if (group_rows == 0) return (uint64_t{row_count} + kBlockRows - 1) / kBlockRows;
    return uint64_t{(row_count + group_rows - 1) / group_rows} * blocks_per_group();
  }
};

bool SameRows(const AttentionPiece& a, const AttentionPiece& b) {
  return a.rows.data == b.rows.data && a.rows.count == b.rows.count &&
         a.rows.stride_bytes == b.rows.stride_bytes;
}

Run RunFrom(std::span<const AttentionPiece> pieces, uint32_t first) {
  const AttentionPiece& head = pieces[first];
  Run run{first, 1, head.q.count, 0};
  if (head.selection.present()) {
    // No group is longer than the piece: a huge group_rows must not overflow the block count.
    run.group_rows = std::max(1u, std::min(head.selection.group_rows, head.q.count));
    return run;
  }
  for (uint32_t p = first + 1; p < pieces.size(); ++p) {
    if (pieces[p].selection.present() || !SameRows(head, pieces[p])) break;
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

// Rows [begin, begin + kBlockRows) of a dense run, which may begin and end inside pieces.
void FillDense(const AttentionShape& shape, std::span<const AttentionPiece> pieces, const Run& run,
               uint32_t begin, RowBlock* block) {
  block->keys = pieces[run.first_piece].rows;
  block->indices = nullptr;
  block->count = 0;
  uint32_t piece_begin = 0;
  for (uint32_t p = run.first_piece; p < run.first_piece + run.piece_count; ++p) {
    const AttentionPiece& piece = pieces[p];
    const uint32_t piece_end = piece_begin + piece.q.count;
    while (begin >= piece_begin && begin < piece_end && block->count < kBlockRows) {
      block->rows[block->count++] = RowOf(shape, piece, begin++ - piece_begin);
    }
    if (block->count == kBlockRows) return;
    piece_begin = piece_end;
  }
}

// The longest sequence of rows from `begin`, before `end` and of one limit, that fits a block. The
// limit filters the index list, so it must be the whole block's.
void FillSelected(const AttentionShape& shape, const AttentionPiece& piece, uint32_t begin,
                  uint32_t end, RowBlock* block) {
  const uint32_t group = begin / piece.selection.group_rows;
  block->keys = piece.rows;
  block->indices = piece.selection.indices + size_t{group} * piece.selection.k;
  block->index_count = piece.selection.k;
  block->count = 0;
  for (uint32_t i = begin; i < end && block->count < kBlockRows; ++i) {
    const BlockRow row = RowOf(shape, piece, i);
    if (block->count > 0 && row.limit != block->rows[0].limit) break;
    block->rows[block->count++] = row;
  }
  block->index_limit = std::min(piece.rows.count, block->rows[0].limit);
}

// Calls compute(block) for the RowBlocks that make up block number `index` of the run: one, or for
// a selection whose rows differ in their limits several.
template <typename Compute>
void ForEachRowBlock(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                     const Run& run, uint64_t index, Compute compute) {
  RowBlock block;
  if (run.group_rows == 0) {
    FillDense(shape, pieces, run, static_cast<uint32_t>(index * kBlockRows), &block);
    compute(block);
    return;
  }
  const AttentionPiece& piece = pieces[run.first_piece];
  const uint32_t group = static_cast<uint32_t>(index / run.blocks_per_group());
  const uint32_t part = static_cast<uint32_t>(index % run.blocks_per_group());
  const uint32_t group_begin = group * run.group_rows;
  const uint32_t group_end = std::min(run.row_count, group_begin + run.group_rows);
  uint32_t i = group_begin + part * kBlockRows;
  const uint32_t end = std::min(group_end, i + kBlockRows);
  while (i < end) {
    FillSelected(shape, piece, i, end, &block);
    compute(block);
    i += block.count;
  }
}

BlockState EmptyState(float* memory, uint32_t packed_rows) {
  const BlockState state = BlockState::At(memory, packed_rows);
  std::fill_n(state.m, packed_rows, kEmptyM);
  std::fill_n(state.l, packed_rows, 0.0f);
  return state;
}

BlockScratch ScratchOf(const AttentionShape& shape, WorkerPool& pool, uint32_t worker) {
  const std::span<std::byte> memory = pool.scratch(worker);
  return BlockScratch::Cut(shape, memory.data(), memory.size());
}

// One thread computes the block's spans one after the other.
void ComputeBlock(const AttentionShape& shape, const RowBlock& block, const BlockScratch& scratch) {
  const uint32_t packed_rows = block.packed_rows();
  const BlockState total = EmptyState(scratch.total, packed_rows);
  const BlockState result = BlockState::At(scratch.results, packed_rows);
  PackQueries(shape, block, scratch.q);
  const uint32_t end = block.key_count();
  for (uint32_t begin = 0; begin < end; begin = SpanEnd(block, begin)) {
    AttendSpan(shape, block, begin, scratch, result);
    FoldSpan(shape, block.count, result, total);
  }
  WriteBlock(shape, block, total);
}

// A block of up to 16 rows leaves room for the results of four spans in each worker's scratch.
constexpr uint32_t kWaveSpanCountMax = WorkerPool::kThreadCountMax * (kBlockRows / 16);

// All threads compute spans of one block, in waves of as many spans as there is room for results;
// this thread folds each wave in ascending order. The same sums as ComputeBlock, so the same bits.
void ComputeBlockInWaves(const AttentionShape& shape, const RowBlock& block, WorkerPool& pool) {
  const uint32_t packed_rows = block.packed_rows();
  const uint32_t threads = pool.thread_count();
  const uint32_t slots = threads * (kBlockRows / packed_rows);
  const size_t slot_floats = BlockState::FloatCount(shape, packed_rows);
  // A slot lies in some worker's scratch, but belongs to the span that is computed into it.
  const auto slot = [&](uint32_t i) {
    float* results = ScratchOf(shape, pool, i % threads).results;
    return BlockState::At(results + i / threads * slot_floats, packed_rows);
  };
  const BlockState total = EmptyState(ScratchOf(shape, pool, 0).total, packed_rows);
  std::array<bool, WorkerPool::kThreadCountMax> packed = {};
  std::array<uint32_t, kWaveSpanCountMax> begins;
  const uint32_t end = block.key_count();
  for (uint32_t next = 0; next < end;) {
    uint32_t wave = 0;
    for (; wave < slots && next < end; next = SpanEnd(block, next)) begins[wave++] = next;
    pool.Run(wave, [&](uint32_t i, uint32_t worker) {
      const BlockScratch scratch = ScratchOf(shape, pool, worker);
      if (!packed[worker]) PackQueries(shape, block, scratch.q);
      packed[worker] = true;
      AttendSpan(shape, block, begins[i], scratch, slot(i));
    });
    for (uint32_t i = 0; i < wave; ++i) FoldSpan(shape, block.count, slot(i), total);
  }
  WriteBlock(shape, block, total);
}

// Walks block numbers of a whole call; each worker's only grow, so each keeps its own place.
struct Cursor {
  uint32_t piece = 0;
  uint64_t first_block = 0;  // of the run that begins at `piece`

  // The run that holds `block`, which is at or after the last one asked for.
  Run Seek(std::span<const AttentionPiece> pieces, uint64_t block) {
    for (;;) {
      const Run run = RunFrom(pieces, piece);
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
}

void CheckShape(const AttentionShape& shape) {
  CKV_CHECK(shape.d_qk > 0 && shape.d_qk <= kRowWidthMax && shape.d_qk % 2 == 0);
  CKV_CHECK(shape.d_v > 0 && shape.d_v <= shape.d_qk);
  if (shape.row_dtype == RowDtype::kBf16) return;
  CKV_CHECK(shape.row_dtype == RowDtype::kFp8DsMla);
  CKV_CHECK(shape.d_v % kFp8ScaleGroup == 0 && shape.d_v + shape.d_rope == shape.d_qk);
}

}  // namespace

void AttendPartials(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                    WorkerPool& pool) noexcept {
  CheckShape(shape);
  uint64_t query_rows = 0;
  for (const AttentionPiece& piece : pieces) {
    CheckPiece(shape, piece);
    query_rows += piece.q.count;
  }
  CKV_CHECK(query_rows <= kNoLimit);  // so that rows and blocks are numbered in 32 bits
  uint64_t block_count = 0;
  for (uint32_t p = 0; p < pieces.size();) {
    const Run run = RunFrom(pieces, p);
    block_count += run.block_count();
    p += run.piece_count;
  }
  // With two blocks a thread, at most a third of the time is lost to an uneven end; with fewer,
  // splitting each block's rows keeps every thread busy.
  if (pool.thread_count() > 1 && block_count < 2 * pool.thread_count()) {
    Cursor cursor;
    for (uint64_t index = 0; index < block_count; ++index) {
      const Run run = cursor.Seek(pieces, index);
      ForEachRowBlock(shape, pieces, run, index - cursor.first_block,
                      [&](const RowBlock& block) { ComputeBlockInWaves(shape, block, pool); });
    }
    return;
  }
  std::array<Cursor, WorkerPool::kThreadCountMax> cursors;
  pool.Run(static_cast<uint32_t>(block_count), [&](uint32_t index, uint32_t worker) {
    Cursor& cursor = cursors[worker];
    const Run run = cursor.Seek(pieces, index);
    const BlockScratch scratch = ScratchOf(shape, pool, worker);
    ForEachRowBlock(shape, pieces, run, index - cursor.first_block,
                    [&](const RowBlock& block) { ComputeBlock(shape, block, scratch); });
  });
}

}  // namespace ckv
