// Goal: each precision has an error within precision.h's bounds; the tile unit, its model and the
// model in plain C++ give equal bits; and neither a neighbour's NaN nor its odd scale changes a bit
// of a row. Method: random, peaked, cancelling and single rows against the f64 reference; kernels
// compared bit for bit.

#include "attention/matrix/matrix_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "tests/attention/each_target.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"
#include "tests/support/sanitized.h"

namespace ckv {
namespace {

using test::ForEachTarget;
using test::PieceOptions;
using test::RandomIndices;
using test::TestPiece;

constexpr Precision kPrecisions[] = {Precision::kExact, Precision::kWire, Precision::kFast};

// The kernels of this machine that give the tile unit's bits; the model in plain C++ is first.
std::vector<const BlockKernel*> TileKernels() {
  std::vector<const BlockKernel*> kernels = {&matrix::PortableModelBlockKernel()};
#if defined(__x86_64__)
  if (matrix::VectorRate(1) > 0) kernels.push_back(&matrix::ModelBlockKernel());
  if (matrix::AmxUnit().usable) kernels.push_back(&matrix::AmxBlockKernel());
#endif
  return kernels;
}

// In addition the other matrix kernels, which have their own bits.
std::vector<const BlockKernel*> MatrixKernels() {
  std::vector<const BlockKernel*> kernels = TileKernels();
#if defined(__x86_64__)
  if (matrix::DotUnit().usable) kernels.push_back(&matrix::DotBlockKernel());
#endif
  return kernels;
}

std::vector<float> OutputOf(const TestPiece& piece) {
  std::vector<float> all;
  for (uint32_t i = 0; i < piece.piece().q.count; ++i) {
    for (uint32_t d = 0; d < piece.shape().d_v; ++d) all.push_back(piece.o(i, d));
    all.push_back(piece.m(i));
    all.push_back(piece.l(i));
  }
  return all;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

TEST(MatrixKernel, TheModelsAndTheUnitHaveEqualBits) {
  const std::vector<const BlockKernel*> kernels = TileKernels();
  WorkerPool pool(1), pool3(3);
  for (uint32_t seed = 0; seed < 24; seed += kSanitized ? 7 : 1) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    PieceOptions options;
    const bool fp8 = seed % 4 == 3;
    options.shape = {64 + 32 * (seed % 3), 48 + 16 * (seed % 2), 0, RowDtype::kBf16, 0.3f};
    if (fp8) options.shape = {128 + 64, 128, 64, RowDtype::kFp8DsMla, 0.2f};
    if (seed == 0) options.shape = {576, 512, 64, RowDtype::kBf16, 0.07f};
    // One row takes no tiles for its values (few_rows.inl.h), but in the portable model.
    options.q_count = seed % 8 < 3 ? 1 : 1 + rng() % 40;
    options.row_count = 1 + rng() % 600;
    options.q_sigma = seed % 5 == 4 ? 30.0f : 1.0f;  // peaked, with weights near the smallest
    TestPiece piece(options, &rng);
    if (fp8) piece.StoreScale(0, 0, 0.0071f);
    if (seed % 2 == 0) {
      std::vector<uint32_t> limits(options.q_count);
      for (uint32_t& limit : limits) limit = rng() % (options.row_count + 10);
      piece.SetLimits(limits);
      if (seed % 4 == 2) piece.FillRowWithNan(options.row_count / 2);
    } else if (seed % 3 == 1) {
      piece.SetSelection(RandomIndices(300, options.row_count, &rng), 300, options.q_count);
    }
    piece.piece().precision = kPrecisions[seed % 3];
    std::vector<float> want;
    for (const BlockKernel* kernel : kernels) {
      piece.ResetOutput();
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, rng() % 2 == 0 ? pool : pool3);
      if (want.empty()) want = OutputOf(piece);
      EXPECT_TRUE(SameBits(OutputOf(piece), want));
    }
  }
}

// Denormal queries, rows and products vanish alike.
TEST(MatrixKernel, DenormalsAreZeroInTheUnitAndItsModels) {
  WorkerPool pool(1);
  for (const uint32_t q_count : {1u, 3u}) {
    std::mt19937 rng(3);
    PieceOptions options;
    options.shape = {64, 32, 0, RowDtype::kBf16, 1.0f};
    options.q_count = q_count;
    options.row_count = 40;
    options.q_sigma = 1e-19f;
    TestPiece piece(options, &rng);
    for (uint32_t j = 0; j < 40; ++j) {
      std::vector<float> row(64);
      for (float& x : row)
        x = std::ldexp(static_cast<float>(rng() % 1000) - 500, -140 + static_cast<int>(rng() % 90));
      row[7] = std::ldexp(1.0f, -130);  // a column of denormals, whose sum would be none
      piece.StoreRow(j, row);
    }
    std::vector<float> want;
    for (const BlockKernel* kernel : TileKernels()) {
      piece.ResetOutput();
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, pool);
      if (want.empty()) want = OutputOf(piece);
      EXPECT_TRUE(SameBits(OutputOf(piece), want)) << q_count << " query rows";
    }
  }
}

// How far a precision's terms may move |o|, over the tolerance of the exact precision; P is max
// |v|.
double TermsTolerance(Precision precision, double value_max) {
  if (precision == Precision::kWire) return 0x1p-17 * value_max;
  if (precision == Precision::kFast) return 0x1p-8 * value_max;
  return 0;
}

struct Data {
  std::string name;
  uint32_t rows;
  float q_sigma;
  float row_mean;
};

// Returns the largest error, over max(1, P), of the target in use at a precision.
double WorstError(const Data& data, Precision precision, WorkerPool& pool) {
  std::mt19937 rng(17);
  PieceOptions options;
  options.shape = {576, 512, 64, RowDtype::kBf16, 0.0417f};
  options.q_count = 18;
  options.row_count = data.rows;
  options.q_sigma = data.q_sigma;
  options.row_mean = data.row_mean;
  TestPiece piece(options, &rng);
  if (data.name == "cancelling") {  // pairs of equal logits and opposite values
    for (uint32_t j = 0; j + 1 < data.rows; j += 2) {
      std::vector<float> row(576);
      for (float& x : row) x = std::normal_distribution<float>()(rng);
      std::fill(row.begin() + 512, row.end(), 0.0f);
      for (uint32_t sign = 0; sign < 2; ++sign) {
        piece.StoreRow(j + sign, row);
        for (float& x : row) x = -x;
      }
    }
  }
  piece.piece().precision = precision;
  AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
  const std::vector<reference::Partial> want = reference::Attend(piece.shape(), piece.piece());
  double worst = 0, o_max = 0;
  for (const auto& row : want) o_max = std::max(o_max, reference::AbsMax(row.o));
  for (uint32_t i = 0; i < want.size(); ++i) {
    const double excess = std::max(0.0, want[i].logit_abs_max - 4);
    const double exact = (5e-7 + 2 * 0x1p-22 * excess) * std::max(1.0, o_max);
    const double bound = exact + TermsTolerance(precision, want[i].value_abs_max);
    for (uint32_t d = 0; d < 512; ++d) {
      const double error = std::fabs(double{piece.o(i, d)} - want[i].o[d]);
      EXPECT_LE(error, bound) << data.name << ", " << PrecisionName(precision) << ", row " << i;
      worst = std::max(worst, error / std::max(1.0, want[i].value_abs_max));
      if (error > bound) return worst;
    }
  }
  return worst;
}

TEST(Precisions, ErrWithinTheirBounds) {
  const Data kinds[] = {{"random", 400, 1, 0},
                        {"peaked", 400, 12, 0},
                        {"one visible row", 1, 1, 0},
                        {"same sign", 400, 0.3f, 1},
                        {"same sign in one span", 128, 0.3f, 1},
                        {"cancelling", 400, 1, 0}};
  WorkerPool pool(1);
  for (size_t kind = 0; kind < std::size(kinds); kind += kSanitized ? 2 : 1) {
    const Data& data = kinds[kind];
    ForEachTarget([&] {
      double worst[3];
      for (int g = 0; g < 3; ++g) worst[g] = WorstError(data, kPrecisions[g], pool);
      const bool is_tiles = KernelTarget().starts_with("AMX");
      if ((!is_tiles && KernelTarget() != "AVX512_BF16") || data.rows == 1) {
        EXPECT_EQ(worst[0], worst[2]);
        return;
      }
      // Fewer terms compute less, and so err more: a precision that has no effect would pass the
      // bounds. In peaked data the logits' error is larger than that of two terms.
      if (!is_tiles) {
        EXPECT_EQ(worst[0], worst[1]);
      } else if (data.name != "peaked") {
        EXPECT_LT(worst[0], worst[1]);
      }
      EXPECT_LT(4 * worst[1], worst[2]);
    });
  }
}

TEST(Precisions, TheDefaultIsThePartialsOwn) {
  EXPECT_EQ(PrecisionOf(Precision::kDefault, PartialDtype::kF32), Precision::kExact);
  EXPECT_EQ(PrecisionOf(Precision::kDefault, PartialDtype::kBf16), Precision::kWire);
  EXPECT_EQ(PrecisionOf(Precision::kFast, PartialDtype::kF32), Precision::kFast);
}

// Two requests of different precisions over the same rows, in one call: each gets its own bits.
TEST(Precisions, KeepsThePrecisionOfEachPieceOfACall) {
  WorkerPool pool(1);
  PieceOptions options;
  options.q_count = 16;
  options.row_count = 300;
  std::mt19937 rng(5);
  TestPiece piece(options, &rng);
  ForEachTarget([&] {
    std::vector<std::vector<float>> alone, together;
    for (const Precision precision : kPrecisions) {
      piece.piece().precision = precision;
      AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
      alone.push_back(OutputOf(piece));
    }
    std::vector<AttentionPiece> pieces(3, piece.piece());
    std::vector<std::vector<float>> o(3, std::vector<float>(16 * 512)), m(3), l(3);
    for (int g = 0; g < 3; ++g) {
      m[g].resize(16);
      l[g].resize(16);
      pieces[g].precision = kPrecisions[g];
      pieces[g].out = {o[g].data(), m[g].data(), l[g].data(), PartialDtype::kF32};
    }
    AttendPartials(piece.shape(), pieces, pool);
    for (int g = 0; g < 3; ++g) {
      for (uint32_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(SameBits(std::span(o[g]).subspan(i * 512, 512),
                             std::span(alone[g]).subspan(i * 514, 512)));
      }
    }
  });
}

// A query row has the bits that it has alone, even if later rows of its span hold a NaN or an fp8
// scale that is no power of two, and its neighbours see them.
TEST(MatrixKernel, RowsThatOnlyNeighboursSeeMoveNoBit) {
  WorkerPool pool(1);
  for (const bool fp8 : {false, true}) {
    PieceOptions options;
    options.shape = {128 + 64, 128, 64, fp8 ? RowDtype::kFp8DsMla : RowDtype::kBf16, 0.2f};
    options.q_count = 20;
    options.row_count = 200;
    std::mt19937 rng(23);
    TestPiece piece(options, &rng);
    std::vector<uint32_t> limits;
    for (uint32_t i = 0; i < 20; ++i) limits.push_back(60 + 7 * i);
    piece.SetLimits(limits);
    std::vector<std::vector<float>> before;
    ForEachTarget([&] {
      AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
      before.push_back(OutputOf(piece));
    });
    if (fp8) piece.StoreScale(150, 0, 0.0071f);
    piece.FillRowWithNan(170);
    size_t target = 0;
    ForEachTarget([&] {
      piece.ResetOutput();
      AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
      const std::vector<float> after = OutputOf(piece);
      for (uint32_t i = 0; i < 20; ++i) {
        const bool sees = limits[i] > (fp8 ? 150u : 170u);
        EXPECT_NE(SameBits(std::span(before[target]).subspan(i * 130, 130),
                           std::span(after).subspan(i * 130, 130)),
                  sees)
            << "query row " << i;
      }
      ++target;
    });
  }
}

// A span whose logits are all -inf has no part in the answer, although its values are infinite:
// neither if its own thread folds it into the previous result, nor if another thread does.
TEST(MatrixKernel, ASpanWithoutWeightsIsLeftOutOnAnyThread) {
  WorkerPool one(1), three(3);
  for (const uint32_t span : {0u, 1u, 2u}) {
    PieceOptions options;
    options.shape = {64, 64, 0, RowDtype::kBf16, 0.2f};
    options.q_count = 3;
    options.row_count = 3 * 256;
    std::mt19937 rng(29);
    TestPiece piece(options, &rng);
    for (uint32_t i = 0; i < 3; ++i)
      const_cast<uint16_t*>(piece.piece().q.data)[i * piece.piece().q.stride] = 0x3f80;
    std::vector<float> row(64, 0.5f);
    row[0] = -std::numeric_limits<float>::infinity();
    for (uint32_t j = span * 256; j < (span + 1) * 256; ++j) piece.StoreRow(j, row);
    for (const BlockKernel* kernel : MatrixKernels()) {
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, one);
      const std::vector<float> in_place = OutputOf(piece);
      piece.ResetOutput();
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, three);
      EXPECT_TRUE(SameBits(OutputOf(piece), in_place)) << "span " << span;
      for (const float x : in_place) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// A product below 2^-149 is -0, and a later key of weight 0 must not make it +0.
TEST(MatrixKernel, KeysOfNeighboursMoveNoSignOfAZero) {
  WorkerPool pool(1);
  PieceOptions options;
  options.shape = {64, 32, 0, RowDtype::kBf16, 1.0f};
  options.q_count = 2;
  options.row_count = 32;
  std::mt19937 rng(1);
  TestPiece piece(options, &rng);
  for (uint32_t j = 0; j < 32; ++j) {
    std::vector<float> row(64, 0.0f);
    row[63] = j == 15 ? -80.0f : 0.0f;  // the logit
    row[3] = j == 15 ? -0x1p-40f : j == 16 ? 1.0f : 0.0f;
    piece.StoreRow(j, row);
  }
  for (uint32_t i = 0; i < 2; ++i)
    const_cast<uint16_t*>(piece.piece().q.data)[i * piece.piece().q.stride + 63] = 0x3f80;
  for (const BlockKernel* kernel : MatrixKernels()) {
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      piece.piece().precision = precision;
      piece.SetLimits({16, 16});
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, pool);
      const float alone = piece.o(0, 3);
      piece.SetLimits({16, 32});
      piece.ResetOutput();
      AttendPartialsOn(*kernel, piece.shape(), {&piece.piece(), 1}, pool);
      EXPECT_EQ(std::signbit(piece.o(0, 3)), std::signbit(alone));
    }
  }
}

TEST(MatrixUnits, ListsUnitsOrTheReasonForNone) {
  for (const matrix::UnitState& unit : {matrix::AmxUnit(), matrix::DotUnit()}) {
    EXPECT_EQ(unit.usable, unit.why_not.empty());
  }
  EXPECT_EQ(matrix::AmxUnit().usable, matrix::AmxRate(1) > 0);
  EXPECT_EQ(matrix::DotUnit().usable, matrix::DotRate(1) > 0);
}

}  // namespace
}  // namespace ckv
