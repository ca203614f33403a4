// Goal: a fetched selection is exactly the chosen rows at their canonical positions, and attending
// it gives the holder's selected attention; a slice is that of every row, in as few transfers as
// its bytes need.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "attention/mla_partial.h"
#include "attention/rope.h"
#include "client/call/fetch_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::MakeTestCorpus;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

struct LoadedCluster : test::Cluster {
  LoadedCluster(Fabric* fabric, size_t holders, LaneShape shape, const test::TestCorpus& rows,
                const std::vector<size_t>& placement)
      : Cluster(fabric, holders, shape), corpus(rows) {
    fleet.Load("c", corpus, placement);
  }
  SelectionCall Call(uint32_t chunk_begin, uint32_t chunk_end, uint32_t layer_begin) {
    SelectionCall call;
    call.corpus = Resolve();
    call.chunk_begin = chunk_begin;
    call.chunk_end = chunk_end;
    call.layer_begin = layer_begin;
    call.deadline = Soon();
    return call;
  }
  uint64_t pushes() {
    uint64_t count = 0;
    for (size_t i = 0; i < 2; ++i) count += fleet.holder(i).stats().push_count;
    return count;
  }
  const test::TestCorpus& corpus;
};

std::vector<int32_t> Draw(size_t count, uint32_t rows, std::mt19937& rng) {
  std::vector<int32_t> indices(count);
  for (int32_t& index : indices) index = static_cast<int32_t>(rng() % rows);
  return indices;
}

TEST(FetchSelection, IsExactlyTheChosenRowsInTheirOrder) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {5, 0, 64, 1, 100, 21}, 1);
  std::mt19937 rng(1);
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    const auto fabric = kind == FabricKind::kShm   ? NewShmFabric(Clock::Real())
                        : kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                                   : NewLoopbackFabric(Clock::Real());
    for (const LaneShape& shape : {SmallShape(2), LaneShape{.slot_count = 4}}) {
      LoadedCluster cluster(fabric.get(), 2, shape, corpus, {0, 1, 1, 0, 1, 0});
      for (const ColumnRange columns : {ColumnRange{}, ColumnRange{128, 64}}) {
        SCOPED_TRACE(testing::Message() << FabricName(kind) << ", columns " << columns.bytes);
        const uint32_t width = columns.bytes != 0 ? columns.bytes : 192;
        // From the 186 rows after the first chunk; one layer selects nothing; there are many
        // duplicates.
        const std::vector<int32_t> first = Draw(300, 186, rng), last = Draw(7, 186, rng);
        const std::vector<std::span<const int32_t>> indices = {first, {}, last};
        SelectionCall call = cluster.Call(1, 6, 0);
        call.indices = indices;
        call.columns = columns;
        std::vector<std::vector<std::byte>> got = {
            std::vector<std::byte>(300 * width), {}, std::vector<std::byte>(7 * width)};
        const absl::Status status = cluster.requester->FetchSelection(
            call, [&](uint32_t layer) { return std::span(got[layer]); });
        ASSERT_TRUE(status.ok()) << status;
        for (const uint32_t layer : {0u, 2u}) {
          const std::vector<uint16_t> rows = corpus.Rows(layer, 1, 6);
          for (size_t i = 0; i < indices[layer].size(); ++i) {
            const auto* want = reinterpret_cast<const std::byte*>(rows.data()) +
                               indices[layer][i] * 192 + columns.begin;
            ASSERT_EQ(std::memcmp(got[layer].data() + i * width, want, width), 0) << i;
          }
        }
        // Shown in the documented order, each once.
        std::set<std::pair<uint32_t, uint32_t>> seen;
        std::pair<uint32_t, uint32_t> last_group = {0, 0};
        const absl::Status shown =
            cluster.requester->FetchSelection(call, [&](const SelectedRows& chosen) {
              EXPECT_EQ(chosen.rows.size(), chosen.ordinals.size() * width);
              EXPECT_GE(std::pair(chosen.layer, chosen.chunk), last_group);
              last_group = {chosen.layer, chosen.chunk};
              EXPECT_TRUE(std::is_sorted(chosen.ordinals.begin(), chosen.ordinals.end()));
              for (const uint32_t i : chosen.ordinals)
                EXPECT_TRUE(seen.insert({chosen.layer, i}).second);
              return absl::OkStatus();
            });
        ASSERT_TRUE(shown.ok()) << shown;
        EXPECT_EQ(seen.size(), 307u);
      }
    }
  }
}

TEST(FetchSelection, RefusesMissingRowsBeforeItSendsAnything) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 2);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get(), 2, SmallShape(), corpus, {0, 1});
  const auto code = [&](std::vector<int32_t> wanted, auto change) {
    const std::vector<std::span<const int32_t>> indices = {wanted};
    SelectionCall call = cluster.Call(0, 2, 1);
    call.indices = indices;
    change(call);
    return cluster.requester
        ->FetchSelection(call, [](const SelectedRows&) { return absl::OkStatus(); })
        .code();
  };
  const auto none = [](SelectionCall&) {};
  const StatusCode invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(code({3, -1}, none), invalid);
  EXPECT_EQ(code({128}, none), invalid);
  EXPECT_EQ(code({INT32_MAX}, none), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.layer_begin = 3; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.layer_begin = UINT32_MAX; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.indices = {}; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.chunk_end = 3; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.corpus = nullptr; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.columns = {190, 4}; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.columns = {188, 8}; }), invalid);
  EXPECT_EQ(code({1}, [](SelectionCall& call) { call.columns = {4, 0}; }), invalid);
  EXPECT_EQ(cluster.fleet.session_calls(), 0);
  EXPECT_EQ(code({}, none), StatusCode::kOk);
  EXPECT_EQ(code({1}, none), StatusCode::kOk);
  EXPECT_EQ(cluster.fleet.holder(1).stats().push_count, 0u);  // a holder without any is not queried
  const std::vector<int32_t> one = {1};
  const std::vector<std::span<const int32_t>> indices = {one};
  SelectionCall call = cluster.Call(0, 2, 1);
  call.indices = indices;
  EXPECT_EQ(cluster.requester->FetchSelection(call, [](uint32_t) { return std::span<std::byte>(); })
                .code(),
            invalid);
}

// Goal: fetching a selection and attending it here gives the same as attending it there. Rotating
// it as if its rows were neighbours gives another answer, by more than 20 %.
TEST(FetchSelection, AttendedHereIsTheHoldersSelectedAttention) {
  // Half of every row is its band, as position-dependent as rows can be.
  const Geometry geometry = TestGeometry(1, 96, 32);
  const auto corpus = MakeTestCorpus(geometry, {2000}, 3);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get(), 1, LaneShape{}, corpus, {0});
  std::mt19937 rng(3);
  const uint32_t q_count = 16, k = 32;
  const std::vector<uint16_t> q = test::RandomBf16(q_count * 96, rng, 3.0f);
  std::vector<int32_t> chosen;
  for (uint32_t i = 0; i < k; ++i) chosen.push_back(static_cast<int32_t>(61 * i + rng() % 30));
  const std::vector<std::span<const int32_t>> indices = {chosen};
  SelectionCall call = cluster.Call(0, 1, 0);
  call.indices = indices;
  std::vector<std::byte> rows(k * 192);
  ASSERT_TRUE(
      cluster.requester->FetchSelection(call, [&](uint32_t) { return std::span(rows); }).ok());

  test::Answer there(q_count, 32), here(q_count, 32), wrong(q_count, 32);
  AttendCall attend;
  attend.corpus = call.corpus;
  attend.q = {q.data(), q_count, 96};
  attend.selection = {chosen.data(), k, q_count};
  attend.wire = PartialDtype::kF32;
  attend.deadline = Soon();
  ASSERT_TRUE(cluster.requester->Attend(attend, there.View(), nullptr).ok());
  WorkerPool pool(1);
  const auto attend_here = [&](test::Answer& out) {
    AttentionPiece piece;
    piece.q = attend.q;
    piece.rows = {rows.data(), k, 192};
    piece.out = out.View();
    AttendPartials(AttentionShape::Of(geometry), {&piece, 1}, pool);
  };
  attend_here(here);
  EXPECT_TRUE(here.SameBits(there));

  // As if row i of the selection were at position i.
  for (uint32_t i = 0; i < k; ++i) {
    const RopeRotation rotation(geometry.rope, geometry.d_rope, int64_t{i} - chosen[i]);
    test::RotateBandsBf16(rotation, reinterpret_cast<uint16_t*>(rows.data()) + i * 96, 1, 96, 96);
  }
  attend_here(wrong);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < here.o.size(); ++i) {
    difference += std::pow(wrong.o[i] - here.o[i], 2);
    norm += std::pow(here.o[i], 2);
  }
  EXPECT_GT(std::sqrt(difference / norm), 0.2);
}

// Goal: a rank's heads arrive in as few transfers as their bytes need, for any number of heads and
// layers.
TEST(FetchColumns, SlicesOfEveryRowInAsFewTransfersAsTheirBytes) {
  const auto corpus = MakeTestCorpus(TestGeometry(12), {100, 40}, 4);
  for (const FabricKind kind : {FabricKind::kShm, FabricKind::kTcp}) {
    const auto fabric =
        kind == FabricKind::kShm ? NewShmFabric(Clock::Real()) : NewTcpFabric(Clock::Real());
    LoadedCluster cluster(fabric.get(), 2, LaneShape{}, corpus, {0, 1});
    FetchCall call;
    call.corpus = *cluster.requester->Resolve("c", "", Soon());
    call.chunk_end = 2;
    call.tensor_end = 12;
    call.deadline = Soon();
    for (const ColumnRange columns :
         {ColumnRange{0, 32}, ColumnRange{32, 64}, ColumnRange{4, 96}}) {
      call.columns = columns;
      const uint64_t before = cluster.pushes();
      std::vector<std::byte> got;
      const absl::Status status = cluster.requester->Fetch(call, [&](const FetchedRows& run) {
        got.insert(got.end(), run.rows.begin(), run.rows.end());
        return absl::OkStatus();
      });
      ASSERT_TRUE(status.ok()) << status;
      std::vector<std::byte> want;
      for (const test::TestChunk& chunk : corpus.chunks) {
        for (const auto& layer : chunk.layers) {
          const auto rows = std::as_bytes(std::span(layer));
          for (size_t t = 0; t < rows.size(); t += 192) {
            const auto slice = rows.subspan(t + columns.begin, columns.bytes);
            want.insert(want.end(), slice.begin(), slice.end());
          }
        }
      }
      EXPECT_EQ(got, want);
      // 12 layers of each chunk fit one reply.
      EXPECT_EQ(cluster.pushes() - before, 2u);
    }
  }
}

TEST(FetchColumns, TheBandIsRotatedWholeOrNotAtAll) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 50}, 5);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  LoadedCluster cluster(fabric.get(), 1, SmallShape(), corpus, {0, 0});
  FetchCall call;
  call.corpus = *cluster.requester->Resolve("c", "", Soon());
  call.chunk_begin = 1;
  call.chunk_end = 2;
  call.tensor_end = 1;
  call.position = 1000;
  call.deadline = Soon();
  std::vector<uint16_t> rotated = corpus.chunks[1].layers[0];
  test::RotateBandsBf16(RopeRotation(corpus.geometry.rope, 32, 1000 - 64), rotated.data(), 50, 96,
                        96);
  for (const ColumnRange columns : {ColumnRange{100, 92}, ColumnRange{128, 64}, ColumnRange{8, 120},
                                    ColumnRange{128, 60}, ColumnRange{124, 8}}) {
    SCOPED_TRACE(columns.begin);
    call.columns = columns;
    std::vector<std::byte> got;
    const absl::Status status = cluster.requester->Fetch(call, [&](const FetchedRows& run) {
      got.insert(got.end(), run.rows.begin(), run.rows.end());
      return absl::OkStatus();
    });
    if (columns.bytes == 60 || columns.bytes == 8) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(got.size(), size_t{50} * columns.bytes);
    for (size_t t = 0; t < 50; ++t) {
      const auto* want = reinterpret_cast<const std::byte*>(rotated.data()) + t * 192;
      ASSERT_EQ(std::memcmp(got.data() + t * columns.bytes, want + columns.begin, columns.bytes),
                0);
    }
  }
}

}  // namespace
}  // namespace ckv
