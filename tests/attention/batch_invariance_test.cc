// Goal: a row's bits depend on its query, the rows it attends and the kernel target, on nothing
// else (I2 compares answers bit for bit).
// Method: compute every query row alone, on one thread, from contiguous memory; then with others,
// on several threads, from other addresses and strides, cut by limits; compare bits.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "attention/mla_partial.h"
#include "tests/attention/each_target.h"
#include "tests/attention/random_piece.h"

namespace ckv {
namespace {

using test::ForEachTarget;
using test::PieceOptions;
using test::RandomIndices;
using test::TestPiece;

using Bits = std::vector<std::byte>;

// Output of one query row.
struct RowOutput {
  explicit RowOutput(uint32_t d_v) : o(d_v) {}
  PartialView view() { return {o.data(), &m, &l, PartialDtype::kF32}; }
  Bits bits() const {
    Bits all;
    const auto append = [&all](const float* from, size_t count) {
      const auto* bytes = reinterpret_cast<const std::byte*>(from);
      all.insert(all.end(), bytes, bytes + count * sizeof(float));
    };
    append(o.data(), o.size());
    append(&m, 1);
    append(&l, 1);
    return all;
  }
  std::vector<float> o;
  float m = 0, l = 0;
};

// Row i of the piece by itself. A limit becomes a shorter view, an index list its valid entries.
Bits Alone(const AttentionShape& shape, const AttentionPiece& piece, uint32_t i, WorkerPool& pool) {
  RowOutput out(shape.d_v);
  AttentionPiece one;
  one.q = {piece.q.data + size_t{i} * piece.q.stride, 1, piece.q.stride};
  one.rows = piece.rows;
  one.precision = piece.precision;
  if (piece.row_limits != nullptr) {
    one.rows.count = std::min(one.rows.count, piece.row_limits[i]);
  }
  std::vector<int32_t> valid;
  if (piece.selection.present()) {
    const Selection& all = piece.selection;
    for (uint32_t j = 0; j < all.k; ++j) {
      const int32_t index = all.indices[size_t{i / all.group_rows} * all.k + j];
      if (index >= 0 && static_cast<uint32_t>(index) < one.rows.count) valid.push_back(index);
    }
    valid.reserve(1);
    one.selection = {valid.data(), static_cast<uint32_t>(valid.size()), 1};
  }
  one.out = out.view();
  AttendPartials(shape, {&one, 1}, pool);
  return out.bits();
}

std::vector<Bits> EachAlone(const TestPiece& piece) {
  WorkerPool pool(1);
  std::vector<Bits> bits;
  for (uint32_t i = 0; i < piece.piece().q.count; ++i) {
    bits.push_back(Alone(piece.shape(), piece.piece(), i, pool));
  }
  return bits;
}

void ExpectSame(const TestPiece& piece, const std::vector<Bits>& want, const char* what) {
  for (uint32_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(piece.RowBits(i), want[i]) << what << ", row " << i;
  }
}

PieceOptions SmallOptions(std::mt19937* rng) {
  PieceOptions options;
  const uint32_t d_qk = 2 * (1 + (*rng)() % 50);
  options.shape = {d_qk, 1 + static_cast<uint32_t>((*rng)() % d_qk), 0, RowDtype::kBf16, 0.3f};
  options.q_count = 1 + (*rng)() % 90;
  options.row_count = (*rng)() % 3 == 0 ? (*rng)() % 1300 : (*rng)() % 200;
  options.q_padding = (*rng)() % 5;
  options.row_padding_bytes = (*rng)() % 40;
  options.row_offset_bytes = (*rng)() % 64;
  return options;
}

// The vector targets have one kernel for all precisions.
std::vector<Precision> PrecisionsOfTarget() {
  const std::string_view target = KernelTarget();
  if (!target.starts_with("AMX") && target != "AVX512_BF16") return {Precision::kExact};
  return {Precision::kExact, Precision::kFast};
}

TEST(BatchInvariance, BitsDoNotDependOnCompanyThreadsAndLimits) {
  WorkerPool pool1(1), pool2(2), pool5(5);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const PieceOptions options = SmallOptions(&rng);
    TestPiece piece(options, &rng);
    if (seed % 2 == 0) {
      std::vector<uint32_t> limits(options.q_count);
      for (uint32_t& limit : limits) limit = rng() % (options.row_count + 20);
      piece.SetLimits(limits);
    }
    if (seed % 3 == 0) {
      const uint32_t k = rng() % 700, group_rows = 1 + rng() % 100;
      const uint32_t groups = (options.q_count + group_rows - 1) / group_rows;
      piece.SetSelection(RandomIndices(k * groups, options.row_count, &rng), k, group_rows);
    }
    ForEachTarget([&] {
      for (const Precision precision : PrecisionsOfTarget()) {
        piece.piece().precision = precision;
        const std::vector<Bits> want = EachAlone(piece);
        for (WorkerPool* pool : {&pool1, &pool2, &pool5}) {
          piece.ResetOutput();
          AttendPartials(piece.shape(), {&piece.piece(), 1}, *pool);
          ExpectSame(piece, want, "whole piece");
        }
      }
    });
  }
}

// Many requests over one chunk share blocks, next to pieces over other rows: no bit may change.
TEST(BatchInvariance, PiecesThatShareRows) {
  WorkerPool pool1(1), pool3(3);
  for (uint32_t seed = 100; seed < 104; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    PieceOptions options = SmallOptions(&rng);
    TestPiece whole(options, &rng);
    PieceOptions other_options = options;
    other_options.row_count = 50;
    TestPiece other(other_options, &rng);
    ForEachTarget([&] {
      const std::vector<Bits> want = EachAlone(whole), other_want = EachAlone(other);
      for (WorkerPool* pool : {&pool1, &pool3}) {
        whole.ResetOutput();
        other.ResetOutput();
        std::vector<AttentionPiece> pieces;
        for (uint32_t i = 0; i < options.q_count;) {
          const uint32_t count = std::min<uint32_t>(rng() % 20, options.q_count - i);
          AttentionPiece part = whole.piece();
          part.q.data += size_t{i} * part.q.stride;
          part.q.count = count;
          part.out.o = static_cast<float*>(part.out.o) + size_t{i} * options.shape.d_v;
          part.out.m += i;
          part.out.l += i;
          pieces.push_back(part);
          i += count;
        }
        pieces.insert(pieces.begin() + static_cast<ptrdiff_t>(rng() % (pieces.size() + 1)),
                      other.piece());
        AttendPartials(options.shape, pieces, *pool);
        ExpectSame(whole, want, "in parts");
        ExpectSame(other, other_want, "beside the parts");
      }
    });
  }
}

// Several requests, each with queries and an output of its own, over a few sets of rows.
class Requests {
 public:
  Requests(uint32_t seed, RowDtype dtype) : rng_(seed) {
    const uint32_t d_v = dtype == RowDtype::kBf16 ? 1 + Below(120) : 128 * (1 + Below(2));
    const uint32_t d_rope = 2 * Below(40) + d_v % 2;
    options_.shape = {d_v + d_rope, d_v, d_rope, dtype, 0.2f};
    for (uint32_t set = 0; set < 3; ++set) {
      PieceOptions options = options_;
      options.row_count = set == 0 ? Below(80) : Below(500);
      options.row_padding_bytes = Below(3) * 8;
      sets_.push_back(std::make_unique<TestPiece>(options, &rng_));
    }
    const uint32_t count = 2 + Below(10);
    for (uint32_t i = 0; i < count; ++i) Add();
  }

  // Each request's output, computed by a call of its own on one thread.
  std::vector<std::vector<Bits>> EachRequestAlone() {
    WorkerPool pool(1);
    std::vector<std::vector<Bits>> bits;
    for (const auto& request : requests_) {
      request->ResetOutput();
      AttendPartials(options_.shape, {&request->piece(), 1}, pool);
      bits.push_back(BitsOf(*request));
    }
    return bits;
  }
  std::vector<std::vector<Bits>> Together(WorkerPool& pool) {
    std::vector<AttentionPiece> pieces;
    for (const auto& request : requests_) {
      request->ResetOutput();
      pieces.push_back(request->piece());
    }
    AttendPartials(options_.shape, pieces, pool);
    std::vector<std::vector<Bits>> bits;
    for (const auto& request : requests_) {
      EXPECT_TRUE(request->GuardsAreIntact());
      bits.push_back(BitsOf(*request));
    }
    return bits;
  }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(rng_() % bound); }

  void Add() {
    PieceOptions options = options_;
    // Mostly few: 1 to 12 rows, and sums of them, have their own code paths.
    options.q_count = 1 + Below(Below(4) == 0 ? 130 : 9);
    options.q_padding = Below(5);
    options.dtype = Below(2) == 0 ? PartialDtype::kF32 : PartialDtype::kBf16;
    requests_.push_back(std::make_unique<TestPiece>(options, &rng_));
    TestPiece& request = *requests_.back();
    if (Below(3) == 0) set_ = Below(3);  // else over the rows of the previous one
    request.piece().rows = sets_[set_]->piece().rows;
    const uint32_t row_count = request.piece().rows.count;
    if (Below(5) == 0) {
      std::vector<uint32_t> limits(options.q_count);
      for (uint32_t& limit : limits) limit = Below(row_count + 20);
      request.SetLimits(limits);
    }
    if (Below(6) == 0) {
      const uint32_t k = Below(200);
      request.SetSelection(RandomIndices(k, row_count, &rng_), k, options.q_count);
    }
  }
  static std::vector<Bits> BitsOf(const TestPiece& request) {
    std::vector<Bits> bits;
    for (uint32_t i = 0; i < request.piece().q.count; ++i) bits.push_back(request.RowBits(i));
    return bits;
  }

  std::mt19937 rng_;
  PieceOptions options_;
  uint32_t set_ = 0;
  std::vector<std::unique_ptr<TestPiece>> sets_, requests_;
};

// Goal: the mix of requests in a call never changes a request's bits.
// Method: random requests of 1 to 130 rows, most over the rows of the previous one, some selected,
// limited or over other rows, with outputs of both dtypes; together on 1 to 5 threads, and each
// alone.
TEST(BatchInvariance, RequestsTogetherAreEachAlone) {
  std::vector<std::unique_ptr<WorkerPool>> pools;
  for (uint32_t threads = 1; threads <= 5; ++threads) {
    pools.push_back(std::make_unique<WorkerPool>(threads));
  }
  for (uint32_t seed = 200; seed < 212; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Requests requests(seed, seed % 2 == 0 ? RowDtype::kBf16 : RowDtype::kFp8DsMla);
    ForEachTarget([&] {
      const std::vector<std::vector<Bits>> want = requests.EachRequestAlone();
      for (const auto& pool : pools) {
        ASSERT_EQ(requests.Together(*pool), want) << pool->thread_count() << " threads";
      }
    });
  }
}

// Every number of rows that has its own code path, or at which the next one begins, with and
// without limits that separate its rows: each row has the bits that it has alone.
TEST(BatchInvariance, EveryRowCount) {
  WorkerPool pool(1);
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    for (uint32_t count = 1; count <= 18; ++count) {
      SCOPED_TRACE(testing::Message() << "rows " << count);
      std::mt19937 rng(count);
      PieceOptions options;
      options.shape = {128 + 38, 128, 38, dtype, 0.2f};
      options.q_count = count;
      options.row_count = 150 + count;
      TestPiece piece(options, &rng);
      for (const bool limited : {false, true}) {
        std::vector<uint32_t> limits(count, options.row_count);
        for (uint32_t i = 0; limited && i < count; i += 1 + static_cast<uint32_t>(rng() % 6)) {
          limits[i] = static_cast<uint32_t>(rng() % 170);
        }
        piece.SetLimits(limits);
        ForEachTarget([&] {
          for (const Precision precision : PrecisionsOfTarget()) {
            piece.piece().precision = precision;
            const std::vector<Bits> want = EachAlone(piece);
            piece.ResetOutput();
            AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
            ExpectSame(piece, want, limited ? "limited" : "whole");
          }
        });
      }
    }
  }
}

TEST(BatchInvariance, AddressesAndStrides) {
  WorkerPool pool(2);
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    PieceOptions options;
    options.shape = {128 + 22, 128, 22, dtype, 0.2f};
    options.q_count = 21;
    options.row_count = 700;
    std::vector<std::unique_ptr<TestPiece>> pieces;
    for (const uint32_t padding : {0u, 1u, 2u, 6u, 64u, 3000u}) {
      options.row_padding_bytes = padding;
      options.row_offset_bytes = padding % 61;
      options.q_padding = padding % 7;
      std::mt19937 rng(77);  // the same values each time
      pieces.push_back(std::make_unique<TestPiece>(options, &rng));
    }
    ForEachTarget([&] {
      const std::vector<Bits> want = EachAlone(*pieces.front());
      for (const auto& piece : pieces) {
        AttendPartials(piece->shape(), {&piece->piece(), 1}, pool);
        ExpectSame(*piece, want, "moved");
      }
    });
  }
}

// Goal: skipped indices change no bit, even if they fill the list of several spans.
// Method: 1500 indices among 40000, and none among 40000, on one thread and in waves of several.
TEST(BatchInvariance, SkippedIndicesMoveNothing) {
  WorkerPool pool1(1), pool3(3);
  for (const uint32_t valid_count : {0u, 576u, 1500u}) {
    SCOPED_TRACE(testing::Message() << "seed " << valid_count);
    std::mt19937 rng(valid_count);
    PieceOptions options;
    options.shape = {20, 16, 0, RowDtype::kBf16, 0.3f};
    options.q_count = 3;
    options.row_count = 2000;
    TestPiece piece(options, &rng);
    std::vector<int32_t> indices(40000, -1);
    for (size_t i = 0; i < indices.size(); i += 2) indices[i] = 2000 + static_cast<int32_t>(i);
    for (uint32_t i = 0; i < valid_count; ++i) {
      indices[100 + i * 20 + rng() % 20] = static_cast<int32_t>(rng() % 2000);
    }
    piece.piece().selection = {indices.data(), static_cast<uint32_t>(indices.size()), 3};
    const std::vector<Bits> want = EachAlone(piece);
    for (WorkerPool* pool : {&pool1, &pool3}) {
      piece.ResetOutput();
      AttendPartials(piece.shape(), {&piece.piece(), 1}, *pool);
      ExpectSame(piece, want, "long list");
    }
  }
}

// All rows selected in order is the dense result, bit for bit: same tiles, same spans.
TEST(BatchInvariance, SelectingEverythingIsDense) {
  WorkerPool pool(1);
  std::mt19937 rng(55);
  PieceOptions options;
  options.shape = {64, 40, 24, RowDtype::kBf16, 0.3f};
  options.q_count = 40;
  options.row_count = 1300;
  TestPiece piece(options, &rng);
  const std::vector<Bits> want = EachAlone(piece);
  std::vector<int32_t> all(options.row_count);
  std::iota(all.begin(), all.end(), 0);
  all.insert(all.begin() + 100, 5, -1);
  piece.SetSelection(all, static_cast<uint32_t>(all.size()), 40);
  AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
  ExpectSame(piece, want, "selected");
}

}  // namespace
}  // namespace ckv
