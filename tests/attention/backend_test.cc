// Goal: an operation of a backend computes the same as the functions in the headers of attention/,
// wherever its views are, whatever is put on the stream after it, and however late it is done.
// Method: random calls, each view in a kind of memory that the backend reaches, against those
// functions bit for bit and against f64. backend_cases.h has the backends.

#include "attention/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "attention/worker_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/backend_cases.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"

namespace ckv::test {
namespace {

using testing::HasSubstr;

std::span<const std::byte> BytesOf(const auto& values) { return std::as_bytes(std::span(values)); }

// A TestPiece's values in memory that the backend reaches.
struct PlacedPiece {
  Placed q, rows, o, m, l;
  AttentionPiece piece;
};

class BackendAttend : public BackendTest {
 protected:
  TestPiece RandomPiece() {
    PieceOptions options;
    const bool fp8 = rng_() % 3 == 0;
    if (fp8) options.shape.row_dtype = RowDtype::kFp8DsMla;
    if (!fp8 && rng_() % 2 == 0) options.shape = {96, 64, 32, RowDtype::kBf16, 0.25f};
    options.q_count = 1 + rng_() % 40;
    options.row_count = rng_() % 300;
    options.q_padding = rng_() % 2 * 8;
    options.row_padding_bytes = rng_() % 2 * 13;
    options.row_offset_bytes = rng_() % 2;
    options.dtype = rng_() % 2 == 0 ? PartialDtype::kF32 : PartialDtype::kBf16;
    return TestPiece(options, &rng_);
  }
  // Selections and limits for some of them.
  void Restrict(TestPiece& piece) {
    const uint32_t rows = piece.piece().rows.count, q_count = piece.piece().q.count;
    if (rng_() % 3 == 0) {
      const uint32_t k = rng_() % 80, group_rows = 1 + rng_() % q_count;
      const uint32_t groups = (q_count + group_rows - 1) / group_rows;
      piece.SetSelection(RandomIndices(groups * k, rows, &rng_), k, group_rows);
    }
    if (rng_() % 3 == 0) {
      std::vector<uint32_t> limits(q_count);
      for (uint32_t& limit : limits) limit = rng_() % (rows + 2);
      piece.SetLimits(limits);
    }
  }

  PlacedPiece PlaceIt(const TestPiece& from) {
    const AttentionPiece& piece = from.piece();
    const AttentionShape& shape = from.shape();
    const MemoryKind q_kind = Pick(reach_.queries), out_kind = Pick(reach_.partials);
    const uint32_t count = piece.q.count;
    const auto at = [&](MemoryKind kind, const void* bytes, size_t size) {
      return Placed(under_.get(), kind, {static_cast<const std::byte*>(bytes), size});
    };
    const size_t row_bytes =
        piece.rows.count == 0
            ? 0
            : size_t{piece.rows.count - 1} * piece.rows.stride_bytes + RowBytesOf(shape);
    PlacedPiece placed = {
        .q = at(q_kind, piece.q.data, (size_t{count - 1} * piece.q.stride + shape.d_qk) * 2),
        .rows = at(Pick(reach_.rows), piece.rows.data, row_bytes),
        .o = at(out_kind, piece.out.o, size_t{count} * shape.d_v * ValueBytes(piece.out.dtype)),
        .m = at(out_kind, piece.out.m, 4 * size_t{count}),
        .l = at(out_kind, piece.out.l, 4 * size_t{count}),
        .piece = piece};
    AttentionPiece& to = placed.piece;
    to.q = {placed.q.data<uint16_t>(), count, piece.q.stride, q_kind};
    to.rows = {placed.rows.data(), piece.rows.count, piece.rows.stride_bytes, placed.rows.kind()};
    to.out = {placed.o.data(), placed.m.data<float>(), placed.l.data<float>(), piece.out.dtype,
              out_kind};
    return placed;
  }

  static std::vector<int32_t> IndicesOf(const AttentionPiece& piece) {
    const Selection& selection = piece.selection;
    if (!selection.present()) return {};
    const uint32_t groups = (piece.q.count + selection.group_rows - 1) / selection.group_rows;
    std::vector<int32_t> indices(selection.indices,
                                 selection.indices + size_t{groups} * selection.k);
    indices.reserve(1);  // never null
    return indices;
  }

  // Copies the results back to the piece that they were made from.
  static void TakeBack(const PlacedPiece& placed, TestPiece& piece) {
    piece.ResetOutput();
    const PartialView& out = piece.piece().out;
    std::memcpy(out.o, placed.o.Read().data(), placed.o.size());
    std::memcpy(out.m, placed.m.Read().data(), placed.m.size());
    std::memcpy(out.l, placed.l.Read().data(), placed.l.size());
  }

  // Compares copied results with the function's, and with f64.
  void Expect(TestPiece& piece) {
    const uint32_t count = piece.piece().q.count, d_v = piece.shape().d_v;
    const auto want = reference::Attend(piece.shape(), piece.piece());
    for (uint32_t i = 0; i < count; ++i) {
      const double o_max = std::max(1.0, reference::AbsMax(want[i].o));
      // As in mla_partial_test.cc, for logits of some 4 and more.
      double tolerance = (5e-7 + 0x1p-21 * want[i].logit_abs_max) * o_max;
      if (piece.piece().out.dtype == PartialDtype::kBf16) tolerance += 0x1p-8 * o_max;
      for (uint32_t d = 0; d < d_v; ++d)
        ASSERT_NEAR(piece.o(i, d), want[i].o[d], tolerance) << "row " << i << " column " << d;
      const double logit_error = 0x1p-19 * std::max(1.0, want[i].logit_size);
      if (want[i].l == 0) {
        ASSERT_EQ(piece.m(i), kEmptyM);
        ASSERT_EQ(piece.l(i), 0);
        continue;
      }
      ASSERT_NEAR(piece.m(i), want[i].m, logit_error) << "row " << i;
      ASSERT_NEAR(piece.l(i) / want[i].l, 1, 2 * logit_error + 1e-6) << "row " << i;
    }
    if (!under_->has_cpu_bits()) return;
    std::vector<std::vector<std::byte>> bits;
    for (uint32_t i = 0; i < count; ++i) bits.push_back(piece.RowBits(i));
    piece.ResetOutput();
    WorkerPool pool(1);
    AttendPartials(piece.shape(), {&piece.piece(), 1}, pool);
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(piece.RowBits(i), bits[i]) << "row " << i;
  }
};

// Selections and limits are freed before the work is done.
TEST_P(BackendAttend, MatchesTheFunctionForAnyPlacementOfViews) {
  for (int call = 0; call < 40; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    TestPiece piece = RandomPiece();
    Restrict(piece);
    const PlacedPiece placed = PlaceIt(piece);
    {
      AttentionPiece given = placed.piece;
      std::vector<int32_t> indices = IndicesOf(given);
      std::vector<uint32_t> limits;
      if (given.selection.present()) given.selection.indices = indices.data();
      if (given.row_limits != nullptr) {
        limits.assign(given.row_limits, given.row_limits + given.q.count);
        given.row_limits = limits.data();
      }
      ASSERT_TRUE(backend_.AttendPartials(piece.shape(), {&given, 1}, *stream_).ok());
      std::fill(indices.begin(), indices.end(), -1);
      std::fill(limits.begin(), limits.end(), 0);
    }
    ASSERT_TRUE(stream_->Wait().ok());
    TakeBack(placed, piece);
    Expect(piece);
    if (HasFatalFailure()) return;
  }
}

// A result depends neither on what else is in the call, nor on threads, nor on kinds of memory.
TEST_P(BackendAttend, BitsDependOnTheValuesAlone) {
  PieceOptions options;
  options.row_count = 500;
  std::vector<std::unique_ptr<TestPiece>> pieces;
  for (uint32_t q_count : {16u, 1u, 40u, 128u}) {
    options.q_count = q_count;
    pieces.push_back(std::make_unique<TestPiece>(options, &rng_));
  }
  std::vector<std::vector<std::byte>> alone;
  for (const auto& piece : pieces) {
    const PlacedPiece placed = PlaceIt(*piece);
    ASSERT_TRUE(backend_.AttendPartials(options.shape, {&placed.piece, 1}, *stream_).ok());
    ASSERT_TRUE(stream_->Wait().ok());
    alone.push_back(placed.o.Read());
  }
  const auto two_threads = NewStream(2);
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<PlacedPiece> placed;
    std::vector<AttentionPiece> call;
    for (const auto& piece : pieces) {
      placed.push_back(PlaceIt(*piece));
      call.push_back(placed.back().piece);
    }
    ASSERT_TRUE(backend_.AttendPartials(options.shape, call, *two_threads).ok());
    ASSERT_TRUE(two_threads->Wait().ok());
    for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(placed[i].o.Read(), alone[i]);
  }
}

// Partials of kRows query rows, some of them empty.
constexpr uint32_t kRows = 5, kValues = 72;

struct HostPartial {
  PartialDtype dtype;
  std::vector<std::byte> o;
  std::vector<float> m = std::vector<float>(kRows, kEmptyM), l = std::vector<float>(kRows);

  explicit HostPartial(PartialDtype dtype_in)
      : dtype(dtype_in), o(size_t{kRows} * kValues * ValueBytes(dtype_in)) {}
  PartialView view() { return {o.data(), m.data(), l.data(), dtype}; }
  double value(uint32_t row, uint32_t d) const {
    const size_t at = size_t{row} * kValues + d;
    if (dtype == PartialDtype::kBf16) return reference::ReadBf16(o.data() + 2 * at);
    float value;
    std::memcpy(&value, o.data() + 4 * at, sizeof(value));
    return double{value};
  }
  reference::Partial Row(uint32_t row) const {
    reference::Partial partial;
    partial.m = m[row];
    partial.l = l[row];
    for (uint32_t d = 0; d < kValues; ++d) partial.o.push_back(value(row, d));
    return partial;
  }
};

struct PlacedPartial {
  Placed o, m, l;
  PartialView view;
};

class BackendMerge : public BackendTest {
 protected:
  HostPartial Random() {
    HostPartial partial(rng_() % 3 == 0 ? PartialDtype::kBf16 : PartialDtype::kF32);
    std::uniform_real_distribution<float> values(-2, 2);
    for (uint32_t row = 0; row < kRows; ++row) {
      const bool empty = rng_() % 4 == 0;
      for (uint32_t d = 0; d < kValues; ++d) {
        const float value = empty ? std::numeric_limits<float>::quiet_NaN() : values(rng_);
        const size_t at = size_t{row} * kValues + d;
        const uint16_t bits = Bf16FromFloat(value);
        if (partial.dtype == PartialDtype::kF32) {
          std::memcpy(partial.o.data() + 4 * at, &value, sizeof(value));
        } else {
          std::memcpy(partial.o.data() + 2 * at, &bits, sizeof(bits));
        }
      }
      if (empty) continue;
      partial.m[row] = 3 * values(rng_);
      partial.l[row] = 1 + float(rng_() % 100);
    }
    return partial;
  }
  PlacedPartial PlaceIt(HostPartial& from, MemoryKinds reached) {
    const MemoryKind kind = Pick(reached);
    PlacedPartial placed = {.o = Placed(under_.get(), kind, from.o),
                            .m = Placed(under_.get(), kind, BytesOf(from.m)),
                            .l = Placed(under_.get(), kind, BytesOf(from.l)),
                            .view = {}};
    placed.view = {placed.o.data(), placed.m.data<float>(), placed.l.data<float>(), from.dtype,
                   kind};
    return placed;
  }

  // One job of the call: its parts, and the place of its sum.
  struct Case {
    MergeOrder order;
    std::vector<HostPartial> parts;
    std::vector<uint8_t> levels;
    std::vector<PlacedPartial> placed;
    std::vector<ConstPartialView> views;
    HostPartial sum{PartialDtype::kF32};
    std::optional<PlacedPartial> to;

    MergeJob Job() const {
      return {.order = order,
              .parts = views,
              .levels = levels,
              .row_count = kRows,
              .d_v = kValues,
              .out = to->view};
    }
  };
  Case RandomCase() {
    Case made;
    made.order = rng_() % 2 == 0 ? MergeOrder::kTree : MergeOrder::kInTurn;
    for (uint32_t i = rng_() % 9; i > 0; --i) {
      made.parts.push_back(Random());
      made.levels.push_back(rng_() % (kTreeLevelMax + 1));
    }
    for (HostPartial& part : made.parts) {
      made.placed.push_back(PlaceIt(part, reach_.parts));
      made.views.emplace_back(made.placed.back().view);
    }
    made.sum = HostPartial(rng_() % 3 == 0 ? PartialDtype::kBf16 : PartialDtype::kF32);
    made.to = PlaceIt(made.sum, reach_.merged);
    return made;
  }

  void Expect(Case& made) {
    HostPartial got(made.sum.dtype);
    got.o = made.to->o.Read();
    std::memcpy(got.m.data(), made.to->m.Read().data(), 4 * kRows);
    std::memcpy(got.l.data(), made.to->l.Read().data(), 4 * kRows);
    for (uint32_t row = 0; row < kRows; ++row) {
      std::vector<reference::Partial> rows;
      for (const HostPartial& part : made.parts) rows.push_back(part.Row(row));
      const reference::Partial want = reference::Merge(rows, kValues);
      ASSERT_EQ(got.m[row], float(want.m)) << "row " << row;
      // At most 8 joins, each an exp, a few products and a sum within 2^-22.
      ASSERT_NEAR(got.l[row], want.l, 8 * 0x1p-21 * want.l) << "row " << row;
      const double rounding = got.dtype == PartialDtype::kBf16 ? 0x1p-7 : 0;
      for (uint32_t d = 0; d < kValues; ++d)
        ASSERT_NEAR(got.value(row, d), want.o[d], 8 * 0x1p-20 + rounding) << "row " << row;
    }
    if (!under_->has_cpu_bits()) return;
    std::vector<ConstPartialView> parts;
    for (HostPartial& part : made.parts) parts.emplace_back(part.view());
    if (made.order == MergeOrder::kTree) {
      MergeTree(parts, made.levels, kRows, kValues, made.sum.view());
    } else {
      MergePartials(parts, kRows, kValues, made.sum.view());
    }
    EXPECT_EQ(got.o, made.sum.o);
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(got.m)), std::as_bytes(std::span(made.sum.m))));
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(got.l)), std::as_bytes(std::span(made.sum.l))));
  }
};

TEST_P(BackendMerge, MatchesTheFunctionForManyJobsAndAnyPlacementOfParts) {
  const auto two_threads = NewStream(2);
  for (int call = 0; call < 30; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    std::vector<Case> cases;
    for (uint32_t i = 1 + rng_() % 6; i > 0; --i) cases.push_back(RandomCase());
    std::vector<MergeJob> jobs;
    for (const Case& one : cases) jobs.push_back(one.Job());
    ComputeStream& stream = call % 2 == 0 ? *stream_ : *two_threads;
    ASSERT_TRUE(backend_.Merge(jobs, stream).ok());
    ASSERT_TRUE(stream.Wait().ok());
    for (Case& one : cases) Expect(one);
    if (HasFatalFailure()) return;
  }
}

// A merge of one part copies its bits: this is how an answer is moved.
TEST_P(BackendMerge, CopiesASinglePart) {
  HostPartial part(PartialDtype::kF32);
  for (size_t i = 0; i < part.o.size(); ++i) part.o[i] = std::byte(i * 37 % 251);
  part.m.assign(kRows, -3.5f);
  part.l.assign(kRows, 7.25f);
  HostPartial sum(PartialDtype::kF32);
  const PlacedPartial from = PlaceIt(part, reach_.parts), to = PlaceIt(sum, reach_.merged);
  const ConstPartialView view = from.view;
  const MergeJob job = {.order = MergeOrder::kInTurn,
                        .parts = {&view, 1},
                        .levels = {},
                        .row_count = kRows,
                        .d_v = kValues,
                        .out = to.view};
  ASSERT_TRUE(backend_.Merge({&job, 1}, *stream_).ok());
  ASSERT_TRUE(stream_->Wait().ok());
  EXPECT_EQ(to.o.Read(), part.o);
  EXPECT_EQ(to.m.Read(), from.m.Read());
  EXPECT_EQ(to.l.Read(), from.l.Read());
}

// Rows of bytes with a finite bf16 band at their end.
class BackendRotate : public BackendTest {
 protected:
  static constexpr uint32_t kBand = 32, kBandBytes = 2 * kBand;

  std::vector<std::byte> RandomRows(uint32_t count, uint32_t row_bytes, uint32_t stride) {
    std::vector<std::byte> rows(size_t{count} * stride);
    std::normal_distribution<float> values;
    for (std::byte& b : rows) b = std::byte(rng_());
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t d = 0; d < kBand; ++d) {
        const uint16_t bits = Bf16FromFloat(values(rng_));
        std::memcpy(&rows[size_t{r} * stride + row_bytes - kBandBytes + 2 * d], &bits, 2);
      }
    }
    return rows;
  }
  RopeRotation RandomRotation() {
    RopeParams params;
    params.style = rng_() % 2 == 0 ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit;
    return RopeRotation(params, kBand, rng_() % 4 == 0 ? 0 : int64_t(rng_() % 5000) - 2500);
  }

  // Compares one row with f64, and its bytes before the band with the row it was made of.
  static void ExpectTurned(const RopeRotation& rotation, const std::byte* from, const std::byte* to,
                           uint32_t row_bytes) {
    const uint32_t before = row_bytes - kBandBytes;
    ASSERT_EQ(std::memcmp(from, to, before), 0);
    if (rotation.is_identity()) {
      ASSERT_EQ(std::memcmp(from, to, row_bytes), 0);
      return;
    }
    const bool split = rotation.style() == RopeStyle::kHalfSplit;
    for (uint32_t i = 0; i < kBand / 2; ++i) {
      const uint32_t x = split ? i : 2 * i, y = split ? kBand / 2 + i : 2 * i + 1;
      const double old_x = reference::ReadBf16(from + before + 2 * x);
      const double old_y = reference::ReadBf16(from + before + 2 * y);
      const double cos = double{rotation.cos()[i]}, sin = double{rotation.sin()[i]};
      const double bound = 0x1p-8 * std::hypot(old_x, old_y);
      ASSERT_NEAR(reference::ReadBf16(to + before + 2 * x), old_x * cos - old_y * sin, bound);
      ASSERT_NEAR(reference::ReadBf16(to + before + 2 * y), old_x * sin + old_y * cos, bound);
    }
  }
};

TEST_P(BackendRotate, RotatesCopiesAndInPlaceForAnyPlacementOfRows) {
  for (int call = 0; call < 60; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    const RopeRotation rotation = RandomRotation();
    const uint32_t row_bytes = kBandBytes + 2 * (rng_() % 300), count = rng_() % 40;
    const uint32_t stride = row_bytes + rng_() % 2 * 10;
    const auto host = RandomRows(count, row_bytes, stride);
    const bool in_place = rng_() % 2 == 0;
    const Placed rows = Place(in_place ? reach_.rotated_to : reach_.rotated_from, host);
    if (in_place && !reach_.rotated_from.Has(rows.kind())) continue;
    std::optional<Placed> copy;
    if (!in_place) copy.emplace(Place(reach_.rotated_to, size_t{count} * row_bytes));
    const Placed& to = in_place ? rows : *copy;
    ASSERT_TRUE(backend_
                    .Rotate(rotation, {rows.data(), count, stride, rows.kind()}, row_bytes,
                            {to.data(), to.kind()}, *stream_)
                    .ok());
    ASSERT_TRUE(stream_->Wait().ok());
    const auto got = to.Read();
    const uint32_t to_stride = in_place ? stride : row_bytes;
    for (uint32_t r = 0; r < count; ++r) {
      ExpectTurned(rotation, &host[size_t{r} * stride], &got[size_t{r} * to_stride], row_bytes);
      if (HasFatalFailure()) return;
    }
    if (!under_->has_cpu_bits()) continue;
    std::vector<std::byte> want(size_t{count} * row_bytes);
    CopyRotatedRows(rotation, host.data(), stride, want.data(), count, row_bytes);
    for (uint32_t r = 0; r < count; ++r)
      EXPECT_EQ(std::memcmp(&got[size_t{r} * to_stride], &want[size_t{r} * row_bytes], row_bytes),
                0);
  }
}

TEST_P(BackendRotate, ScatterWritesItsRowsAndNothingElse) {
  for (int call = 0; call < 60; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    const RopeRotation rotation = RandomRotation();
    const uint32_t row_bytes = kBandBytes + 2 * (rng_() % 60), block_rows = 1 + rng_() % 20;
    const uint32_t blocks = 6, used = 4, rows_max = used * block_rows;
    const uint32_t row_begin = rng_() % rows_max, count = rng_() % (rows_max - row_begin + 1);
    const uint32_t stride = row_bytes + rng_() % 2 * 6;
    std::vector<uint32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), rng_);
    table.resize(used);
    const auto host = RandomRows(count, row_bytes, stride);
    const Placed rows = Place(reach_.scattered_from, host);
    const std::vector<std::byte> before(size_t{blocks} * block_rows * row_bytes, std::byte{0xa5});
    const Placed layer = Place(reach_.scattered_to, before);
    const PagedPlace to = {.layer = {layer.data(), layer.size()},
                           .table = table,
                           .row_begin = row_begin,
                           .block_rows = block_rows,
                           .memory = layer.kind()};
    ASSERT_TRUE(
        backend_
            .Scatter(rotation, {rows.data(), count, stride, rows.kind()}, row_bytes, to, *stream_)
            .ok());
    ASSERT_TRUE(stream_->Wait().ok());
    auto got = layer.Read();
    for (uint32_t r = 0; r < count; ++r) {
      const uint32_t row = row_begin + r;
      const size_t slot = size_t{table[row / block_rows]} * block_rows + row % block_rows;
      std::byte* const written = &got[slot * row_bytes];
      ExpectTurned(rotation, &host[size_t{r} * stride], written, row_bytes);
      if (HasFatalFailure()) return;
      std::memset(written, 0xa5, row_bytes);
    }
    EXPECT_EQ(got, before);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendAttend, AllBackends(), CaseName);
INSTANTIATE_TEST_SUITE_P(All, BackendMerge, AllBackends(), CaseName);
INSTANTIATE_TEST_SUITE_P(All, BackendRotate, AllBackends(), CaseName);

}  // namespace
}  // namespace ckv::test
