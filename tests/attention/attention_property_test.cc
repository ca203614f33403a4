// Goal: however the rows of a context are cut, selected, distributed and merged again, in any
// order, the answer is attention over all of them.
// Method: take random contexts and assign every row to one of up to eight parts. A part is dense if
// its rows are contiguous, and selected if they are scattered. The query rows of a dense part are
// in one or more requests. All are pieces of one call on a random target. Merge the parts in a
// random order, some through a merge of merges, and compare with the f64 reference over the whole
// context. A failure prints the seed that repeats it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"
#include "tests/support/sanitized.h"

namespace ckv {
namespace {

using test::PieceOptions;
using test::TestPiece;

struct PartOutput {
  PartOutput(uint32_t rows, uint32_t d_v)
      : o(size_t{rows} * d_v, NAN), m(rows, NAN), l(rows, NAN) {}
  PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  std::vector<float> o, m, l;
};

// Which rows each part holds: runs, or any rows in any order.
std::vector<std::vector<int32_t>> CutRows(uint32_t row_count, uint32_t parts, bool scattered,
                                          std::mt19937* rng) {
  std::vector<std::vector<int32_t>> cut(parts);
  std::vector<int32_t> rows(row_count);
  std::iota(rows.begin(), rows.end(), 0);
  if (scattered) {
    for (const int32_t row : rows) cut[(*rng)() % parts].push_back(row);
    for (auto& part : cut) std::shuffle(part.begin(), part.end(), *rng);
    return cut;
  }
  std::vector<size_t> ends(parts);
  for (size_t& end : ends) end = row_count == 0 ? 0 : (*rng)() % (row_count + 1);
  std::sort(ends.begin(), ends.end());
  ends.back() = row_count;
  size_t begin = 0;
  for (uint32_t p = 0; p < parts; ++p) {
    cut[p].assign(rows.begin() + static_cast<ptrdiff_t>(begin),
                  rows.begin() + static_cast<ptrdiff_t>(ends[p]));
    begin = ends[p];
  }
  return cut;
}

AttentionPiece PieceOf(const TestPiece& whole, const std::vector<int32_t>& rows, bool scattered,
                       PartOutput& out) {
  AttentionPiece piece = whole.piece();
  piece.out = out.view();
  if (scattered) {
    static constexpr int32_t kNone = -1;  // a null list would be a dense piece
    const int32_t* indices = rows.empty() ? &kNone : rows.data();
    piece.selection = {indices, static_cast<uint32_t>(rows.size()), piece.q.count};
    return piece;
  }
  piece.rows.count = static_cast<uint32_t>(rows.size());
  if (!rows.empty()) piece.rows.data += size_t(rows[0]) * piece.rows.stride_bytes;
  return piece;
}

// The piece's query rows, cut at random into pieces of their own over the same rows, as requests
// that share a batch are.
void AddRequests(const AttentionPiece& whole, uint32_t d_v, std::mt19937* rng,
                 std::vector<AttentionPiece>* pieces) {
  for (uint32_t i = 0; i < whole.q.count;) {
    AttentionPiece request = whole;
    request.q.data += size_t{i} * whole.q.stride;
    request.q.count = std::min<uint32_t>(1 + (*rng)() % 20, whole.q.count - i);
    request.out.o = static_cast<float*>(whole.out.o) + size_t{i} * d_v;
    request.out.m += i;
    request.out.l += i;
    pieces->push_back(request);
    i += request.q.count;
  }
}

// Merges in the order given; a prefix of random length first into one partial, which joins the
// rest.
PartOutput MergeInTwoSteps(const std::vector<const PartOutput*>& parts, uint32_t rows, uint32_t d_v,
                           std::mt19937* rng) {
  std::vector<ConstPartialView> views;
  for (const PartOutput* part : parts) {
    views.push_back(const_cast<PartOutput*>(part)->view());
  }
  const size_t prefix = (*rng)() % (views.size() + 1);
  PartOutput first(rows, d_v), all(rows, d_v);
  MergePartials(std::span(views).first(prefix), rows, d_v, first.view());
  std::vector<ConstPartialView> rest = {first.view()};
  rest.insert(rest.end(), views.begin() + static_cast<ptrdiff_t>(prefix), views.end());
  MergePartials(rest, rows, d_v, all.view());
  return all;
}

void ExpectNear(const PartOutput& got, const std::vector<reference::Partial>& want, uint32_t d_v) {
  double o_max = 1;
  for (const auto& row : want) o_max = std::max(o_max, reference::AbsMax(row.o));
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].l == 0) {
      ASSERT_EQ(got.l[i], 0) << "row " << i;
      ASSERT_EQ(got.m[i], kEmptyM) << "row " << i;
      continue;
    }
    // 5e-7 is the bound for logits up to some 4; see ToleranceOf in mla_partial_test.
    const double excess = std::max(0.0, want[i].logit_abs_max - 4);
    const double tolerance = (5e-7 + 2 * 0x1p-22 * excess) * o_max;
    ASSERT_NEAR(got.l[i] * std::exp(got.m[i] - want[i].m) / want[i].l, 1, 1e-5) << "row " << i;
    for (uint32_t d = 0; d < d_v; ++d) {
      ASSERT_NEAR(got.o[i * d_v + d], want[i].o[d], tolerance) << "row " << i << " column " << d;
    }
  }
}

void RunSeed(uint32_t seed, WorkerPool& pool) {
  std::mt19937 rng(seed);
  PieceOptions options;
  const bool fp8 = rng() % 3 == 0;
  const uint32_t d_v = fp8 ? 128 * (1 + rng() % 2) : 1 + rng() % 120;
  const uint32_t d_rope = 2 * (rng() % 20) + (fp8 ? 0 : d_v % 2);
  options.shape = {d_v + d_rope, d_v, d_rope, fp8 ? RowDtype::kFp8DsMla : RowDtype::kBf16,
                   2.0f / std::sqrt(static_cast<float>(d_v + d_rope))};
  options.q_count = 1 + rng() % (rng() % 2 == 0 ? 8 : 80);
  options.row_count = rng() % (rng() % 4 == 0 ? 1400 : 200);
  TestPiece whole(options, &rng);
  const std::vector<reference::Partial> want = reference::Attend(options.shape, whole.piece());

  const uint32_t part_count = 1 + rng() % 8;
  const bool scattered = rng() % 2 == 0;
  const auto cut = CutRows(options.row_count, part_count, scattered, &rng);
  std::vector<PartOutput> outputs(part_count, PartOutput(options.q_count, d_v));
  std::vector<AttentionPiece> pieces;
  for (uint32_t p = 0; p < part_count; ++p) {
    const AttentionPiece piece = PieceOf(whole, cut[p], scattered, outputs[p]);
    if (scattered || rng() % 2 == 0) {
      pieces.push_back(piece);
    } else {
      AddRequests(piece, d_v, &rng, &pieces);
    }
  }
  const auto targets = KernelTargets();
  ASSERT_TRUE(ForceKernelTarget(targets[rng() % targets.size()]).ok());
  AttendPartials(options.shape, pieces, pool);
  std::vector<const PartOutput*> order;
  for (const PartOutput& output : outputs) order.push_back(&output);
  std::shuffle(order.begin(), order.end(), rng);
  const PartOutput merged = MergeInTwoSteps(order, options.q_count, d_v, &rng);
  ASSERT_TRUE(ForceKernelTarget("").ok());
  ExpectNear(merged, want, d_v);
}

TEST(AttentionProperty, AnyCutSelectedAndMergedInAnyOrderIsTheWhole) {
  WorkerPool pool1(1), pool3(3);
  for (uint32_t seed = 0; seed < 120 && !HasFatalFailure(); seed += kSanitized ? 7 : 1) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunSeed(seed, seed % 2 == 0 ? pool1 : pool3);
  }
}

}  // namespace
}  // namespace ckv
