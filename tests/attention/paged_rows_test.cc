// Goal: rows in the blocks of a paged cache are attended in place, with the same bits as contiguous
// rows, and no memory around them is read.
// Method: a cache whose other rows are NaN, and a table of random blocks; bits are compared on
// every kernel target.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "attention/backend.h"
#include "attention/mla_partial.h"
#include "gtest/gtest.h"
#include "tests/attention/each_target.h"
#include "tests/attention/random_piece.h"
#include "tests/support/deferred_backend.h"

namespace ckv {
namespace {

using test::ForEachTarget;
using test::PieceOptions;
using test::RandomIndices;
using test::RowBytesOf;
using test::TestPiece;

// The cache of an engine, with one sequence's rows in it.
struct PagedCopy {
  PagedCopy(const AttentionShape& shape, const RowView& rows, uint32_t block_rows,
            uint32_t padding_bytes, std::mt19937* rng) {
    const uint32_t row_bytes = RowBytesOf(shape);
    const uint32_t used = (rows.count + block_rows - 1) / block_rows;
    table.resize(3 * used + 1);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), *rng);
    const size_t stride = size_t{block_rows} * row_bytes + padding_bytes;
    // Up to the last row of the last block, so that asan sees a read past it.
    memory.assign(table.size() * stride - padding_bytes, std::byte{0xff});
    table.resize(used);
    view = rows;
    view.data = memory.data();
    view.stride_bytes = row_bytes;
    view.blocks = {table.data(), block_rows, stride};
    for (uint32_t i = 0; i < rows.count; ++i)
      std::memcpy(const_cast<std::byte*>(view.Row(i)), rows.Row(i), row_bytes);
  }

  std::vector<std::byte> memory;
  std::vector<uint32_t> table;
  RowView view;
};

PieceOptions Options(uint32_t seed, std::mt19937* rng) {
  PieceOptions options;
  if (seed % 2 == 0) {
    const uint32_t d_qk = 2 * (1 + (*rng)() % 50);
    options.shape = {d_qk, 1 + static_cast<uint32_t>((*rng)() % d_qk), 0, RowDtype::kBf16, 0.3f};
  } else if (seed % 3 == 0) {
    options.shape.row_dtype = RowDtype::kFp8DsMla;
  }
  options.q_count = 1 + (*rng)() % 90;
  options.row_count = 1 + (*rng)() % (seed % 4 == 1 ? 1300 : 200);
  return options;
}

std::vector<std::vector<std::byte>> BitsOf(TestPiece& piece, WorkerPool& pool) {
  piece.ResetOutput();
  AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
  std::vector<std::vector<std::byte>> bits;
  for (uint32_t i = 0; i < piece.piece().q.count; ++i) bits.push_back(piece.RowBits(i));
  return bits;
}

// Blocks of the sizes that engines have, and odd ones; causal limits and selections too.
TEST(PagedRows, HaveTheBitsOfRowsOneAfterAnother) {
  ForEachTarget([] {
    WorkerPool alone(1), several(3);
    for (uint32_t seed = 0; seed < 16; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      std::mt19937 rng(seed);
      TestPiece piece(Options(seed, &rng), &rng);
      const uint32_t count = piece.piece().rows.count, queries = piece.piece().q.count;
      if (seed % 4 == 2) {
        std::vector<uint32_t> limits(queries);
        for (uint32_t i = 0; i < queries; ++i) limits[i] = count * (i + 1) / queries;
        piece.SetLimits(limits);
      } else if (seed % 4 == 3) {
        piece.SetSelection(RandomIndices(40 * queries, count, &rng), 40, 1);
      }
      const RowView dense = piece.piece().rows;
      const auto want = BitsOf(piece, alone);
      for (const uint32_t block_rows : {16u, 32u, 64u, 1u, 7u, 2000u}) {
        SCOPED_TRACE(testing::Message() << "blocks of " << block_rows);
        const PagedCopy paged(piece.shape(), dense, block_rows, seed % 5 == 0 ? 48 : 0, &rng);
        piece.piece().rows = paged.view;
        EXPECT_EQ(BitsOf(piece, alone), want);
        EXPECT_EQ(BitsOf(piece, several), want);
        piece.piece().rows = dense;
      }
    }
  });
}

// Two sequences of one length in one cache do not share blocks.
TEST(PagedRows, SequencesOfOneCacheAreApart) {
  WorkerPool pool(2);
  std::mt19937 rng(1);
  PieceOptions options;
  options.q_count = 16;
  options.row_count = 96;
  TestPiece first(options, &rng), second(options, &rng);
  const auto want_first = BitsOf(first, pool), want_second = BitsOf(second, pool);
  const uint32_t bytes = RowBytesOf(options.shape);
  constexpr uint32_t kBlockRows = 16;
  std::vector<std::byte> cache(size_t{12} * kBlockRows * bytes);
  const std::vector<uint32_t> tables[] = {{11, 0, 9, 2, 7, 4}, {1, 10, 3, 8, 5, 6}};
  TestPiece* const pieces[] = {&first, &second};
  std::vector<AttentionPiece> call;
  for (int s = 0; s < 2; ++s) {
    RowView view = pieces[s]->piece().rows;
    const RowView from = view;
    view.data = cache.data();
    view.stride_bytes = bytes;
    view.blocks = {tables[s].data(), kBlockRows, uint64_t{kBlockRows} * bytes};
    for (uint32_t i = 0; i < view.count; ++i)
      std::memcpy(const_cast<std::byte*>(view.Row(i)), from.Row(i), bytes);
    pieces[s]->ResetOutput();
    pieces[s]->piece().rows = view;
    call.push_back(pieces[s]->piece());
  }
  AttendPartials(options.shape, call, pool);
  for (uint32_t i = 0; i < options.q_count; ++i) {
    EXPECT_EQ(first.RowBits(i), want_first[i]);
    EXPECT_EQ(second.RowBits(i), want_second[i]);
  }
}

TEST(PagedRows, ReportsABackendThatCannotReadThem) {
  BackendReach reach = test::DeferredBackend::ReachAll();
  reach.paged_rows = false;
  test::DeferredBackend backend(reach);
  const std::unique_ptr<ComputeStream> stream = *backend.NewStream(1);
  std::mt19937 rng(1);
  TestPiece piece({.q_count = 2, .row_count = 40}, &rng);
  const PagedCopy paged(piece.shape(), piece.piece().rows, 16, 0, &rng);
  piece.piece().rows = paged.view;
  const absl::Status status = backend.AttendPartials(piece.shape(), {&piece.piece(), 1}, *stream);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_TRUE(stream->Wait().ok());
}

}  // namespace
}  // namespace ckv
