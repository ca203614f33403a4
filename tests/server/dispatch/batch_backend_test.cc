// Goal: a batch computes through its backend and by no way around it, waits where it must, and
// answers for a backend that fails.
// Method: a backend that does nothing before it is waited for, and lets no other code touch the
// partials that are merged here. It is compared with this processor's.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/kernel_target.h"
#include "server/batch/batch.h"
#include "server/holder/holder.h"
#include "tests/server/dispatch/batch_fixture.h"
#include "tests/support/deferred_backend.h"

namespace ckv {
namespace {

using test::DeferredBackend;
using test::RawAttend;
using test::RawReply;
using testing::HasSubstr;

class BatchBackendTest : public test::BatchFixture {
 protected:
  // The replies to all requests, computed together.
  std::vector<RawReply> Answers(Batch& batch, Peer& peer, const std::vector<RawAttend>& requests) {
    for (const RawAttend& request : requests) Post(peer, request);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(batch.Add(Take(peer)), Batch::Verdict::kTaken);
    batch.Compute();
    batch.Reply(0);
    std::vector<RawReply> replies;
    for (size_t i = 0; i < requests.size(); ++i) replies.push_back(Reply(peer));
    return replies;
  }

  DeferredBackend device_{"SVE2"};
};

TEST_F(BatchBackendTest, AnswersAreTheBackendsAndNameIt) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130, 71}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, test::kBatchShape);
  const auto on_device = NewBatch({.request_count_max = test::kBatchSize}, device_);
  for (uint32_t seed = 1; seed < 4; ++seed) {
    const auto requests = test::Mixture(corpus.geometry, peer.handles, seed);
    const auto want = Answers(*batch_, peer, requests);
    const auto got = Answers(*on_device, peer, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(got[i].status().ok()) << got[i].status();
      EXPECT_EQ(got[i].body, want[i].body) << "request " << i;
      EXPECT_EQ(got[i].header.kernel_target, KernelTargetId::kSve2);
    }
  }
  // One operation for what attends alike, one for all merges.
  EXPECT_EQ(device_.attend_count(), 3u);
  EXPECT_EQ(device_.merge_count(), 3u);
}

// As in BatchTest.ManyLargePartialsAreMergedInRounds: the scratch is used again while work that
// reads it is still pending.
TEST_F(BatchBackendTest, RoundsShareTheScratchInOrder) {
  const auto corpus =
      test::MakeTestCorpus(test::TestGeometry(/*layers=*/1), std::vector<uint32_t>(200, 1), 3);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(
      corpus, {.slot_count = 4, .request_bytes_max = 2u << 20, .reply_bytes_max = 2u << 20});
  std::mt19937 rng(3);
  RawAttend attend = {.row_count = kQueryRowCountMax, .flags = kFlagPartialF32};
  attend.rows = test::RandomBf16(size_t{attend.row_count} * corpus.geometry.d_qk, rng);
  for (const uint32_t handle : peer.handles) attend.pieces.push_back({.handle = handle});
  const auto on_device = NewBatch({.request_count_max = test::kBatchSize}, device_);
  const auto want = Answers(*batch_, peer, {attend});
  const auto got = Answers(*on_device, peer, {attend});
  ASSERT_TRUE(got[0].status().ok()) << got[0].status();
  EXPECT_EQ(got[0].body, want[0].body);
  EXPECT_EQ(device_.attend_count(), 3u);
  EXPECT_EQ(device_.merge_count(), 3u);
}

// A long request reads all of its rows once a slice. So slices are whole blocks of the kernel, or
// a part of one where more would keep the thread too long. None has less than a vector.
TEST_F(BatchBackendTest, LongRequestsAreCutIntoWholeBlocks) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(
      corpus, {.slot_count = 2, .request_bytes_max = 32u << 20, .reply_bytes_max = 1u << 20});
  const uint64_t width = corpus.geometry.d_qk + corpus.geometry.d_v;
  const auto on_device = NewBatch({.request_count_max = 1, .work_max = kRequestWorkMax}, device_);
  std::vector<uint32_t> rows;
  device_.OnAttend([&](std::span<const AttentionPiece> pieces) {
    for (const AttentionPiece& piece : pieces) rows.push_back(piece.q.count);
  });
  const auto slices = [&](uint32_t row_count, uint64_t rows_a_slice) {
    RawAttend attend = {.row_count = row_count};
    attend.rows.resize(size_t{row_count} * corpus.geometry.d_qk);
    // Selections of nothing cost no time, and count as work like others.
    const auto k = static_cast<uint32_t>(4 * kPollingWorkMax / (rows_a_slice * width));
    attend.pieces = {{.handle = peer.handles[0], .k = k, .group_rows = row_count}};
    attend.pieces[0].indices.emplace(k, -1);
    rows.clear();
    const auto got = Answers(*on_device, peer, {attend});
    EXPECT_TRUE(got[0].status().ok()) << got[0].status();
    return rows;
  };
  using testing::ElementsAre;
  EXPECT_THAT(slices(256, 300), ElementsAre(256));
  EXPECT_THAT(slices(300, 290), ElementsAre(256, 44));
  EXPECT_THAT(slices(256, 240), ElementsAre(128, 128));
  EXPECT_THAT(slices(128, 100), ElementsAre(64, 64));
  EXPECT_THAT(slices(40, 17), ElementsAre(16, 16, 8));
  EXPECT_THAT(slices(40, 9), ElementsAre(16, 16, 8));
}

// Requesters then query other holders. Probes, and requests refused for another reason, are
// answered as usual.
TEST_F(BatchBackendTest, ABackendThatFailsIsUnavailable) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 130}, 1);
  ASSERT_TRUE(test::PutCorpus(*table_, corpus).ok());
  Peer peer = Connect(corpus, test::kBatchShape);
  const auto requests = test::Mixture(corpus.geometry, peer.handles, 1);
  for (const auto failure :
       {DeferredBackend::Failure::kAtCall, DeferredBackend::Failure::kAtWait}) {
    const auto on_device = NewBatch({.request_count_max = test::kBatchSize}, device_);
    device_.Fail(failure);
    RawAttend unknown = requests[0];
    unknown.pieces[0].handle = 12345;
    Post(peer, requests[0]);
    Post(peer, unknown);
    PostProbe(peer);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(on_device->Add(Take(peer)), Batch::Verdict::kTaken);
    on_device->Compute();
    on_device->Reply(0);
    const absl::Status failed = Reply(peer).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(failed.message()), HasSubstr("kernels of SVE2 failed"));
    EXPECT_EQ(Reply(peer).status().code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(Reply(peer).status().ok());
    EXPECT_EQ(table_->stats().pin_count, 0u);
    // A stream that failed stays so.
    for (const RawReply& reply : Answers(*on_device, peer, requests))
      EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(BatchBackendTest, AHolderNeedsABackendThatReachesItsChunks) {
  BackendReach reach = DeferredBackend::ReachAll();
  reach.rows = {MemoryKind::kDevice};
  DeferredBackend blind(reach);
  HolderOptions options;
  options.fabrics = {fabric_.get()};
  options.backend = &blind;
  const absl::Status refused = Holder::Start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("memory of the host, pinned or not"));
  options.backend = &device_;
  device_.FailStreams(true);
  EXPECT_EQ(Holder::Start(options).status().code(), absl::StatusCode::kResourceExhausted);
  device_.FailStreams(false);
  const auto holder = Holder::Start(options);
  ASSERT_TRUE(holder.ok()) << holder.status();
  EXPECT_EQ((*holder)->kernel_target(), "SVE2");
}

TEST_F(BatchBackendTest, WithoutAStreamThereIsNoBatch) {
  device_.FailStreams(true);
  EXPECT_EQ(BatchTools::Make(device_, 1).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ckv
