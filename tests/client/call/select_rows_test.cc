// Goal: the rows that are selected over many holders are those that one process with all keys
// selects, and an attend of them is right.
// Method: random corpora and placements, replicas that fail, local chunks and own rows. The rows
// are held against IndexSearch over all keys in one array.

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "client/call/row_selector.h"
#include "gtest/gtest.h"
#include "tests/client/call/select_rows_fixture.h"
#include "tests/support/hook_fabric.h"
#include "tests/support/random_rows.h"

namespace ckv {
namespace {

using test::Cluster;
using test::Due;
using test::IndexQuery;
using test::kHeads;
using test::kTokenCount;
using test::SelectRowsTest;
using test::Soon;
using test::TestCorpus;

TEST_F(SelectRowsTest, AreThoseOfAllKeysWhereverTheyAre) {
  const TestCorpus corpus = MakeCorpus({40, 1, 300, 0, 77, 128, 200, 9});
  ForPlacements(corpus, [&](Cluster& cluster, const Context& context) {
    for (const bool zeros : {false, true}) {  // with zeros, all scores are equal
      const IndexQuery query(*corpus.geometry.index, 7, zeros);
      for (const uint32_t k : {1u, 64u, 400u, 2000u}) {
        SelectRowsCall call = {.context = &context, .layer = 2, .queries = query.View(), .k = k};
        call.deadline = Soon();
        std::vector<int32_t> rows(size_t{kTokenCount} * k, 7);
        SelectRowsReport report;
        const absl::Status status = cluster.requester->SelectRows(call, rows, &report);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(rows, Due(corpus, AllChunks(corpus), 2, query, k)) << k;
        EXPECT_GT(report.bytes_received, 0u);
      }
    }
  });
}

TEST_F(SelectRowsTest, SomeChunksInAnotherOrder) {
  const TestCorpus corpus = MakeCorpus({40, 50, 60, 70});
  Cluster cluster(fabric.get(), 3, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1, 2, 0});
  const std::vector<ChunkUse> chunks = {
      {.ordinal = 3, .offset = 5}, {.ordinal = 0}, {.ordinal = 2}};
  const auto context = Open(cluster, chunks);
  ASSERT_TRUE(context.ok()) << context.status();
  for (const bool zeros : {false, true}) {
    const IndexQuery query(*corpus.geometry.index, 8, zeros);
    SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 50};
    call.deadline = Soon();
    std::vector<int32_t> rows(size_t{kTokenCount} * 50);
    const absl::Status status = cluster.requester->SelectRows(call, rows, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(rows, Due(corpus, {3, 0, 2}, 0, query, 50));
  }
}

TEST_F(SelectRowsTest, LocalChunksAreScoredHere) {
  const TestCorpus corpus = MakeCorpus({40, 50, 60, 70});
  Cluster cluster(fabric.get(), 2, LaneShape{}, nullptr, 16, /*local_cache_bytes=*/1 << 24);
  cluster.fleet.Load("c", corpus, {0, 1, 1, 0});
  const auto context = Open(cluster, {}, ContextPolicy::kCache);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 9, false);
  SelectRowsCall call = {.context = &*context, .layer = 1, .queries = query.View(), .k = 33};
  call.deadline = Soon();
  std::vector<int32_t> rows(size_t{kTokenCount} * 33);
  SelectRowsReport report;
  const absl::Status status = cluster.requester->SelectRows(call, rows, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(rows, Due(corpus, AllChunks(corpus), 1, query, 33));
  EXPECT_EQ(report.bytes_sent, 0u);
}

TEST_F(SelectRowsTest, OwnRowsCompete) {
  const TestCorpus corpus = MakeCorpus({40, 50});
  Cluster cluster(fabric.get(), 2, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 10, false);
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  std::vector<float> own;
  for (uint32_t t = 0; t < kTokenCount; ++t) own.insert(own.end(), {1e9f, kUnseen, -1e9f, 1e9f});
  SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 10, .own_scores = own};
  call.deadline = Soon();
  std::vector<int32_t> rows(size_t{kTokenCount} * 10);
  const absl::Status status = cluster.requester->SelectRows(call, rows, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int32_t> due = Due(corpus, {0, 1}, 0, query, 8);
  for (uint32_t t = 0; t < kTokenCount; ++t) {
    EXPECT_TRUE(std::equal(due.begin() + t * 8, due.begin() + t * 8 + 8, rows.begin() + t * 10));
    EXPECT_EQ(rows[t * 10 + 8], 90);
    EXPECT_EQ(rows[t * 10 + 9], 93);
  }
}

TEST_F(SelectRowsTest, AReplicaAnswersForAHolderThatIsGone) {
  const TestCorpus corpus = MakeCorpus({40, 50, 60, 70});
  Cluster cluster(fabric.get(), 3, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1, 0, 1});
  cluster.fleet.Lease("c", corpus, 2, {0, 2});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 11, false);
  SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 20};
  std::vector<int32_t> rows(size_t{kTokenCount} * 20);
  for (int round = 0; round < 3; ++round) {
    call.deadline = Soon();
    const absl::Status status = cluster.requester->SelectRows(call, rows, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(rows, Due(corpus, AllChunks(corpus), 0, query, 20));
    if (round == 0) cluster.fleet.StopHolder(0);
  }
}

TEST_F(SelectRowsTest, ASelectionIsAttended) {
  const TestCorpus corpus = MakeCorpus({40, 50, 60, 70});
  Cluster cluster(fabric.get(), 2, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1, 1, 0});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  IndexQuery query(*corpus.geometry.index, 12, false);
  SelectRowsCall call = {.context = &*context, .layer = 1, .queries = query.View(), .k = 30};
  call.deadline = Soon();
  std::vector<int32_t> rows(size_t{kTokenCount} * 30);
  ASSERT_TRUE(cluster.requester->SelectRows(call, rows, nullptr).ok());
  const Geometry& geometry = corpus.geometry;
  const auto q = test::RandomBf16(size_t{kTokenCount} * kHeads * geometry.d_qk, query.rng);
  const Selection selection = {rows.data(), 30, kHeads};
  const QueryView view = {q.data(), kTokenCount * kHeads, geometry.d_qk};
  const Segment segment = {.row_count = view.count, .context = &*context, .selection = selection};
  const LayerCall attend = {.layer = 1,
                            .q = view,
                            .segments = {&segment, 1},
                            .wire = PartialDtype::kF32,
                            .deadline = Soon()};
  test::Answer answer(view.count, geometry.d_v);
  const absl::Status status = cluster.requester->Attend(attend, answer.View(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const auto due = test::Reference(corpus, 1, {0, 1, 2, 3}, view, selection);
  for (uint32_t row = 0; row < view.count; ++row) {
    for (uint32_t d = 0; d < geometry.d_v; ++d)
      ASSERT_NEAR(answer.o[row * geometry.d_v + d], due[row].o[d], 2e-5);
  }
}

// Goal: candidates that a holder drops before they are read are scored again, but not for ever.
// Method: holders with room for the candidates of one request. While the first reply arrives,
// another requester selects, too.
TEST_F(SelectRowsTest, DroppedCandidatesAreScoredAgain) {
  const TestCorpus corpus = MakeCorpus({40, 50});
  const IndexQuery query(*corpus.geometry.index, 14, false);
  int score_count = 0;
  const auto select = [&](Cluster& by) {
    const auto context = Open(by);
    SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 20};
    call.deadline = Soon();
    std::vector<int32_t> rows(size_t{kTokenCount} * 20);
    absl::Status status = by.requester->SelectRows(call, rows, nullptr);
    if (status.ok()) {
      EXPECT_EQ(rows, Due(corpus, {0, 1}, 0, query, 20));
    }
    return status;
  };
  Cluster cluster(fabric.get(), 0, LaneShape{});
  cluster.fleet.candidate_bytes_max = 1;
  for (size_t i = 0; i < 2; ++i) cluster.fleet.StartHolder(i);
  cluster.fleet.Load("c", corpus, {0, 1});
  test::HookFabric hooked(fabric.get(), [&](uint32_t, std::span<std::byte> body) {
    const bool scores = body.size() == ScoreReplyBytes(kTokenCount, 20);
    if (scores && ++score_count == 2) {
      EXPECT_TRUE(select(cluster).ok());
    }
  });
  RequesterOptions options;
  options.fabrics = {&hooked};
  auto made = Requester::Create(options, &cluster.fleet, &cluster.fleet);
  ASSERT_TRUE(made.ok());
  const auto corpus_there = (*made)->Resolve("c", "", Soon());
  ASSERT_TRUE(corpus_there.ok());
  const ContextPart part = {.corpus = *corpus_there, .chunks = {}};
  const auto context =
      (*made)->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
  ASSERT_TRUE(context.ok());
  SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 20};
  call.deadline = Soon();
  std::vector<int32_t> rows(size_t{kTokenCount} * 20);
  const absl::Status status = (*made)->SelectRows(call, rows, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(rows, Due(corpus, {0, 1}, 0, query, 20));
  EXPECT_GE(score_count, 4) << "both holders scored twice";
}

TEST_F(SelectRowsTest, RefusesWhatIsNotASelection) {
  const TestCorpus corpus = MakeCorpus({40});
  Cluster cluster(fabric.get(), 1, LaneShape{});
  cluster.fleet.Load("c", corpus, {0});
  auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 13, false);
  const auto code = [&](auto change, size_t size = kTokenCount * 4) {
    SelectRowsCall call = {.context = &*context, .queries = query.View(), .k = 4};
    call.deadline = Soon();
    change(call);
    std::vector<int32_t> rows(size, 7);
    const absl::Status status = cluster.requester->SelectRows(call, rows, nullptr);
    EXPECT_TRUE(status.ok() ||
                std::all_of(rows.begin(), rows.end(), [](int32_t r) { return r == 7; }));
    return status.code();
  };
  using C = SelectRowsCall;
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](C&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](C&) {}, kTokenCount * 4 + 1), bad);
  EXPECT_EQ(code([](C& c) { c.layer = 3; }), bad);
  EXPECT_EQ(code([](C& c) { c.k = 0; }, 0), bad);
  EXPECT_EQ(code([](C& c) { c.k = kIndexTopMax + 1; }, kTokenCount * (kIndexTopMax + 1)), bad);
  EXPECT_EQ(code([](C& c) { c.queries.tokens = 0; }, 0), bad);
  EXPECT_EQ(code([](C& c) { c.queries.q = nullptr; }), bad);
  const std::vector<float> own(kTokenCount * 2 + 1);
  EXPECT_EQ(code([&](C& c) { c.own_scores = own; }), bad);
  EXPECT_EQ(code([](C& c) { c.context = nullptr; }), absl::StatusCode::kFailedPrecondition);
  context->Close();
  EXPECT_EQ(code([](C&) {}), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ckv
