// Goal: the prefetcher prefetches a range once routing has lost the prefetch's price, keeps cached
// what saves time, learns from contexts that close, and never delays a call. Method: contexts that
// count calls by hand; costs and prefetches that the test sets; a clock that moves only when set.

#include "client/prefetch/prefetcher.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/prefetch/prefetcher_fixture.h"

namespace ckv {
namespace {

TEST(PrefetchFlows, AreTheElbowOfTheBestLaneToAnotherHost) {
  EXPECT_EQ(PrefetchFlows(nullptr, "a host"), kPrefetchFlowsDefault);
  Profile profile;
  profile.subject = SubjectOf(test::TestGeometry(), "a host", {}, true);
  EXPECT_EQ(PrefetchFlows(&profile, "a host"), kPrefetchFlowsDefault);
  const auto lane = [](const char* fabric, uint32_t elbow) {
    return LaneProfile{.holder = "a", .fabric = fabric, .constants = {}, .fetch_elbow = elbow};
  };
  profile.lanes = {lane("shm", 16), lane("tcp", 0)};
  EXPECT_EQ(PrefetchFlows(&profile, "a host"), kPrefetchFlowsDefault);
  profile.lanes[1].fetch_elbow = 1;
  EXPECT_EQ(PrefetchFlows(&profile, "a host"), 1u);
  profile.lanes.push_back(lane("tcp", 4));
  EXPECT_EQ(PrefetchFlows(&profile, "a host"), 4u);
  EXPECT_EQ(PrefetchFlows(&profile, "another"), kPrefetchFlowsDefault);
  profile.lanes[2].fetch_elbow = 16;
  EXPECT_EQ(PrefetchFlows(&profile, "a host"), kPrefetchFlowsMax);
}

TEST_F(PrefetcherTest, RoutesUntilRoutingHasCostThePrefetch) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 9);
  EXPECT_EQ(prefetches_, 0);
  EXPECT_EQ(CachedCount(*context), 0u);
  Step(*context, 1);
  EXPECT_EQ(prefetches_, 1);
  ASSERT_EQ(CachedCount(*context), 1u);
  EXPECT_EQ(uint8_t((*context->cached())[0]->layer(layers_ - 1)[0]), 1);
  EXPECT_EQ(measured_, 0) << "all constants were known";
  const PrefetcherStats stats = prefetcher_->stats();
  EXPECT_EQ(stats.local_cache_chunks, 1u);
  EXPECT_EQ(stats.local_cache_bytes, chunk_bytes_);
  EXPECT_NEAR(stats.routed_us, 1000, 1);
  EXPECT_NEAR(stats.prefetched_us, 1000, 1);
}

TEST_F(PrefetcherTest, AHintOfManyStepsPrefetchesAtOnceAndOfFewNever) {
  Start(10 * chunk_bytes_);
  ContextExpectation hundred, two;
  hundred.steps = 100;
  two.steps = 2;
  const auto many = Open({0}, hundred), few = Open({1}, two);
  many->CountCall({16, 16, 0, own_count_, f32_, routed_us_});
  prefetcher_->AwaitIdle();
  EXPECT_EQ(CachedCount(*many), 1u);
  Step(*few, 2);
  EXPECT_EQ(CachedCount(*few), 0u);
}

TEST_F(PrefetcherTest, LearnsFromContextsThatClose) {
  Start(10 * chunk_bytes_);
  for (int i = 0; i < 60; ++i) UseOnce(uint32_t(i % 2), 40);
  // Every use has been worth a prefetch, so the next one is prefetched at its first call.
  const auto context = Open({4});
  context->CountCall({16, 16, 0, own_count_, f32_, routed_us_});
  prefetcher_->AwaitIdle();
  EXPECT_EQ(CachedCount(*context), 1u);
}

// The model predicts that routing is free, and calls show that a step of them takes 110 us.
TEST_F(PrefetcherTest, PrefersCallsOverTheModel) {
  cost_ = Cost(10, 10, 1000);
  Start(10 * chunk_bytes_);
  const auto modelled = Open({0});
  Step(*modelled, 50);
  EXPECT_EQ(prefetches_, 0);
  routed_us_ = 110.0 / layers_;
  const auto context = Open({1});
  Step(*context, 50);
  EXPECT_EQ(CachedCount(*context), 1u);
  EXPECT_EQ(prefetches_, 1);
}

TEST_F(PrefetcherTest, NearRowsServeTheNextContextFromItsFirstCall) {
  Start(10 * chunk_bytes_);
  UseOnce(0, 12);
  EXPECT_EQ(prefetches_, 1);
  const auto next = Open({0, 1});
  EXPECT_EQ(CachedCount(*next), 1u);
  EXPECT_EQ(prefetches_, 1);
}

TEST_F(PrefetcherTest, PrefetchesNothingIfRoutingIsFaster) {
  cost_ = Cost(10, 30, 1);
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 50);
  EXPECT_EQ(prefetches_, 0);
}

// Own rows are attended during the round trip, but not during the attend of cached rows.
TEST_F(PrefetcherTest, PrefetchesNothingIfOwnRowsTakeAsLong) {
  cost_ = Cost(110, 100, 1);
  own_count_ = kPrefetcherTokens;
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 50);
  EXPECT_EQ(prefetches_, 0);
  own_count_ = 1;
  const auto few = Open({1});
  Step(*few, 50);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_EQ(CachedCount(*few), 1u);
  // Cached rows are not used while they are slower, and are used again later.
  own_count_ = kPrefetcherTokens;
  Step(*few, 200);
  EXPECT_EQ(CachedCount(*few), 0u);
  own_count_ = 0;
  Step(*few, 1000);
  EXPECT_EQ(CachedCount(*few), 1u);
  EXPECT_EQ(prefetches_, 1);
}

TEST_F(PrefetcherTest, WhileAConstantIsUnknownTheContextIsRouted) {
  cost_known_ = false;
  measure_status_ = absl::UnavailableError("the holder does not answer");
  measure_time_ = std::chrono::seconds(1);
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 200);
  EXPECT_EQ(prefetches_, 0);
  EXPECT_EQ(measured_, 1) << "what takes long is not measured again soon";
  EXPECT_EQ(Decisions(Primitive::kRoute, PrefetchReason::kUnknown), 1u);
  clock_.Advance(std::chrono::seconds(StepCosts::kMeasureShare));
  measure_status_ = absl::OkStatus();
  Step(*context, 400);
  EXPECT_EQ(measured_, 2);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_EQ(Decisions(Primitive::kFetch, PrefetchReason::kLostEnough), 1u);
}

TEST_F(PrefetcherTest, RemeasuresConstantsThatCallsDoNotRenew) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 2);
  EXPECT_EQ(measured_, 0);
  clock_.Advance(StepCosts::kMeasuredAgeMax + std::chrono::seconds(1));
  Step(*context, 5);
  EXPECT_EQ(measured_, 1);
}

TEST_F(PrefetcherTest, APrefetchThatFailsIsNotRepeatedAtOnce) {
  fetch_status_ = absl::UnavailableError("the holder is gone");
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 12);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_EQ(prefetcher_->stats().prefetches_failed, 1u);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 0u);
  EXPECT_EQ(CachedCount(*context), 0u);
}

TEST_F(PrefetcherTest, PrefetchesForTheRequestingContextAndNotForAnIdleOne) {
  fetch_status_ = absl::UnavailableError("the holder is gone");
  Start(10 * chunk_bytes_);
  const auto idle = Open({0}), busy = Open({0});
  Step(*busy, 15);
  EXPECT_EQ(prefetches_, 1) << "a prefetch that failed is not repeated at once";
  EXPECT_GT(prefetcher_->stats().prefetched_us, 0);
}

// A range whose chunks were cached as parts of other ranges is cached for all contexts that attend
// it.
TEST_F(PrefetcherTest, ChunksOfOtherRunsMakeARunNear) {
  for (ChunkPlacement& chunk : corpus_->chunks) chunk.token_count = 512;  // ranges of 4
  Start(10 * chunk_bytes_);
  const auto whole = Open({0, 1, 2, 3}), first = Open({0, 1}), second = Open({2, 3});
  Step(*first, 30);
  Step(*second, 30);
  EXPECT_EQ(CachedCount(*whole), 0u);
  const int prefetches = prefetches_;
  auto again = Open({0, 1, 2, 3});
  EXPECT_EQ(CachedCount(*again), 4u);
  EXPECT_EQ(CachedCount(*whole), 4u);
  EXPECT_EQ(prefetches_, prefetches);
  again->Close();
  whole->Close();
  prefetcher_->AwaitIdle();
  EXPECT_EQ(prefetcher_->stats().local_cache_chunks, 4u) << "those that were prefetched stay";
}

TEST_F(PrefetcherTest, EvictsNothingWithoutNeed) {
  Start(2 * chunk_bytes_);
  const auto small = Open({0}), other = Open({1});
  Step(*small, 11);
  Step(*other, 11);
  // Room for two ranges, both used by contexts that save more than a range of twice the size
  // promises.
  for (ChunkPlacement& chunk : corpus_->chunks) chunk.token_count = 3 * kPrefetcherTokens;
  const auto large = Open({5});  // larger than the local row cache
  Step(*large, 30);
  EXPECT_EQ(prefetcher_->stats().evictions, 0u);
  EXPECT_EQ(CachedCount(*small) + CachedCount(*other), 2u);
}

TEST_F(PrefetcherTest, RunsThatSaveMorePushOutOthers) {
  Start(chunk_bytes_);
  const auto first = Open({0});
  Step(*first, 11);
  ASSERT_EQ(CachedCount(*first), 1u);
  // The first range saves nothing for a long time; the second loses all the while.
  const auto second = Open({1});
  clock_.Advance(std::chrono::seconds(1));
  Step(*second, 15);
  EXPECT_EQ(CachedCount(*second), 1u);
  EXPECT_EQ(CachedCount(*first), 0u) << "its calls are routed again";
  EXPECT_EQ(prefetcher_->stats().evictions, 1u);
  EXPECT_LE(prefetcher_->stats().local_cache_bytes, chunk_bytes_);
}

TEST_F(PrefetcherTest, RowsOfACallStayUntilItEnds) {
  Start(chunk_bytes_);
  const auto first = Open({0});
  Step(*first, 11);
  const auto in_use = first->cached();
  const auto second = Open({1});
  clock_.Advance(std::chrono::seconds(1));
  Step(*second, 15);
  EXPECT_EQ(CachedCount(*second), 0u) << "there is no room while the call goes on";
  EXPECT_EQ(uint8_t((*in_use)[0]->layer(0)[0]), 1);
}

TEST_F(PrefetcherTest, ReportsWhetherCachedRowsHaveTheBitsOfTheirHolders) {
  Start(10 * chunk_bytes_);
  const auto same = Open({0});
  Step(*same, 11);
  EXPECT_TRUE(same->cached_same_bits());
  same_target_ = false;
  const auto other = Open({1});
  Step(*other, 11);
  EXPECT_EQ(CachedCount(*other), 1u);
  EXPECT_FALSE(other->cached_same_bits());
  f32_ = true;
  const auto exact = Open({2});
  Step(*exact, 50);
  EXPECT_EQ(CachedCount(*exact), 0u) << "its calls could not use them";
}

TEST_F(PrefetcherTest, AContextMayOutliveThePrefetcher) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 11);
  prefetcher_.reset();
  context->CountCall({16, 16, 0, own_count_, f32_, routed_us_});
  context->Close();
}

}  // namespace
}  // namespace ckv
