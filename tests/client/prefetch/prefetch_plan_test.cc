// Goal: the plan queues the ranges that have lost their price, gives each job what is missing, and
// publishes its rows or queues it again; the queue keeps to the limit of each source. Method: one
// thread that takes the roles of the deciding thread and of the copying threads.

#include "client/prefetch/prefetch_plan.h"

#include <memory>
#include <utility>

#include "client/prefetch/prefetch_queue.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr uint32_t kChunkTokens = 3000;  // a range is one chunk

struct NoWatcher final : ContextWatcher {
  void Due(uint64_t) override {}
};

class PrefetchPlanTest : public testing::Test {
 protected:
  PrefetchPlanTest() {
    corpus_ = std::make_shared<Corpus>();
    corpus_->name = "c";
    corpus_->geometry = test::TestGeometry();
    for (uint8_t i = 0; i < 2; ++i) {
      ChunkPlacement chunk;
      chunk.id.bytes[0] = static_cast<uint8_t>(i + 1);
      chunk.token_count = kChunkTokens;
      corpus_->chunks.push_back(chunk);
    }
    chunk_bytes_ = LocalRowCache::BytesOf(corpus_->geometry, kChunkTokens);
    tools_.source = [this](const auto&, uint32_t) -> const void* { return corpus_.get(); };
  }
  void Start(uint64_t local_cache_bytes) {
    options_ = {.clock = &clock_, .local_cache_bytes = local_cache_bytes};
    store_ = std::make_unique<LocalRowCache>(local_cache_bytes);
    plan_ = std::make_unique<PrefetchPlan>(&options_, &tools_, store_.get());
  }
  std::shared_ptr<WatchedContext> Open(ContextPolicy policy) {
    const ContextPart part = {corpus_, {}};
    auto watched = std::make_shared<WatchedContext>();
    watched->policy = policy;
    watched->context = *ContextState::Make({&part, 1});
    watched->same_bits = true;
    for (const ContextRange& range : RangesOf(*watched->context)) {
      WatchedContext::Use& use = watched->uses.emplace_back();
      use.range = range;
      use.share = 0.5;
    }
    plan_->Add(watched, std::make_shared<NoWatcher>());
    return watched;
  }
  // Reports this many calls in all, of which a step loses 100 us and a prefetch costs 1,000.
  void Update(WatchedContext& watched, uint64_t calls) {
    StepCost step;
    step.route_us = 110;
    step.cached_us = 10;
    step.prefetch_us = 1000;
    plan_->Update(watched, {calls, {16, 16, 0, 0, false, 0}, false}, ContextCost{step, true});
  }

  ManualClock clock_;
  std::shared_ptr<Corpus> corpus_;
  uint64_t chunk_bytes_ = 0;
  PrefetcherOptions options_;
  PrefetcherTools tools_;
  std::unique_ptr<LocalRowCache> store_;
  std::unique_ptr<PrefetchPlan> plan_;
};

TEST_F(PrefetchPlanTest, QueuesWhatHasLostItsPriceAndPublishesItsRows) {
  Start(2 * chunk_bytes_);
  const auto watched = Open(ContextPolicy::kAuto);
  const uint32_t layers = corpus_->geometry.layers;
  Update(*watched, 9 * layers);
  EXPECT_FALSE(plan_->HasNext());
  EXPECT_TRUE(plan_->idle());
  Update(*watched, 11 * layers);
  ASSERT_TRUE(plan_->HasNext());
  PrefetchJob job;
  ASSERT_TRUE(plan_->BeginNext(job));
  EXPECT_FALSE(plan_->HasNext()) << "the other range has the same source";
  ASSERT_TRUE(plan_->ReserveSpace(job).ok());
  ASSERT_EQ(job.fills.size(), 1u);
  EXPECT_EQ(job.missing, std::vector<uint32_t>{0});
  EXPECT_EQ(watched->context->cached(), nullptr);
  plan_->End(job, absl::OkStatus(), /*may_repeat=*/true);
  ASSERT_NE(watched->context->cached(), nullptr);
  EXPECT_NE((*watched->context->cached())[0], nullptr);
  EXPECT_EQ((*watched->context->cached())[1], nullptr);
  EXPECT_TRUE(plan_->HasNext());
  EXPECT_EQ(plan_->stats().prefetched_bytes, chunk_bytes_);
  EXPECT_EQ(watched->context->TakePrefetched(), chunk_bytes_);
}

TEST_F(PrefetchPlanTest, AFailedJobReleasesItsRoomAndSettlesItsCaller) {
  Start(2 * chunk_bytes_);
  const auto watched = Open(ContextPolicy::kCache);
  absl::Status status;
  EXPECT_FALSE(plan_->Settled(*watched, status));
  PrefetchJob job;
  ASSERT_TRUE(plan_->BeginNext(job));
  ASSERT_TRUE(plan_->ReserveSpace(job).ok());
  EXPECT_EQ(plan_->stats().local_cache_bytes, chunk_bytes_);
  plan_->End(job, absl::UnavailableError("the holder is gone"), /*may_repeat=*/true);
  EXPECT_EQ(plan_->stats().local_cache_bytes, 0u);
  EXPECT_TRUE(plan_->Settled(*watched, status));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  plan_->Unwatch(*watched);
  EXPECT_EQ(plan_->Find(watched->id), nullptr);
}

TEST_F(PrefetchPlanTest, AFailedJobThatIsNeededMeanwhileIsQueuedAgain) {
  Start(2 * chunk_bytes_);
  const auto first = Open(ContextPolicy::kAuto);
  Update(*first, 11 * corpus_->geometry.layers);
  PrefetchJob job;
  ASSERT_TRUE(plan_->BeginNext(job));
  ASSERT_TRUE(plan_->ReserveSpace(job).ok());
  const auto second = Open(ContextPolicy::kCache);
  plan_->End(job, absl::UnavailableError("the holder is gone"), /*may_repeat=*/true);
  absl::Status status;
  EXPECT_FALSE(plan_->Settled(*second, status)) << status;
  for (int i = 0; i < 2; ++i) {
    PrefetchJob again;
    ASSERT_TRUE(plan_->BeginNext(again));
    ASSERT_TRUE(plan_->ReserveSpace(again).ok());
    plan_->End(again, absl::OkStatus(), /*may_repeat=*/true);
  }
  EXPECT_TRUE(plan_->Settled(*second, status));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(PrefetchQueue, TakesTheFirstWhoseSourceIsFree) {
  PrefetchQueue queue;
  const int sources[2] = {};
  const auto source_of = [&](uint64_t key) -> const void* { return &sources[key % 2]; };
  for (uint64_t key = 1; key <= 4; ++key) queue.Add(key);
  queue.AddFirst(0);
  EXPECT_EQ(queue.Take(source_of), 0u);
  queue.Begin(&sources[0]);
  EXPECT_EQ(queue.Take(source_of), 1u);
  queue.Begin(&sources[1]);
  EXPECT_FALSE(queue.HasNext(source_of));
  EXPECT_EQ(queue.Take(source_of), std::nullopt);
  queue.End(&sources[0]);
  EXPECT_EQ(queue.Take(source_of), 2u);
  queue.End(&sources[1]);
  EXPECT_EQ(queue.Take(source_of), 3u);
  EXPECT_EQ(queue.Take(source_of), 4u);
  EXPECT_TRUE(queue.idle());
}

}  // namespace
}  // namespace ckv
