// Goal: a fetch into a cache shows the rotated rows of all chunks or leaves the cache unchanged.
// After a break it repeats only the layer at which it broke.

#include "client/paged/fetch_into.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/merge.h"
#include "attention/rope.h"
#include "client/tools/reference_engine/decode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/support/cache_slots.h"
#include "tests/support/fault_fabric.h"
#include "tests/support/hook_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::MakeTestCorpus;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;
using testing::HasSubstr;

struct CacheCluster : test::Cluster {
  CacheCluster(Fabric* holders, Fabric* requesters, const test::TestCorpus& rows,
               size_t holder_count, const LaneShape& shape = SmallShape())
      : Cluster(holders, holder_count, shape, requesters), corpus(rows) {
    for (size_t i = 0; i < corpus.chunks.size(); ++i) placement.push_back(i % holder_count);
    fleet.Load("c", corpus, placement);
    cache = *PagedCache::Create(corpus.geometry, {.block_count = 16});
    // Blocks in an order in which few are neighbours.
    std::vector<CacheSequenceId> some;
    for (int i = 0; i < 16; ++i) {
      some.push_back(cache->Begin());
      std::move(*cache->Reserve(some.back(), 64)).Commit();
    }
    for (const int i : {0, 5, 6, 1, 3, 2, 15, 14, 4, 8, 7, 9, 11, 10, 12, 13})
      EXPECT_TRUE(cache->Free(some[i]).ok());
    sequence = cache->Begin();
  }
  FetchCall Call(uint32_t chunk_begin, uint32_t chunk_end, std::optional<uint64_t> position) {
    FetchCall call;
    call.corpus = Resolve();
    call.chunk_begin = chunk_begin;
    call.chunk_end = chunk_end;
    call.tensor_end = corpus.geometry.layers;
    call.position = position;
    call.deadline = Soon();
    return call;
  }
  // The holder that pushes rows: either of two equal replicas may be first. It counts a push just
  // after the reply was seen.
  size_t Pusher() {
    const Instant give_up = Soon();
    while (Clock::Real()->Now() < give_up) {
      for (size_t i = 0; i < 2; ++i) {
        if (fleet.holder(i).stats().push_count > 0) return i;
      }
    }
    ADD_FAILURE() << "no holder pushed rows";
    return 0;
  }
  uint64_t RowsOf(const FetchCall& call) const {
    uint64_t rows = 0;
    for (uint32_t c = call.chunk_begin; c < call.chunk_end; ++c)
      rows += corpus.chunks[c].info.token_count();
    return rows;
  }
  // Expects the call's rows from row `from` of the sequence on, each rotated once.
  void ExpectRows(const FetchCall& call, uint64_t from) {
    const Geometry& geometry = corpus.geometry;
    const std::vector<int32_t> slots = *test::SlotsOf(*cache, sequence);
    ASSERT_EQ(slots.size(), from + RowsOf(call));
    uint64_t row = from, position = call.position.value_or(0);
    for (uint32_t c = call.chunk_begin; c < call.chunk_end; ++c) {
      const test::TestChunk& chunk = corpus.chunks[c];
      const uint32_t tokens = chunk.info.token_count();
      const int64_t delta = call.position ? int64_t(position) - int64_t(chunk.info.position) : 0;
      const RopeRotation rotation(geometry.rope, geometry.d_rope, delta);
      for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
        std::vector<uint16_t> want = chunk.layers[layer];
        test::RotateBandsBf16(rotation, want.data(), tokens, geometry.d_qk, geometry.d_qk);
        for (uint32_t t = 0; t < tokens; ++t) {
          const std::byte* got =
              cache->layer_rows(layer).data + size_t(slots[row + t]) * geometry.row_bytes();
          ASSERT_EQ(std::memcmp(got, want.data() + size_t{t} * geometry.d_qk, geometry.row_bytes()),
                    0)
              << "chunk " << c << " layer " << layer << " token " << t;
        }
      }
      row += tokens;
      position += tokens;
    }
  }
  // Expects the state before the failed fetch.
  void ExpectUntouched(uint64_t tokens, uint32_t free_blocks) {
    EXPECT_EQ(*cache->token_count(sequence), tokens);
    EXPECT_EQ(cache->free_block_count(), free_blocks);
    auto next = *cache->Reserve(sequence, 1);
    first_block.push_back(next.table().back());
    EXPECT_EQ(first_block.back(), first_block.front());
  }

  const test::TestCorpus corpus;
  std::vector<size_t> placement;
  std::unique_ptr<PagedCache> cache;
  CacheSequenceId sequence;
  std::vector<CacheBlock> first_block;
};

std::unique_ptr<Fabric> FabricOf(FabricKind kind) {
  return kind == FabricKind::kShm   ? NewShmFabric(Clock::Real())
         : kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                    : NewLoopbackFabric(Clock::Real());
}

TEST(FetchInto, RowsAreRotatedOnceAndShownTogether) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {5, 0, 64, 1, 100, 300, 0}, 1);
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    const auto fabric = FabricOf(kind);
    // 21 rows of 192 B fit a small slot; large ones carry all layers of a chunk.
    for (const LaneShape& shape : {SmallShape(), LaneShape{.slot_count = 4}}) {
      SCOPED_TRACE(testing::Message() << FabricName(kind) << ", " << shape.slot_count << " slots");
      CacheCluster cluster(fabric.get(), fabric.get(), corpus, 2, shape);
      FetchIntoReport report;
      FetchCall call = cluster.Call(0, 4, 777);
      absl::Status status =
          cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence, &report);
      ASSERT_TRUE(status.ok()) << status;
      cluster.ExpectRows(call, 0);
      EXPECT_EQ(report.rows_spliced, 3 * cluster.RowsOf(call));
      EXPECT_EQ(report.reopen_count, 0u);
      // More rows after them, from row 70 on, at their canonical positions, so nothing is rotated.
      call = cluster.Call(4, 7, std::nullopt);
      status = cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence);
      ASSERT_TRUE(status.ok()) << status;
      cluster.ExpectRows(call, 70);
    }
  }
}

// Method: one layer of 300 rows a reply, for blocks 13, 12, 10 to 11 and 9.
TEST(FetchInto, TheFabricPutsRowsIntoScatteredBlocks) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {300}, 6);
  const auto tcp = NewTcpFabric(Clock::Real());
  test::HookFabric fabric(tcp.get(), [](uint32_t, std::span<std::byte>) {});
  CacheCluster cluster(tcp.get(), &fabric, corpus, 1,
                       {.slot_count = 4, .reply_bytes_max = 64 << 10});
  const FetchCall call = cluster.Call(0, 1, 500);
  const absl::Status status = cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence);
  ASSERT_TRUE(status.ok()) << status;
  cluster.ExpectRows(call, 0);
  EXPECT_EQ(fabric.landed_count(), 3u);
}

// Method: no two free blocks are neighbours, and a transfer covers 8: more than a ScatterList has.
TEST(FetchInto, SplitsRowsForTooManyBlocksIntoSlots) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {640}, 7);
  const auto tcp = NewTcpFabric(Clock::Real());
  test::HookFabric fabric(tcp.get(), [](uint32_t, std::span<std::byte>) {});
  CacheCluster cluster(tcp.get(), &fabric, corpus, 1,
                       {.slot_count = 4, .reply_bytes_max = 100'000});
  cluster.cache = *PagedCache::Create(corpus.geometry, {.block_count = 32});
  std::vector<CacheSequenceId> blocks;
  for (int i = 0; i < 32; ++i) {
    blocks.push_back(cluster.cache->Begin());
    std::move(*cluster.cache->Reserve(blocks.back(), 64)).Commit();
  }
  for (int i = 0; i < 32; i += 2) ASSERT_TRUE(cluster.cache->Free(blocks[i]).ok());
  cluster.sequence = cluster.cache->Begin();
  const FetchCall call = cluster.Call(0, 1, 500);
  const absl::Status status = cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence);
  ASSERT_TRUE(status.ok()) << status;
  cluster.ExpectRows(call, 0);
  // Per layer 512 rows, which do not land, and 128, which do.
  EXPECT_EQ(fabric.landed_count(), 3u);
}

TEST(FetchInto, SplicedRowsAreAttendedAtTheirNewPlace) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 150}, 2);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  CacheCluster cluster(fabric.get(), fabric.get(), corpus, 1);
  const FetchCall call = cluster.Call(1, 2, 1000);
  ASSERT_TRUE(cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence).ok());
  // The holder's answer for the same chunk at that offset.
  std::mt19937 rng(2);
  const std::vector<uint16_t> q = test::RandomBf16(4 * 96, rng);
  test::Answer routed(4, 64), local(4, 64);
  const ChunkUse use = {1, 1000 - 64};
  AttendCall attend;
  attend.corpus = call.corpus;
  attend.chunks = {&use, 1};
  attend.layer = 2;
  attend.q = {q.data(), 4, 96};
  attend.wire = PartialDtype::kF32;
  attend.deadline = Soon();
  ASSERT_TRUE(cluster.requester->Attend(attend, routed.View(), nullptr).ok());
  WorkerPool pool(1);
  LocalContext context(corpus.geometry, &pool);
  std::vector<std::vector<RowView>> runs(3);
  for (uint32_t layer = 0; layer < 3; ++layer)
    ASSERT_TRUE(cluster.cache->Runs(cluster.sequence, layer, runs[layer]).ok());
  for (size_t i = 0; i < runs[0].size(); ++i)
    context.AddChunk({runs[0][i], runs[1][i], runs[2][i]});
  EXPECT_EQ(context.token_count(), 150u);
  ASSERT_TRUE(context.Attend(2, attend.q, local.View()).ok());
  // Bands are rounded here, queries there.
  for (size_t i = 0; i < local.o.size(); ++i) EXPECT_NEAR(local.o[i], routed.o[i], 0x1p-8);
}

TEST(FetchInto, RefusesAnImpossibleFetchBeforeItTakesABlock) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 1024, 0}, 3);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  CacheCluster cluster(fabric.get(), fabric.get(), corpus, 1);
  const auto code = [&](const FetchCall& call, std::string_view mentions = "") {
    const absl::Status status =
        cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence);
    EXPECT_NE(status.ToString().find(mentions), std::string::npos) << status;
    cluster.ExpectUntouched(0, 16);
    return status.code();
  };
  EXPECT_EQ(code(cluster.Call(0, 2, 0), "1088 tokens need 17 more blocks"),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(code(cluster.Call(0, 4, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(cluster.Call(1, 1, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(cluster.Call(0, 1, UINT64_MAX)), StatusCode::kInvalidArgument);
  FetchCall call = cluster.Call(0, 1, 0);
  call.tensor_end = 2;
  EXPECT_EQ(code(call, "layers 0 to 2 into a cache of 0 to 3"), StatusCode::kInvalidArgument);
  call = cluster.Call(0, 1, 0);
  call.deadline = Clock::Real()->Now();
  EXPECT_EQ(code(call), StatusCode::kDeadlineExceeded);
  call.corpus = nullptr;
  EXPECT_EQ(code(call), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(cluster.Call(2, 3, 0)), StatusCode::kOk);  // no tokens
  const auto other = *PagedCache::Create(TestGeometry(3, 96, 32), {.block_count = 4});
  EXPECT_EQ(cluster.requester->FetchInto(cluster.Call(0, 1, 0), *other, other->Begin()).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster.requester->FetchInto(cluster.Call(0, 1, 0), *cluster.cache, {999}).code(),
            StatusCode::kNotFound);
}

TEST(FetchInto, AtTheDeadlineTheCacheIsAsItWas) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 4);
  const auto inner = NewLoopbackFabric(Clock::Real());
  FaultPlan plan;
  plan.seed = 4;
  plan.drop_reply = 0.3;
  const auto lossy = NewFaultFabric(inner.get(), Clock::Real(), plan);
  CacheCluster cluster(inner.get(), lossy.get(), corpus, 1);
  FetchCall call = cluster.Call(0, 2, 100);
  call.deadline = Soon(std::chrono::milliseconds(100));
  const absl::Status status = cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("blocks 13, 12, which stay free; whole"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("holder h0"));
  cluster.ExpectUntouched(0, 16);
}

// A lane that damages an answer is replaced once: here the second one damages another.
TEST(FetchInto, AFlippedBitIsDataLossAndTheCacheIsAsItWas) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 5);
  const auto tcp = NewTcpFabric(Clock::Real());
  for (const uint32_t flip_at : {0u, 5u, 7u}) {  // of 24 replies
    test::HookFabric fabric(tcp.get(), [&](uint32_t reply, std::span<std::byte> body) {
      if (reply == flip_at) body.last(3)[0] ^= std::byte{0x10};
    });
    CacheCluster cluster(tcp.get(), &fabric, corpus, 1);
    const absl::Status status =
        cluster.requester->FetchInto(cluster.Call(0, 2, 100), *cluster.cache, cluster.sequence);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("blocks 13, 12"));
    cluster.ExpectUntouched(0, 16);
  }
}

// Method: the holder stops at a reply with a known number, and another incarnation starts
// immediately.
TEST(FetchInto, ContinuesWithAHolderThatRestartsMidway) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 100, 21}, 6);
  const auto& geometry = corpus.geometry;
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    const auto inner = FabricOf(kind);
    for (const uint32_t at : {0u, 6u, 13u, 20u}) {
      SCOPED_TRACE(testing::Message() << FabricName(kind) << " reply " << at);
      CacheCluster* it = nullptr;
      bool done = false;
      test::HookFabric fabric(inner.get(), [&](uint32_t reply, std::span<std::byte>) {
        if (reply != at || std::exchange(done, true)) return;
        it->fleet.StopHolder(0);
        it->fleet.StartHolder(0);
        it->fleet.Load("c", it->corpus, it->placement);
      });
      CacheCluster cluster(inner.get(), &fabric, corpus, 1);
      it = &cluster;
      const FetchCall call = cluster.Call(0, 3, 4000);
      FetchIntoReport report;
      const absl::Status status =
          cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence, &report);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_GE(report.reopen_count, 1u);
      cluster.ExpectRows(call, 0);
      // Only rows received of one layer are repeated: less than 100.
      EXPECT_GE(report.rows_spliced, geometry.layers * cluster.RowsOf(call));
      EXPECT_LT(report.rows_spliced, geometry.layers * cluster.RowsOf(call) + 100);
    }
  }
}

// A replica continues at the layer at which the holder broke.
TEST(FetchInto, AReplicaContinuesWhereAHolderFailed) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 100, 21}, 6);
  const auto inner = NewLoopbackFabric(Clock::Real());
  for (const uint32_t at : {0u, 6u, 13u, 20u}) {
    SCOPED_TRACE(testing::Message() << "reply " << at);
    CacheCluster* it = nullptr;
    bool done = false;
    test::HookFabric fabric(inner.get(), [&](uint32_t reply, std::span<std::byte>) {
      if (reply != at || std::exchange(done, true)) return;
      it->fleet.StopHolder(it->Pusher());
    });
    CacheCluster cluster(inner.get(), &fabric, corpus, 1);
    it = &cluster;
    cluster.fleet.StartHolder(1);
    cluster.fleet.Lease("c", corpus, 1, {0, 1, 2});
    const FetchCall call = cluster.Call(0, 3, 4000);
    FetchIntoReport report;
    const absl::Status status =
        cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence, &report);
    ASSERT_TRUE(status.ok()) << status;
    cluster.ExpectRows(call, 0);
    EXPECT_LT(report.rows_spliced, corpus.geometry.layers * cluster.RowsOf(call) + 100);
    // The next session is with the holder whose turn it is, which may be the stopped one.
    EXPECT_GE(cluster.requester->Stats().failover_count + report.reopen_count, 1u);
  }
}

TEST(FetchInto, AHolderThatStaysAwayIsNotWaitedForForEver) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 100}, 7);
  const auto inner = NewLoopbackFabric(Clock::Real());
  CacheCluster* it = nullptr;
  test::HookFabric fabric(inner.get(), [&](uint32_t reply, std::span<std::byte>) {
    if (reply == 5) it->fleet.StopHolder(0);
  });
  CacheCluster cluster(inner.get(), &fabric, corpus, 1);
  it = &cluster;
  FetchCall call = cluster.Call(0, 2, 4000);
  call.deadline = test::Shortly();
  FetchIntoReport report;
  const absl::Status status =
      cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence, &report);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("whole up to chunk 0 (0 to 2), layer "));
  EXPECT_GE(report.reopen_count, 1u);
  cluster.ExpectUntouched(0, 16);
}

// Method: lanes break and delay by seeds. The result is always right or refused (I2), and a break
// costs a layer.
TEST(FetchInto, UnderSeededFaultsItIsRightOrRefused) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {130, 64, 33, 200}, 8);
  const auto inner = NewLoopbackFabric(Clock::Real());
  uint32_t right = 0, reopened = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FaultPlan plan;
    plan.seed = seed;
    plan.break_lane = 0.03;
    plan.duplicate_reply = 0.1;
    plan.delay = 0.05;
    plan.delay_max = std::chrono::milliseconds(1);
    plan.drop_reply = seed % 8 == 0 ? 0.01 : 0;
    const auto faults = NewFaultFabric(inner.get(), Clock::Real(), plan);
    CacheCluster cluster(inner.get(), faults.get(), corpus, 3);
    FetchCall call = cluster.Call(0, 4, 5);
    call.deadline = Soon(std::chrono::seconds(plan.drop_reply > 0 ? 1 : 20));
    FetchIntoReport report;
    const absl::Status status =
        cluster.requester->FetchInto(call, *cluster.cache, cluster.sequence, &report);
    const uint64_t rows = 3 * cluster.RowsOf(call);
    EXPECT_LE(report.rows_spliced, rows + uint64_t{report.reopen_count} * 200);
    reopened += report.reopen_count;
    if (status.ok()) {
      ++right;
      EXPECT_GE(report.rows_spliced, rows);
      cluster.ExpectRows(call, 0);
    } else {
      cluster.ExpectUntouched(0, 16);
      EXPECT_TRUE(status.code() == StatusCode::kUnavailable ||
                  status.code() == StatusCode::kDeadlineExceeded)
          << status;
    }
  }
  EXPECT_GE(right, 20u);
  EXPECT_GE(reopened, 20u);
}

}  // namespace
}  // namespace ckv
