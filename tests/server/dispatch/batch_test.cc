// A batch without a dispatcher around it: the test decides what has arrived when, so what shares a
// batch, and the time, are known.

#include "server/batch/batch.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/dispatch/batch_fixture.h"
#include "tests/support/allocation_count.h"

namespace ckv {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Mixture;
using test::RawAttend;
using test::RawPartial;
using test::RawReply;

constexpr Epoch kEpoch = test::kBatchEpoch;
constexpr uint32_t kRequestCountMax = test::kBatchSize;
constexpr LaneShape kShape = test::kBatchShape;

using BatchTest = test::BatchFixture;

// Goal: what shares a batch does not change a bit of an answer (I2), and costs one kernel call.
// Method: the same requests of two sessions, each alone and then all in one batch.
TEST_F(BatchTest, OneKernelCallGivesTheBitsOfSeparateOnes) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130, 71}, seed);
    ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
    Peer peers[2] = {Connect(corpus, kShape), Connect(corpus, kShape)};
    const auto requests = Mixture(corpus.geometry, peers[0].handles, seed);

    std::vector<std::vector<RawPartial>> alone;
    for (size_t i = 0; i < requests.size(); ++i) {
      Post(peers[i % 2], requests[i]);
      ASSERT_EQ(batch_->Add(Take(peers[i % 2])), Batch::Verdict::kTaken);
      Answer(0);
      const RawReply reply = Reply(peers[i % 2]);
      ASSERT_TRUE(reply.status().ok()) << reply.status();
      alone.push_back(reply.Partials(corpus.geometry.d_v));
    }
    const uint64_t calls = counters_.batch_count.load();
    for (size_t i = 0; i < requests.size(); ++i) Post(peers[i % 2], requests[i]);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(batch_->Add(Take(peers[i % 2])), Batch::Verdict::kTaken);
    }
    Answer(0);
    EXPECT_EQ(counters_.batch_count.load(), calls + 1);
    for (size_t i = 0; i < requests.size(); ++i) {
      const RawReply reply = Reply(peers[i % 2]);
      ASSERT_TRUE(reply.status().ok()) << reply.status();
      EXPECT_EQ(reply.Partials(corpus.geometry.d_v), alone[i]) << "request " << i;
    }
    EXPECT_EQ(table_->stats().pin_count, 0u);
    for (Peer& peer : peers) ASSERT_TRUE(sessions_.Close(peer.session->id).ok());
    for (const test::TestChunk& chunk : corpus.chunks) {
      ASSERT_TRUE(table_->Drop(chunk.info.id).ok());
    }
  }
}

TEST_F(BatchTest, RepliesKeepTheOrderOfRequestsWithErrors) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 7}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, kShape);
  std::mt19937 rng(1);
  RawAttend attend = {.row_count = 2, .rows = test::RandomBf16(2 * 96, rng)};
  attend.pieces = {{.handle = peer.handles[0]}, {.handle = peer.handles[1]}};
  RawAttend stranger = attend;
  stranger.pieces[1].handle = 99;
  const std::vector<uint64_t> ids = {PostProbe(peer), Post(peer, attend), Post(peer, stranger),
                                     PostProbe(peer), Post(peer, attend)};
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  }
  Answer(3);
  for (size_t i = 0; i < ids.size(); ++i) {
    const RawReply reply = Reply(peer);
    EXPECT_EQ(reply.header.request_id, ids[i]);
    EXPECT_EQ(absl::IsNotFound(reply.status()), i == 2);
    if (i == 2) continue;
    EXPECT_EQ(reply.header.queue_depth, 3 + 4 - i);
    EXPECT_EQ(reply.header.epoch, kEpoch.value);
    // Two attends of as much work, in 255ths and rounded up; a probe is none.
    EXPECT_EQ(reply.header.batch_share, i == 1 || i == 4 ? 128 : 0);
  }
  EXPECT_EQ(counters_.errors[static_cast<size_t>(absl::StatusCode::kNotFound)].load(), 1u);
  EXPECT_EQ(counters_.query_row_count.load(), 4u);
  EXPECT_EQ(table_->stats().pin_count, 0u) << "a refused request keeps no pin";
}

// Requesters check their queries; a peer that does not gets an error, and its lane stays.
TEST_F(BatchTest, QueriesThatMayOverflowAreRefused) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 7}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, kShape);
  std::mt19937 rng(1);
  RawAttend attend = {.row_count = 2, .rows = test::RandomBf16(2 * 96, rng)};
  attend.pieces = {{.handle = peer.handles[0]}, {.handle = peer.handles[1]}};
  for (const uint16_t bits : {0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x6001}) {
    RawAttend bad = attend;
    bad.rows[96 + 95] = bits;
    Post(peer, bad);
    Post(peer, attend);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
    Answer(3);
    const absl::Status refused = Reply(peer).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_TRUE(Reply(peer).status().ok());
  }
}

TEST_F(BatchTest, ExpiredWorkIsDroppedBeforeTheKernel) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, kShape);
  std::mt19937 rng(1);
  const RawAttend attend = {
      .row_count = 1, .rows = test::RandomBf16(96, rng), .pieces = {{.handle = peer.handles[0]}}};
  Post(peer, attend);
  const ReadyRequest in_time = Take(peer);
  clock_.Advance(milliseconds(5));
  ASSERT_EQ(batch_->Add(in_time), Batch::Verdict::kTaken);
  Answer(0);
  RawReply reply = Reply(peer);
  ASSERT_TRUE(reply.status().ok());
  EXPECT_EQ(reply.header.queue_ns, 5'000'000u);
  EXPECT_EQ(reply.header.batch_share, 255) << "nothing else was computed with it";

  Post(peer, attend);
  const ReadyRequest late = Take(peer);
  clock_.Advance(microseconds(1'000'000));
  ASSERT_EQ(batch_->Add(late), Batch::Verdict::kTaken);
  Answer(0);
  reply = Reply(peer);
  EXPECT_TRUE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
  EXPECT_EQ(counters_.batch_count.load(), 1u);
  EXPECT_EQ(counters_.expired_count.load(), 1u);
}

// Goal: what ran out of time behind another kernel call is not computed, and its neighbours are.
TEST_F(BatchTest, ExpiredWorkIsDroppedBetweenKernelCalls) {
  Geometry geometries[2] = {test::TestGeometry(), test::TestGeometry()};
  geometries[1].softmax_scale *= 2;
  std::mt19937 rng(1);
  std::vector<Peer> peers;
  for (uint32_t i = 0; i < 2; ++i) {
    const auto corpus = test::MakeTestCorpus(geometries[i], {5, 7}, 1);
    ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
    peers.push_back(Connect(corpus, kShape));
    const RawAttend attend = {
        .row_count = 1,
        .rows = test::RandomBf16(geometries[i].d_qk, rng),
        .pieces = {{.handle = peers[i].handles[0]}, {.handle = peers[i].handles[1]}}};
    Post(peers[i], attend);
    ReadyRequest ready = Take(peers[i]);
    if (i == 1) ready.arrived = ready.arrived + milliseconds(1);
    ASSERT_EQ(batch_->Add(ready), Batch::Verdict::kTaken);
  }
  clock_.Advance(seconds(1));  // the first one's limit
  Answer(0);
  const RawReply late = Reply(peers[0]);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_TRUE(Reply(peers[1]).status().ok());
  EXPECT_EQ(counters_.batch_count.load(), 1u);
  EXPECT_EQ(counters_.expired_count.load(), 1u);
}

// Goal: no request keeps the kernel longer than its limit, however small its frame.
// Method: one list of indices that are all skipped, read by 4096 rows; then one of just
// the limit, which a batch of long requests answers and another one does not take.
TEST_F(BatchTest, ARequestOfTooMuchWorkIsRefused) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(
      corpus, {.slot_count = 2, .request_bytes_max = 8u << 20, .reply_bytes_max = 4u << 20});
  const Geometry& geometry = corpus.geometry;
  const uint64_t row_work = uint64_t{kQueryRowCountMax} * (geometry.d_qk + geometry.d_v);
  RawAttend attend = {.row_count = kQueryRowCountMax};
  attend.rows.resize(size_t{attend.row_count} * geometry.d_qk);
  const auto k = static_cast<uint32_t>(kRequestWorkMax / row_work + 1);
  attend.pieces = {{.handle = peer.handles[0], .k = k, .group_rows = kQueryRowCountMax}};
  attend.pieces[0].indices.emplace(k, -1);
  const auto long_batch = NewBatch({.request_count_max = 1, .work_max = kRequestWorkMax});
  Post(peer, attend);
  ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  EXPECT_EQ(table_->stats().pin_count, 0u);
  Answer(0);
  const RawReply refused = Reply(peer);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_EQ(counters_.batch_count.load(), 0u);

  attend.pieces[0].k = k - 1;
  attend.pieces[0].indices->pop_back();
  Post(peer, attend);
  const ReadyRequest at_limit = Take(peer);
  ASSERT_EQ(batch_->Add(at_limit), Batch::Verdict::kLong);
  EXPECT_EQ(batch_->size(), 0u);
  EXPECT_EQ(table_->stats().pin_count, 0u);
  ASSERT_EQ(long_batch->Add(at_limit), Batch::Verdict::kTaken);
  long_batch->Compute();
  long_batch->Reply(0);
  EXPECT_TRUE(Reply(peer).status().ok());
}

// Goal: a batch of the polling thread keeps it no longer than its limit.
// Method: requests that are each a third of it and a little more: two fit.
TEST_F(BatchTest, AFullBatchIsOneOfEnoughWork) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, kShape);
  const Geometry& geometry = corpus.geometry;
  RawAttend attend = {.row_count = 300};
  attend.rows.resize(size_t{attend.row_count} * geometry.d_qk);
  const auto k = static_cast<uint32_t>(
      kPollingWorkMax / 3 / (uint64_t{attend.row_count} * (geometry.d_qk + geometry.d_v)) + 1);
  attend.pieces = {{.handle = peer.handles[0], .k = k, .group_rows = attend.row_count}};
  attend.pieces[0].indices.emplace(k, -1);
  for (int i = 0; i < 3; ++i) Post(peer, attend);
  ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  EXPECT_GT(batch_->work(), kPollingWorkMax / 2);
  const ReadyRequest third = Take(peer);
  EXPECT_EQ(batch_->Add(third), Batch::Verdict::kFull);
  Answer(1);
  ASSERT_EQ(batch_->Add(third), Batch::Verdict::kTaken);
  Answer(0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Reply(peer).status().ok());
}

TEST_F(BatchTest, AFullBatchLeavesTheRestAndAMalformedRequestFailsAlone) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  const LaneShape shape = {.slot_count = 32, .request_bytes_max = 4096, .reply_bytes_max = 4096};
  Peer peer = Connect(corpus, shape);
  Peer broken = Connect(corpus, shape);
  for (uint32_t i = 0; i <= kRequestCountMax; ++i) PostProbe(peer);
  for (uint32_t i = 0; i + 1 < kRequestCountMax; ++i) {
    ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  }
  const uint32_t slot = *broken.request->Acquire();
  RequestHeader bodiless = Header(broken);
  bodiless.kind = WireKind::kAttend;
  bodiless.row_count = bodiless.segment_count = bodiless.piece_count = 1;
  EncodeHeader(bodiless, broken.request->request(slot));
  ASSERT_TRUE(broken.request->Post(slot, sizeof(bodiless)).ok());
  EXPECT_EQ(batch_->Add(Take(broken)), Batch::Verdict::kMalformed);
  EXPECT_TRUE(absl::IsInvalidArgument(batch_->malformed()));
  ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  const ReadyRequest last = Take(peer);
  EXPECT_EQ(batch_->Add(last), Batch::Verdict::kFull);
  Answer(1);
  EXPECT_EQ(batch_->size(), 0u);
  ASSERT_EQ(batch_->Add(last), Batch::Verdict::kTaken);
  Answer(0);
  for (uint32_t i = 0; i <= kRequestCountMax; ++i) EXPECT_TRUE(Reply(peer).status().ok());
}

// Goal: a request whose partials do not fit the scratch is computed in rounds, and is right.
// Method: 200 chunks of one token, 4096 rows: 200 x 1.08 MB of partials, where the scratch holds
// 134 MB: 2,046 rows of them. One row in 97 is compared with the fp64 reference over all 200
// tokens.
TEST_F(BatchTest, ManyLargePartialsAreMergedInRounds) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(/*layers=*/1),
                                           std::vector<uint32_t>(200, 1), /*seed=*/3);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  const uint32_t d_qk = corpus.geometry.d_qk;
  const uint32_t d_v = corpus.geometry.d_v;
  Peer peer = Connect(
      corpus, {.slot_count = 4, .request_bytes_max = 2u << 20, .reply_bytes_max = 2u << 20});
  std::mt19937 rng(3);
  RawAttend attend = {.row_count = kQueryRowCountMax, .flags = kFlagPartialF32};
  attend.rows = test::RandomBf16(size_t{attend.row_count} * d_qk, rng);
  for (const uint32_t handle : peer.handles) attend.pieces.push_back({.handle = handle});
  RawAttend small = attend;
  small.row_count = 1;
  small.rows.resize(d_qk);

  // It is the only attend request of its batch, whichever came first.
  Post(peer, small);
  Post(peer, attend);
  Post(peer, small);
  ASSERT_EQ(batch_->Add(Take(peer)), Batch::Verdict::kTaken);
  const ReadyRequest large = Take(peer);
  EXPECT_EQ(batch_->Add(large), Batch::Verdict::kFull);
  Answer(2);
  ASSERT_EQ(batch_->Add(large), Batch::Verdict::kTaken);
  const ReadyRequest after = Take(peer);
  EXPECT_EQ(batch_->Add(after), Batch::Verdict::kFull);
  const uint64_t calls = counters_.batch_count.load();
  Answer(1);
  EXPECT_EQ(counters_.batch_count.load(), calls + 3) << "2,046 rows, as many, and the last 4";
  ASSERT_EQ(batch_->Add(after), Batch::Verdict::kTaken);
  Answer(0);
  const auto before_partials = Reply(peer).Partials(d_v);
  const RawReply reply = Reply(peer);
  ASSERT_TRUE(reply.status().ok()) << reply.status();
  EXPECT_EQ(Reply(peer).Partials(d_v), before_partials);

  const RawPartial partial = reply.Partials(d_v).at(0);
  const std::vector<uint16_t> rows = corpus.Rows(0);
  for (uint32_t row = 0; row < attend.row_count; row += 97) {
    RawAttend one = {.row_count = 1};
    one.rows.assign(attend.rows.begin() + row * d_qk, attend.rows.begin() + (row + 1) * d_qk);
    const auto expected = test::ReferencePiece(corpus.geometry, one, {}, rows).at(0);
    for (uint32_t d = 0; d < d_v; ++d) {
      ASSERT_NEAR(partial.o[row * d_v + d], expected.o[d], 4e-6) << "row " << row;
    }
    ASSERT_NEAR(partial.m[row], expected.m, 1e-5);
    ASSERT_NEAR(partial.l[row], expected.l, 1e-5 * expected.l);
  }
}

TEST_F(BatchTest, AllocatesNothingOnceWarm) {
  if (!kCountsAllocations)
    GTEST_SKIP()
        << "the sanitizer owns the allocator; to run it: tests/run.sh, which has no sanitizer";
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130, 71}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, kShape);
  const auto requests = Mixture(corpus.geometry, peer.handles, 1);
  for (int round = 0; round < 3; ++round) {
    for (const RawAttend& request : requests) Post(peer, request);
    PostProbe(peer);
    std::vector<ReadyRequest> ready;
    for (size_t i = 0; i < requests.size() + 1; ++i) ready.push_back(Take(peer));
    const uint64_t before = allocation_count;
    for (const ReadyRequest& request : ready) {
      ASSERT_EQ(batch_->Add(request), Batch::Verdict::kTaken);
    }
    Answer(0);
    const uint64_t allocations = allocation_count - before;
    if (round > 0) {
      EXPECT_EQ(allocations, 0u) << "round " << round;
    }
    for (size_t i = 0; i < ready.size(); ++i) ASSERT_TRUE(Reply(peer).status().ok());
  }
}

}  // namespace
}  // namespace ckv
