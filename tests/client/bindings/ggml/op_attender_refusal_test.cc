// Goal: an op whose chunks cannot be attended fails with the reason. A later try gives the bits of
// an op that did not fail. Method: real holders in this process (op_attender_fixture.h), stopped,
// moved and published again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/bindings/ggml/op_attender.h"
#include "tests/client/bindings/ggml/op_attender_fixture.h"

namespace ckv::test {
namespace {

using testing::HasSubstr;

class OpAttenderRefusals : public OpAttenderTest {
 protected:
  OpAttenderRefusals() {
    cache_.Put(0, 0, To("a", 0, 3, 0), 0);
    cache_.Show(0, 0, 0, 4);
  }
  absl::Status Attend() { return attender_->Attend(cache_.Op(0)); }

  EngineCache cache_{1, 8, 1, kHeads, 8};
};

TEST_F(OpAttenderRefusals, AGeometryThatIsNotTheCorpus) {
  ASSERT_TRUE(Attend().ok());
  MlaOp op = cache_.Op(0);
  op.softmax_scale *= 1.0001f;
  absl::Status status = attender_->Attend(op);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("corpus 'a': its softmax_scale is 0.125"));
  Start();  // also if that is the first op
  EXPECT_TRUE(absl::IsFailedPrecondition(attender_->Attend(op)));
  op = cache_.Op(0);
  op.d_v -= 2;
  status = attender_->Attend(op);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("192 values, 128 of them latent"));
  cache_.Put(0, 0, To("a", 0, 3, 0), 3);
  status = attender_->Attend(cache_.Op(3));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("it has 3 layers"));
}

TEST_F(OpAttenderRefusals, WidthsThatNoKernelHas) {
  for (const auto& [d_qk, d_v] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2, 2}, {191, 128}, {1026, 128}, {192, 0}, {192, 194}}) {
    MlaOp op = cache_.Op(0);
    op.d_qk = d_qk;
    op.d_v = d_v;
    EXPECT_TRUE(absl::IsInvalidArgument(attender_->Attend(op))) << d_qk << " " << d_v;
  }
  MlaOp op = cache_.Op(0);
  op.head_count = OpAttender::kRowsAtOnceMax + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(attender_->Attend(op)));
}

TEST_F(OpAttenderRefusals, AnotherTenant) {
  CellReference reference = To("a", 0, 3, 0);
  reference.tenant = "x";
  cache_.Put(0, 0, reference, 0);
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("set CKV_GGML_TENANT"));
  Start({.contexts = {.tenant = "x"}});
  EXPECT_TRUE(absl::IsNotFound(Attend()));  // its tenant has no such corpus
}

TEST_F(OpAttenderRefusals, ACorpusThatIsNotThere) {
  CellReference reference = To("a", 0, 3, 0);
  reference.corpus = "c";
  cache_.Put(0, 0, reference, 0);
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("corpus 'c'"));
}

// The reference identifies the chunks that it was made from, not the name.
TEST_F(OpAttenderRefusals, ACorpusThatWasPublishedAgain) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  const TestCorpus other = MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 99);
  cluster_.fleet.Load("a", other, {0, 1, 2});
  Start();
  ASSERT_TRUE(Attend().ok());  // the requester keeps the corpus, and its holders the chunks
  EXPECT_EQ(cache_.out, before);
  cluster_.requester->Invalidate("a");
  Start();
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("ckvctl attach --corpus a"));
  // A corpus with more chunks after those of the reference is as good as before.
  TestCorpus longer = a_;
  longer.chunks.push_back(other.chunks[2]);
  cluster_.fleet.Load("a", longer, {0, 1, 2, 2});
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  cluster_.fleet.Edit("a", [](Corpus& corpus) { corpus.chunks.resize(2); });
  cluster_.requester->Invalidate("a");
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(Attend()));
}

// There is no digest, so the first use determines the chunks. All contexts of a process agree.
TEST_F(OpAttenderRefusals, ACorpusForAllThatWasPublishedAgain) {
  Attached all;
  all.corpus = "a";
  OpAttender::Options options;
  options.otherwise = std::make_shared<const Attached>(all);
  EngineCache cache(1, 8, 1, kHeads, 8);
  cache.Show(0, 0, 1, 3);
  const auto attend = [&] { return attender_->Attend(cache.Op(0)); };
  Start(options);
  ASSERT_TRUE(attend().ok());
  const std::vector<float> before = cache.out;
  cluster_.fleet.Load("a", MakeTestCorpus(EngineGeometry(), {40, 9, 131}, 99), {0, 1, 2});
  cluster_.requester->Invalidate("a");
  Start(options);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = attend();
    ASSERT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("start the engine again"));
  }
  cluster_.fleet.Load("a", a_, {0, 1, 2});
  cluster_.requester->Invalidate("a");
  ASSERT_TRUE(attend().ok());
  EXPECT_EQ(cache.out, before);
}

// A reference to a corpus that the requester has not resolved yet.
TEST_F(OpAttenderRefusals, ACorpusThatWasPublishedAgainBeforeTheReference) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.Load("a", MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 99), {0, 1, 2});
  auto now = cluster_.fleet.GetCorpus("a", "", Soon());
  ASSERT_TRUE(now.ok());
  cache_.Put(0, 0, ReferenceTo(*now, 0, 3, 0), 0);
  ASSERT_TRUE(Attend().ok());
  EXPECT_NE(cache_.out, before);
}

TEST_F(OpAttenderRefusals, AHolderThatIsGoneAndReturns) {
  OpCounters counters;
  Start({.timeout = std::chrono::seconds(2), .counters = &counters});
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.StopHolder(1);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = Attend();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  cluster_.fleet.StartHolder(1);
  cluster_.fleet.Load("a", a_, {0, 1, 2});
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  // With a second holder of the chunks: no error, the same bits.
  cluster_.fleet.Lease("a", a_, 2, {1});
  cluster_.requester->Invalidate("a");
  Start({.counters = &counters});
  ASSERT_TRUE(Attend().ok());
  cluster_.fleet.StopHolder(1);
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  EXPECT_EQ(counters.ops, 6u);
  EXPECT_EQ(counters.ops_routed, 6u);
  EXPECT_EQ(counters.ops_failed, 2u);
  EXPECT_EQ(counters.rows_routed, 6u * kHeads);
  EXPECT_GT(counters.received_bytes, 4u * kHeads * 128 * sizeof(float));
}

// The chunks moved to another holder: the corpus is resolved again within the op.
TEST_F(OpAttenderRefusals, ChunksThatMoved) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.StopHolder(1);
  cluster_.fleet.StartHolder(1);
  cluster_.fleet.Load("a", a_, {0, 0, 2});  // holder 1 has nothing any more
  const absl::Status status = Attend();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cache_.out, before);
}

TEST_F(OpAttenderRefusals, NoRequester) {
  OpAttender attender(
      []() -> absl::StatusOr<Requester*> {
        return absl::InvalidArgumentError("CKV_DIRECTORY is 'x'");
      },
      {});
  EXPECT_TRUE(absl::IsInvalidArgument(attender.Attend(cache_.Op(0))));
  cache_.mask.assign(cache_.mask.size(), EngineCache::kHidden);
  cache_.Show(0, 0, 1, 4);
  EXPECT_TRUE(attender.Attend(cache_.Op(0)).ok());  // needs none
}

}  // namespace
}  // namespace ckv::test
