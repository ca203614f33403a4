// Goal: an estimate is the decision that Explain makes, for each group of chunks with the same
// holders, from cached constants. It queries no holder, and reports a constant that is unknown.
// Method: real holders in this process.

#include "client/estimate.h"

#include <memory>
#include <vector>

#include "client/context.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Cluster;
using test::MakeTestCorpus;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

class QuoteTest : public testing::Test {
 protected:
  QuoteTest() {
    cluster_ = std::make_unique<Cluster>(fabric_.get(), 2, SmallShape(), nullptr, 16,
                                         /*local_cache_bytes=*/uint64_t{64} << 20);
    // Chunks 0, 1 and 3 are on one holder.
    cluster_->fleet.Load("c", MakeTestCorpus(TestGeometry(), {100, 60, 70, 20}, 3), {0, 0, 1, 0});
    corpus_ = cluster_->Resolve();
  }
  absl::StatusOr<std::vector<GroupEstimate>> Estimate(uint32_t steps = 1,
                                                      std::vector<uint32_t> chunks = {}) {
    return cluster_->requester->Estimate(
        {.corpus = corpus_, .chunks = chunks, .query_rows = 16, .steps = steps});
  }
  absl::StatusOr<Explanation> Explain(uint32_t steps, std::vector<uint32_t> chunks = {}) {
    ExplainCall call;
    call.corpus = corpus_;
    call.chunks = std::move(chunks);
    call.query_rows = 16;
    call.steps = steps;
    call.deadline = Soon();
    return cluster_->requester->Explain(call);
  }

  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  std::unique_ptr<Cluster> cluster_;
  std::shared_ptr<const Corpus> corpus_;
};

TEST_F(QuoteTest, ReportsUnknownConstantsAndMakesNoCalls) {
  cluster_->fleet.StopHolder(0);
  cluster_->fleet.StopHolder(1);
  const auto estimates = Estimate();
  ASSERT_TRUE(estimates.ok()) << estimates.status();
  ASSERT_EQ(estimates->size(), 2u);
  EXPECT_EQ((*estimates)[0].first_chunk, 0u);
  EXPECT_EQ((*estimates)[0].chunk_count, 3u);
  EXPECT_EQ((*estimates)[0].tokens, 180u);
  EXPECT_EQ((*estimates)[1].first_chunk, 2u);
  EXPECT_EQ((*estimates)[1].tokens, 70u);
  for (const GroupEstimate& estimate : *estimates) {
    EXPECT_FALSE(estimate.decision.choice.has_value());
    for (const CostBreakdown& cost : estimate.decision.costs)
      EXPECT_NE(std::string(cost.why_not).find("measured yet"), std::string::npos);
  }
}

TEST_F(QuoteTest, IsTheDecisionThatExplainMakes) {
  ASSERT_TRUE(Explain(1).ok());
  for (const uint32_t steps : {1u, 100000u}) {
    const auto estimates = Estimate(steps, {2});
    const auto explained = Explain(steps, {2});
    ASSERT_TRUE(estimates.ok() && explained.ok());
    ASSERT_EQ(estimates->size(), 1u);
    const Decision& quoted = (*estimates)[0].decision;
    ASSERT_TRUE(quoted.choice.has_value());
    // Live calls move the constants a little.
    const Decision& decided = explained->decision;
    EXPECT_NEAR(
        quoted.cost(Primitive::kFetch).compute_us / decided.cost(Primitive::kFetch).compute_us, 1,
        1e-6);
    EXPECT_EQ(quoted.fetch_bytes, decided.fetch_bytes);
    EXPECT_TRUE(quoted.cost(Primitive::kRoute).offered);
    EXPECT_FALSE(quoted.cost(Primitive::kLocal).offered);
  }
}

TEST_F(QuoteTest, ReportsCachedRowsAndChargesNoFetchForThem) {
  ASSERT_TRUE(Explain(1).ok());
  const std::vector<ChunkUse> uses = {{0, 0}, {1, 0}, {3, 0}};
  const ContextPart part = {corpus_, uses};
  const auto cached =
      cluster_->requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
  ASSERT_TRUE(cached.ok()) << cached.status();
  const auto estimates = Estimate();
  ASSERT_TRUE(estimates.ok());
  EXPECT_EQ((*estimates)[0].cached_tokens, 180u);
  EXPECT_EQ((*estimates)[0].decision.cost(Primitive::kFetch).transfer_us, 0);
  EXPECT_EQ((*estimates)[1].cached_tokens, 0u);
  EXPECT_GT((*estimates)[1].decision.cost(Primitive::kFetch).transfer_us, 0);
  const auto explained = Explain(1);
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(explained->input.cached_tokens, 180u);
}

TEST_F(QuoteTest, RefusesWhatCannotBe) {
  EXPECT_EQ(Estimate(1, {4}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster_->requester->Estimate({.corpus = corpus_, .query_rows = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster_->requester->Estimate({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(QuoteTest, AFetchToOtherPositionsCostsTheSplice) {
  ASSERT_TRUE(Explain(1).ok());
  for (const bool spliced : {false, true}) {
    ExplainCall call;
    call.corpus = corpus_;
    call.query_rows = 16;
    call.spliced = spliced;
    call.deadline = Soon();
    const auto explained = cluster_->requester->Explain(call);
    ASSERT_TRUE(explained.ok()) << explained.status();
    EXPECT_EQ(explained->decision.cost(Primitive::kFetch).splice_us > 0, spliced);
    const auto estimates =
        cluster_->requester->Estimate({.corpus = corpus_, .query_rows = 16, .spliced = spliced});
    ASSERT_TRUE(estimates.ok()) << estimates.status();
    for (const GroupEstimate& estimate : *estimates)
      EXPECT_EQ(estimate.decision.cost(Primitive::kFetch).splice_us > 0, spliced);
  }
}

}  // namespace
}  // namespace ckv
