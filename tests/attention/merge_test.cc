// Goal: a merged result does not depend on how the rows were split, and an empty part is the
// identity bit for bit, whatever its o holds.
// Method: random partitions of random rows, each part attended by the kernel, merged and compared
// with the f64 reference over all rows; and the known wrong ways to merge, which must fail by about
// as much as they are known to.

#include "attention/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/mla_partial.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

using test::PieceOptions;
using test::TestPiece;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A partial of some rows that owns its memory.
struct Part {
  Part(uint32_t rows, uint32_t d_v, PartialDtype dtype_in)
      : o(size_t{rows} * d_v * (dtype_in == PartialDtype::kF32 ? 4 : 2)),
        m(rows),
        l(rows),
        dtype(dtype_in) {}
  PartialView view() { return {o.data(), m.data(), l.data(), dtype}; }
  float value(size_t i) const {
    if (dtype == PartialDtype::kF32) return reinterpret_cast<const float*>(o.data())[i];
    return FloatFromBf16(reinterpret_cast<const uint16_t*>(o.data())[i]);
  }
  void set(size_t i, float x) {
    if (dtype == PartialDtype::kF32)
      reinterpret_cast<float*>(o.data())[i] = x;
    else
      reinterpret_cast<uint16_t*>(o.data())[i] = Bf16FromFloat(x);
  }
  std::vector<std::byte> o;
  std::vector<float> m, l;
  PartialDtype dtype;
};

Part Merged(const std::vector<Part>& parts, uint32_t rows, uint32_t d_v, PartialDtype dtype) {
  std::vector<ConstPartialView> views;
  for (const Part& part : parts) {
    views.emplace_back(part.o.data(), part.m.data(), part.l.data(), part.dtype);
  }
  Part out(rows, d_v, dtype);
  std::fill(out.o.begin(), out.o.end(), std::byte{0xff});
  MergePartials(views, rows, d_v, out.view());
  return out;
}

// Splits the piece's rows over part_count index lists and attends each.
std::vector<Part> AttendSplit(TestPiece& piece, uint32_t part_count, PartialDtype dtype,
                              WorkerPool& pool, std::mt19937* rng) {
  std::vector<std::vector<int32_t>> lists(part_count);
  for (uint32_t j = 0; j < piece.piece().rows.count; ++j) {
    lists[(*rng)() % part_count].push_back(static_cast<int32_t>(j));
  }
  std::vector<Part> parts;
  for (std::vector<int32_t>& list : lists) {
    parts.emplace_back(piece.piece().q.count, piece.shape().d_v, dtype);
    list.reserve(1);
    AttentionPiece one = piece.piece();
    one.selection = {list.data(), static_cast<uint32_t>(list.size()), one.q.count};
    one.out = parts.back().view();
    AttendPartials(piece.shape(), {&one, 1}, pool);
  }
  return parts;
}

PieceOptions Options(std::mt19937* rng) {
  PieceOptions options;
  options.shape = {96, 77, 0, RowDtype::kBf16, 0.25f};
  options.q_count = 1 + (*rng)() % 20;
  options.row_count = 1 + (*rng)() % 150;
  return options;
}

TEST(MergePartials, AnyPartitionIsTheWhole) {
  WorkerPool pool(1);
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    TestPiece piece(Options(&rng), &rng);
    const uint32_t rows = piece.piece().q.count, d_v = piece.shape().d_v;
    const auto want = reference::Attend(piece.shape(), piece.piece());
    double o_max = 0;
    for (const auto& row : want) o_max = std::max(o_max, reference::AbsMax(row.o));
    const auto wire = rng() % 2 == 0 ? PartialDtype::kF32 : PartialDtype::kBf16;
    auto parts = AttendSplit(piece, 1 + rng() % 8, wire, pool, &rng);
    double part_max = o_max;
    for (const Part& part : parts) {
      for (size_t i = 0; i < size_t{rows} * d_v; ++i) {
        part_max = std::max(part_max, std::fabs(static_cast<double>(part.value(i))));
      }
    }
    // 5e-7 as for one instance, and once more for the weights and sums of the merge.
    double tolerance = 1e-6 * std::max(1.0, part_max);
    if (wire == PartialDtype::kBf16) tolerance += 0x1p-8 * part_max;
    const Part forward = Merged(parts, rows, d_v, PartialDtype::kF32);
    std::reverse(parts.begin(), parts.end());
    const Part backward = Merged(parts, rows, d_v, PartialDtype::kF32);
    for (uint32_t i = 0; i < rows; ++i) {
      EXPECT_NEAR(forward.m[i], want[i].m, 3e-6);
      EXPECT_NEAR(forward.l[i] / want[i].l, 1, 6e-6);
      EXPECT_EQ(forward.m[i], backward.m[i]);
      for (uint32_t d = 0; d < d_v; ++d) {
        const size_t at = size_t{i} * d_v + d;
        ASSERT_NEAR(forward.value(at), want[i].o[d], tolerance);
        ASSERT_NEAR(forward.value(at), backward.value(at), 5e-7 * std::max(1.0, part_max));
      }
    }
  }
}

// o full of NaN, marked empty in each of the known ways.
Part EmptyPart(uint32_t rows, uint32_t d_v, PartialDtype dtype, float m, float l) {
  Part part(rows, d_v, dtype);
  std::fill(part.o.begin(), part.o.end(), std::byte{0xff});
  std::fill(part.m.begin(), part.m.end(), m);
  std::fill(part.l.begin(), part.l.end(), l);
  return part;
}

TEST(MergePartials, EmptyPartIsTheIdentityBitForBit) {
  const uint32_t rows = 3, d_v = 37;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  const std::pair<float, float> marks[] = {{kEmptyM, 0.0f}, {kEmptyM, 5.0f}, {1.0f, 0.0f},
                                           {NAN, 2.0f},     {kInf, 2.0f},    {kInf, 0.0f}};
  for (const auto dtype : {PartialDtype::kF32, PartialDtype::kBf16}) {
    Part one(rows, d_v, dtype), two(rows, d_v, dtype);
    for (Part* part : {&one, &two}) {
      for (size_t i = 0; i < rows * d_v; ++i) part->set(i, normal(rng));
      part->set(4, -0.0f);
      for (uint32_t i = 0; i < rows; ++i) part->m[i] = normal(rng), part->l[i] = 1.5f;
    }
    const Part pair = Merged({one, two}, rows, d_v, dtype);
    for (const auto& [m, l] : marks) {
      SCOPED_TRACE(testing::Message() << "m " << m << " l " << l);
      for (const auto empty_dtype : {PartialDtype::kF32, PartialDtype::kBf16}) {
        const Part empty = EmptyPart(rows, d_v, empty_dtype, m, l);
        for (const auto& parts : {std::vector<Part>{one, empty}, {empty, one}, {one}}) {
          const Part alone = Merged(parts, rows, d_v, dtype);
          EXPECT_EQ(alone.o, one.o);
          EXPECT_EQ(alone.m, one.m);
          EXPECT_EQ(alone.l, one.l);
        }
        const Part with = Merged({empty, one, empty, two, empty}, rows, d_v, dtype);
        EXPECT_EQ(with.o, pair.o);
        EXPECT_EQ(with.m, pair.m);
        EXPECT_EQ(with.l, pair.l);
        const Part nothing = Merged({empty, empty}, rows, d_v, dtype);
        for (size_t i = 0; i < rows * d_v; ++i) ASSERT_EQ(nothing.value(i), 0);
        EXPECT_EQ(nothing.m[0], kEmptyM);
        EXPECT_EQ(nothing.l[0], 0);
      }
    }
  }
  const Part none = Merged({}, rows, d_v, PartialDtype::kF32);
  EXPECT_EQ(none.l[2], 0);
  EXPECT_EQ(none.value(0), 0);
}

TEST(MergePartials, OnePartChangesOnlyItsDtype) {
  Part one(1, 20, PartialDtype::kF32);
  for (size_t i = 0; i < 20; ++i) one.set(i, 1.0f + 0.001f * static_cast<float>(i));
  one.m[0] = 2, one.l[0] = 3;
  const Part narrow = Merged({one}, 1, 20, PartialDtype::kBf16);
  const Part wide = Merged({narrow}, 1, 20, PartialDtype::kF32);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(narrow.value(i), FloatFromBf16(Bf16FromFloat(one.value(i))));
    EXPECT_EQ(wide.value(i), narrow.value(i));
  }
}

// Weights that underflow are not multiplied, and far maxima do not overflow.
TEST(MergePartials, FarApartMaxima) {
  Part near(1, 8, PartialDtype::kF32), far(1, 8, PartialDtype::kF32);
  for (size_t i = 0; i < 8; ++i) near.set(i, 2.0f), far.set(i, NAN);
  near.m[0] = 1e4f, near.l[0] = 1;
  far.m[0] = -1e4f, far.l[0] = 1;
  const Part merged = Merged({far, near}, 1, 8, PartialDtype::kF32);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(merged.value(i), 2.0f);
  EXPECT_EQ(merged.m[0], 1e4f);
  EXPECT_EQ(merged.l[0], 1.0f);
}

// Three holders' partials with `damage` done to them before the merge: relative L2 error of o.
double ErrorOf(const std::function<void(std::vector<Part>*, uint32_t d_v)>& damage) {
  WorkerPool pool(1);
  std::mt19937 rng(9);
  PieceOptions options;
  options.q_count = 16;
  options.row_count = 300;
  options.q_sigma = 0.5f;
  TestPiece piece(options, &rng);
  auto parts = AttendSplit(piece, 3, PartialDtype::kF32, pool, &rng);
  const Part right = Merged(parts, 16, 512, PartialDtype::kF32);
  damage(&parts, 512);
  const Part wrong = Merged(parts, 16, 512, PartialDtype::kF32);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < 16 * 512; ++i) {
    difference += std::pow(static_cast<double>(wrong.value(i)) - right.value(i), 2);
    norm += std::pow(right.value(i), 2);
  }
  return std::sqrt(difference / norm);
}

// What each mistake cost where it was first measured, on other rows: here it must cost the same
// within a factor of two, so that a merge which makes it cannot pass any tolerance.
void ExpectAbout(double error, double measured) {
  EXPECT_GT(error, measured / 2);
  EXPECT_LT(error, measured * 2);
}

TEST(MergePartials, CatchesWrongMergeFormulas) {
  const double unnormalised = ErrorOf([](std::vector<Part>* parts, uint32_t d_v) {
    for (Part& part : *parts) {
      for (size_t i = 0; i < part.m.size() * d_v; ++i) part.set(i, part.value(i) * part.l[i / d_v]);
    }
  });
  ExpectAbout(unnormalised, 7.3);
  const double l_dropped = ErrorOf([](std::vector<Part>* parts, uint32_t) {
    for (Part& part : *parts) std::fill(part.l.begin(), part.l.end(), 1.0f);
  });
  ExpectAbout(l_dropped, 0.33);
  const double counted_twice =
      ErrorOf([](std::vector<Part>* parts, uint32_t) { parts->push_back(parts->front()); });
  ExpectAbout(counted_twice, 0.26);
  const double m_in_bf16 = ErrorOf([](std::vector<Part>* parts, uint32_t) {
    for (Part& part : *parts) {
      for (float& m : part.m) m = FloatFromBf16(Bf16FromFloat(m));
    }
  });
  ExpectAbout(m_in_bf16, 6e-3);
  const double base_two = ErrorOf([](std::vector<Part>* parts, uint32_t) {
    for (Part& part : *parts) {
      for (size_t i = 0; i < part.m.size(); ++i) {
        // lse = m + ln l, sent in base 2 and read as natural.
        part.m[i] = (part.m[i] + std::log(part.l[i])) / std::log(2.0f);
        part.l[i] = 1;
      }
    }
  });
  ExpectAbout(base_two, 0.12);
}

}  // namespace
}  // namespace ckv
