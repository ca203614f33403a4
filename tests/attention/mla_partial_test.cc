// Goal: partial attention is right for every shape, dtype, selection and limit, on every target.
// Method: random pieces against the f64 reference, in memory that is NaN outside the data and under
// asan exactly as long as the data. A failure prints the seed that repeats it.

#include "attention/mla_partial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/attention/each_target.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

using test::ForEachTarget;
using test::PieceOptions;
using test::RandomIndices;
using test::TestPiece;

// f32 o: 5e-7 x max(1, max|o|), plus what a logit's own error does to it. A logit is a sum of
// exact products, rounded some 20 times on its way from blocks of 64: its error is below 2^-22 of
// the largest logit (within the 5e-7 for logits up to 4, twice that much beyond). Shifting logits
// by up to e moves o by up to 2 e max|o|.
double ToleranceOf(const reference::Partial& row, double o_max, PartialDtype dtype) {
  const double excess = std::max(0.0, row.logit_abs_max - 4);
  double tolerance = 5e-7 * std::max(1.0, o_max) + 2 * 0x1p-22 * excess * std::max(1.0, o_max);
  if (dtype == PartialDtype::kBf16) tolerance += 0x1p-8 * o_max;
  return tolerance;
}

void ExpectRowNear(const TestPiece& piece, uint32_t i, const reference::Partial& want,
                   double o_max) {
  if (want.l == 0) {
    EXPECT_EQ(piece.m(i), kEmptyM) << "row " << i;
    EXPECT_EQ(piece.l(i), 0) << "row " << i;
    for (uint32_t d = 0; d < piece.shape().d_v; ++d) ASSERT_EQ(piece.o(i, d), 0) << "row " << i;
    return;
  }
  // The sums on the way to a logit stay within some 3 times its size (the root of the sum of its
  // squared products); each of at most 80 roundings moves it by 2^-25 of that, and they add up like
  // their root: 3 x 9 x 2^-25, below 2^-20; the result's own rounding is 2^-24 of the logit.
  const double logit_error = 0x1p-20 * want.logit_size + 0x1p-23 * want.logit_abs_max;
  EXPECT_NEAR(piece.m(i), want.m, logit_error) << "row " << i;
  // Every weight errs by twice a logit's error and exp's; their sum by no more, relatively.
  EXPECT_NEAR(piece.l(i) / want.l, 1, 2 * logit_error + 1e-6) << "row " << i;
  const double tolerance = ToleranceOf(want, o_max, piece.piece().out.dtype);
  for (uint32_t d = 0; d < piece.shape().d_v; ++d) {
    ASSERT_NEAR(piece.o(i, d), want.o[d], tolerance) << "row " << i << " column " << d;
  }
}

// Computes the piece on every target and compares all of it with the reference.
void Check(TestPiece& piece, WorkerPool& pool) {
  const std::vector<reference::Partial> want = reference::Attend(piece.shape(), piece.piece());
  double o_max = 0;
  for (const auto& row : want) o_max = std::max(o_max, reference::AbsMax(row.o));
  ForEachTarget([&] {
    piece.ResetOutput();
    AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
    for (uint32_t i = 0; i < want.size(); ++i) ExpectRowNear(piece, i, want[i], o_max);
    EXPECT_TRUE(piece.GuardsAreIntact());
  });
}

AttentionShape Bf16Shape(uint32_t d_qk, uint32_t d_v) {
  return {d_qk, d_v, d_qk - d_v, RowDtype::kBf16, 2.75f / std::sqrt(static_cast<float>(d_qk))};
}

TEST(AttendPartials, RandomShapes) {
  WorkerPool pool(1), pool3(3);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    PieceOptions options;
    const uint32_t d_qk = 2 * (1 + rng() % 200);
    options.shape = Bf16Shape(d_qk, 1 + rng() % d_qk);
    options.q_count = rng() % 70;
    options.row_count = rng() % 160;
    options.q_padding = rng() % 9;
    options.row_padding_bytes = rng() % 70;
    options.row_offset_bytes = rng() % 64;
    options.dtype = rng() % 2 == 0 ? PartialDtype::kF32 : PartialDtype::kBf16;
    TestPiece piece(options, &rng);
    if (rng() % 2 == 0) {
      const uint32_t k = rng() % 200, group_rows = 1 + rng() % 20;
      const uint32_t groups = (options.q_count + group_rows - 1) / group_rows;
      piece.SetSelection(RandomIndices(k * groups, options.row_count, &rng), k, group_rows);
    }
    if (rng() % 2 == 0) {
      std::vector<uint32_t> limits(options.q_count);
      for (uint32_t& limit : limits) limit = rng() % (options.row_count + 10);
      piece.SetLimits(limits);
    }
    Check(piece, rng() % 2 == 0 ? pool : pool3);
  }
}

TEST(AttendPartials, WidthsOfModelsAndOddOnes) {
  WorkerPool pool(1);
  std::mt19937 rng(1);
  const std::pair<uint32_t, uint32_t> widths[] = {{576, 512}, {512, 512},   {320, 256}, {288, 256},
                                                  {2, 1},     {2, 2},       {34, 7},    {62, 61},
                                                  {64, 33},   {1024, 1024}, {1022, 3},  {130, 127}};
  for (const auto& [d_qk, d_v] : widths) {
    for (const uint32_t q_count : {1, 7, 19}) {
      SCOPED_TRACE(testing::Message() << d_qk << " " << d_v << ", " << q_count << " queries");
      PieceOptions options;
      options.shape = Bf16Shape(d_qk, d_v);
      options.q_count = q_count;
      options.row_count = 77;
      TestPiece piece(options, &rng);
      Check(piece, pool);
    }
  }
}

// Counts on both sides of every size the kernel is blocked by: 4, 6, 8, 16, 64 query rows; 6, 8,
// 12, 16, 24, 72, 576 cKV rows.
TEST(AttendPartials, CountsAroundBlocks) {
  WorkerPool pool(1), pool2(2);
  std::mt19937 rng(2);
  const auto check = [&](uint32_t q_count, uint32_t row_count) {
    SCOPED_TRACE(testing::Message() << q_count << " queries, " << row_count << " rows");
    PieceOptions options;
    options.shape = Bf16Shape(34, 17);
    options.q_count = q_count;
    options.row_count = row_count;
    TestPiece piece(options, &rng);
    Check(piece, (q_count + row_count) % 2 == 0 ? pool : pool2);
  };
  for (const uint32_t q_count : {1,  2,  3,  4,  5,  6,  7,  8,  9,  11,  12,  15,  16, 17,
                                 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 200}) {
    check(q_count, 25);
  }
  for (const uint32_t row_count :
       {1,  5,  6,  7,  8,  11, 12,  13,  15,  16,  17,  23,  24,   25,   47,   48,  49,
        63, 64, 65, 71, 72, 73, 143, 144, 145, 575, 576, 577, 1151, 1152, 1153, 2500}) {
    check(1, row_count);
    check(3, row_count);
    check(20, row_count);
  }
}

TEST(AttendPartials, DeepSeekRowsOverSeveralSpans) {
  WorkerPool pool(2);
  std::mt19937 rng(3);
  PieceOptions options;
  options.q_count = 16;
  options.row_count = 1300;
  options.row_mean = 0.5f;  // sums over rows that do not cancel
  TestPiece piece(options, &rng);
  Check(piece, pool);
}

TEST(AttendPartials, Fp8DsMlaRows) {
  WorkerPool pool(1);
  std::mt19937 rng(4);
  for (const auto& [d_qk, d_v] : {std::pair<uint32_t, uint32_t>{576, 512}, {128 + 6, 128}}) {
    for (const uint32_t q_count : {1, 6, 18}) {
      for (const bool selected : {false, true}) {
        SCOPED_TRACE(testing::Message() << d_qk << ", " << q_count << " queries, " << selected);
        PieceOptions options;
        options.shape = Bf16Shape(d_qk, d_v);
        options.shape.row_dtype = RowDtype::kFp8DsMla;
        options.q_count = q_count;
        options.row_count = 100;
        options.row_offset_bytes = 3;
        options.row_padding_bytes = 5;
        TestPiece piece(options, &rng);
        std::uniform_real_distribution<float> scale(0.003f, 0.01f);
        for (uint32_t j = 0; j < 100; j += 2) {
          for (uint32_t group = 0; group < d_v / 128; ++group) {
            piece.StoreScale(j, group, scale(rng));
          }
        }
        if (selected) piece.SetSelection(RandomIndices(2 * 90, 100, &rng), 90, 16);
        Check(piece, pool);
      }
    }
  }
}

// The order of pieces changes no bit of the results. Those over the same rows become neighbours,
// but not one with a selection.
TEST(AttendPartials, PiecesOverTheSameRowsAreGathered) {
  std::mt19937 rng(7);
  const PieceOptions options = {.q_count = 5, .row_count = 300};
  TestPiece a(options, &rng), b(options, &rng), over_a(options, &rng), over_b(options, &rng);
  over_a.piece().rows = a.piece().rows;
  over_b.piece().rows = b.piece().rows;
  const std::vector<int32_t> indices = RandomIndices(20, 300, &rng);
  TestPiece selected(options, &rng);
  selected.piece().rows = a.piece().rows;
  selected.piece().selection = {indices.data(), 20, 5};
  std::vector<TestPiece*> all = {&a, &b, &selected, &over_a, &over_b};
  WorkerPool pool(1);
  std::vector<AttentionPiece> pieces;
  std::vector<float> want;
  const auto append = [](const TestPiece& piece, std::vector<float>& to) {
    for (uint32_t i = 0; i < 5; ++i) {
      to.insert(to.end(), {piece.m(i), piece.l(i)});
      for (uint32_t d = 0; d < piece.shape().d_v; ++d) to.push_back(piece.o(i, d));
    }
  };
  for (TestPiece* const piece : all) {
    AttendPartials(piece->shape(), {&piece->piece(), 1}, pool);
    append(*piece, want);
    piece->ResetOutput();
    pieces.push_back(piece->piece());
  }
  GatherSharedRows(pieces);
  int shared = 0;
  for (size_t i = 1; i < pieces.size(); ++i) shared += ShareRows(pieces[i - 1], pieces[i]);
  EXPECT_EQ(shared, 2) << "a selection has rows of its own";
  AttendPartials(a.shape(), pieces, pool);
  std::vector<float> got;
  for (const TestPiece* const piece : all) append(*piece, got);
  EXPECT_EQ(got, want);
}

// One attended row has weight 1, so o is its values: every e4m3 code, through every path that
// decodes one.
TEST(AttendPartials, EveryE4m3CodeIsDecodedExactly) {
  WorkerPool pool(1);
  std::mt19937 rng(11);
  PieceOptions options;
  options.shape = {256 + 64, 256, 64, RowDtype::kFp8DsMla, 0.01f};
  options.row_count = 1;
  for (const uint32_t q_count : {1, 20}) {
    options.q_count = q_count;
    TestPiece piece(options, &rng);
    for (uint32_t code = 0; code < 256; ++code) {
      // NaN codes would make the logit NaN: zeros in their place, NaN tests below.
      piece.StoreByte(0, code, (code & 0x7f) == 0x7f ? 0 : static_cast<uint8_t>(code));
    }
    piece.StoreScale(0, 0, 0.5f);
    piece.StoreScale(0, 1, 0x1p-9f);
    ForEachTarget([&] {
      AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
      for (uint32_t i = 0; i < q_count; ++i) {
        for (uint32_t code = 0; code < 256; ++code) {
          if ((code & 0x7f) == 0x7f) continue;
          const double want =
              reference::DecodeE4m3(static_cast<uint8_t>(code)) * (code < 128 ? 0.5 : 0x1p-9);
          ASSERT_EQ(piece.o(i, code), want) << "code " << code << ", " << q_count << " queries";
        }
      }
    });
  }
}

TEST(AttendPartials, ReturnsTheEmptyPartialWithoutVisibleRows) {
  WorkerPool pool(2);
  std::mt19937 rng(5);
  PieceOptions options;
  options.shape = Bf16Shape(20, 10);
  options.q_count = 5;
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    options.row_count = kind == 0 ? 0 : 9;
    TestPiece piece(options, &rng);
    if (kind == 1) piece.SetSelection({}, 0, 1);
    if (kind == 2) piece.SetSelection({-1, 9, 100, -7, 2147483647}, 5, 5);
    if (kind == 3) piece.SetLimits({0, 0, 0, 0, 0});
    Check(piece, pool);
  }
  options.q_count = 0;
  TestPiece piece(options, &rng);
  Check(piece, pool);
  AttendPartials(options.shape, {}, pool);
}

TEST(AttendPartials, ExtremeLogitsDoNotOverflow) {
  WorkerPool pool(1);
  std::mt19937 rng(6);
  PieceOptions options;
  options.shape = {64, 48, 16, RowDtype::kBf16, 1.0f};
  options.q_count = 20;
  options.row_count = 100;
  options.q_sigma = 500;  // logits to about +-1.5e4
  TestPiece piece(options, &rng);
  Check(piece, pool);
  double logit_max = 0;
  for (const auto& row : reference::Attend(piece.shape(), piece.piece())) {
    logit_max = std::max(logit_max, row.logit_abs_max);
  }
  EXPECT_GT(logit_max, 1e4);
}

// Equal logits: every weight is exactly 1, so l is the number of rows and o their plain mean.
TEST(AttendPartials, EqualLogits) {
  WorkerPool pool(1);
  std::mt19937 rng(7);
  PieceOptions options;
  options.shape = Bf16Shape(32, 20);
  options.q_count = 3;
  options.row_count = 300;
  options.q_sigma = 0;
  TestPiece piece(options, &rng);
  Check(piece, pool);
  AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
  EXPECT_EQ(piece.l(0), 300.0f);
  EXPECT_EQ(piece.m(0), 0.0f);
}

// Rows that a query does not see may hold anything: pages past the valid length, rows that are not
// selected. Includes neighbours in the same block that do see later rows.
TEST(AttendPartials, NanInUnseenRowsIsNeverRead) {
  WorkerPool pool(1);
  std::mt19937 rng(8);
  PieceOptions options;
  options.shape = Bf16Shape(40, 33);
  options.row_count = 200;
  options.q_count = 7;  // few enough for the narrow path
  TestPiece few(options, &rng);
  few.SetLimits({150, 149, 3, 0, 80, 80, 80});
  for (uint32_t j = 150; j < 200; ++j) few.FillRowWithNan(j);
  Check(few, pool);

  options.q_count = 30;
  TestPiece dense(options, &rng);
  std::vector<uint32_t> limits;
  for (uint32_t i = 0; i < 30; ++i) limits.push_back(i < 29 ? i * 5 : 150);
  dense.SetLimits(limits);
  for (uint32_t j = 150; j < 200; ++j) dense.FillRowWithNan(j);
  Check(dense, pool);

  // Row 145 is NaN and only the last query sees it.
  dense.FillRowWithNan(145);
  AttendPartials(dense.shape(), {&dense.piece(), 1}, pool);
  for (uint32_t i = 0; i < 29; ++i) {
    ASSERT_EQ(dense.l(i), dense.l(i)) << i;
    for (uint32_t d = 0; d < 33; ++d) ASSERT_EQ(dense.o(i, d), dense.o(i, d)) << i;
  }

  TestPiece selected(options, &rng);
  selected.SetSelection({3, 7, 7, 120, -1, 4}, 6, 30);
  for (uint32_t j = 0; j < 200; ++j) {
    if (j != 3 && j != 4 && j != 7 && j != 120) selected.FillRowWithNan(j);
  }
  Check(selected, pool);
}

// A NaN that is seen must appear in the answer: with m = -inf a merge would drop the part.
TEST(AttendPartials, NanInAttendedRowsReachesTheAnswer) {
  WorkerPool pool(1);
  std::mt19937 rng(9);
  PieceOptions options;
  options.row_count = 3;
  const AttentionShape fp8 = {128 + 16, 128, 16, RowDtype::kFp8DsMla, 0.1f};
  for (const AttentionShape& shape : {Bf16Shape(40, 33), fp8}) {
    for (const uint32_t q_count : {2, 20}) {
      for (const bool all : {false, true}) {
        options.shape = shape;
        options.q_count = q_count;
        TestPiece piece(options, &rng);
        for (uint32_t j = 0; j < (all ? 3u : 1u); ++j) piece.FillRowWithNan(j);
        ForEachTarget([&] {
          AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
          for (uint32_t i = 0; i < q_count; ++i) {
            EXPECT_TRUE(std::isnan(piece.o(i, 0)));
            EXPECT_TRUE(std::isnan(piece.l(i)));
            EXPECT_TRUE(std::isfinite(piece.m(i)));
          }
        });
      }
    }
  }
}

// Infinite values can leave no finite logit; that is not the same as having seen nothing.
TEST(AttendPartials, NoFiniteLogitIsNotTheEmptyPartial) {
  WorkerPool pool(1);
  std::mt19937 rng(12);
  PieceOptions options;
  options.shape = Bf16Shape(16, 8);
  options.row_count = 5;
  for (const uint32_t q_count : {1, 20}) {
    for (const bool selected : {false, true}) {
      options.q_count = q_count;
      TestPiece piece(options, &rng);
      const std::vector<uint16_t> q(size_t{q_count} * 16, Bf16FromFloat(-1));
      piece.piece().q = {q.data(), q_count, 16};
      for (uint32_t j = 0; j < 5; ++j) piece.StoreRow(j, std::vector<float>(16, INFINITY));
      if (selected) piece.SetSelection({-1, 2, 3}, 3, q_count);
      ForEachTarget([&] {
        AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
        EXPECT_TRUE(std::isnan(piece.l(0)));
        EXPECT_TRUE(std::isnan(piece.o(0, 0)));
        EXPECT_TRUE(std::isfinite(piece.m(0)));
      });
    }
  }
}

// exp's bound, seen through the kernel: keys (0, 0) and (-1, 0) and the query (1, 0) give weights 1
// and p = exp(-scale), and o_0 l = -p after two more roundings of 2^-24 each. The matrix targets
// lose terms and products below 2^-126 (precision.h).
TEST(AttendPartials, ExpErrsByTheStatedBound) {
  WorkerPool pool(1);
  std::mt19937 rng(10);
  PieceOptions options;
  options.shape = {2, 2, 0, RowDtype::kBf16, 1.0f};
  options.q_count = 1;
  options.row_count = 2;
  TestPiece piece(options, &rng);
  piece.StoreRow(0, {0, 0});
  piece.StoreRow(1, {-1, 0});
  const uint16_t q[2] = {Bf16FromFloat(1), Bf16FromFloat(0)};
  piece.piece().q.data = q;
  ForEachTarget([&] {
    const bool is_matrix = KernelTarget().starts_with("AMX") || KernelTarget() == "AVX512_BF16";
    const double lost = is_matrix ? 0x1p-124 : 0;
    double worst = 0;
    for (int step = 1; step < 20000; ++step) {
      AttentionShape shape = options.shape;
      shape.softmax_scale = 86.99f * static_cast<float>(step) / 20000;
      AttendPartials(shape, {&piece.piece(), 1}, pool);
      const double p = -static_cast<double>(piece.o(0, 0)) * piece.l(0);
      const double want = std::exp(-static_cast<double>(shape.softmax_scale));
      worst = std::max(worst, (std::fabs(p - want) - lost) / want);
    }
    EXPECT_LE(worst, std::exp2(-22.6) + 2 * 0x1p-24);
    RecordProperty("worst_error_in_2^-24", std::to_string(worst * 0x1p24));
  });
}

TEST(KernelTarget, CanBeForcedAndListed) {
  const std::vector<std::string_view> targets = KernelTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(KernelTarget(), targets.front());
  for (const std::string_view target : targets) {
    ASSERT_TRUE(ForceKernelTarget(target).ok());
    EXPECT_EQ(KernelTarget(), target);
    EXPECT_EQ(KernelTargets(), targets);
  }
  EXPECT_EQ(ForceKernelTarget("PDP11").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(ForceKernelTarget("").ok());
  EXPECT_EQ(KernelTarget(), targets.front());
}

}  // namespace
}  // namespace ckv
