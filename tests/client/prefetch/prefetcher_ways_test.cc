// Goal: a range is cached locally by the cheapest way: rows of this process' holder, recomputed
// rows, or a prefetch; and no more prefetches run at once than links and holders bear. Method: a
// prefetcher whose costs, prefetches and clock the test sets.

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/client/prefetch/prefetcher_fixture.h"

namespace ckv {
namespace {

class PrefetcherWaysTest : public PrefetcherTest {
 protected:
  // Makes rows of 100 + ordinal; each call advances the clock by `us`.
  Recompute Maker(double us_per_token, int64_t us = 0) {
    Recompute recompute;
    recompute.us_per_token = us_per_token;
    recompute.make = [this, us](const RecomputeCall& call) {
      ++made_;
      clock_.Advance(std::chrono::microseconds(us));
      for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
        for (uint32_t layer = 0; layer < layers_; ++layer)
          call.rows(chunk, layer)[0] = static_cast<std::byte>(100 + chunk);
      }
      return make_status_;
    };
    return recompute;
  }
  static int FirstByte(const ContextState& context, uint32_t chunk) {
    return int((*context.cached())[chunk]->layer(0)[0]);
  }

  std::atomic<int> made_{0};
  absl::Status make_status_;
};

// A prefetch costs 1,000 us, and 3,000 tokens of 0.17 us are 510.
TEST_F(PrefetcherWaysTest, RecomputesRowsIfThatCostsLess) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0}, {}, Maker(0.17, /*us=*/1500));
  Step(*context, 5);
  EXPECT_EQ(made_, 0);
  Step(*context, 1);
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(prefetches_, 0);
  ASSERT_EQ(CachedCount(*context), 1u);
  EXPECT_EQ(FirstByte(*context, 0), 100);
  EXPECT_FALSE(context->cached_same_bits()) << "they were not made by the holder";
  EXPECT_EQ(prefetcher_->stats().recomputed_tokens, kPrefetcherTokens);
  EXPECT_EQ(prefetcher_->stats().prefetched_bytes, 0u);
  EXPECT_EQ(Decisions(Primitive::kLocal, PrefetchReason::kLostEnough), 1u);
  // Recomputing took 0.5 us a token: 1,500 us, and so the next range is prefetched.
  const auto next = Open({1}, {}, Maker(0.17));
  Step(*next, 11);
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_TRUE(next->cached_same_bits());
}

TEST_F(PrefetcherWaysTest, UsesTheProfilesPrefillCostIfTheContextGivesNone) {
  cost_.prefill_token_us = 0.17;
  Start(10 * chunk_bytes_);
  const auto context = Open({0}, {}, Maker(0, /*us=*/300));
  Step(*context, 6);
  EXPECT_EQ(made_, 1);
  cost_.prefill_token_us.reset();
  const auto unknown = Open({1}, {}, Maker(0));
  Step(*unknown, 11);
  EXPECT_EQ(made_, 2) << "it was timed meanwhile";
}

TEST_F(PrefetcherWaysTest, RecomputesNothingWithoutAPrefillCost) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0}, {}, Maker(0));
  Step(*context, 11);
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(prefetches_, 1);
}

TEST_F(PrefetcherWaysTest, RecomputedRowsServeOnlyContextsThatRecompute) {
  Start(10 * chunk_bytes_);
  const auto context = Open({0}, {}, Maker(0.17));
  Step(*context, 6);
  ASSERT_EQ(CachedCount(*context), 1u);
  const auto other = Open({0});
  EXPECT_EQ(CachedCount(*other), 0u);
  const auto same = Open({0}, {}, Maker(0.17));
  EXPECT_EQ(CachedCount(*same), 1u);
  // Once the holder's rows are cached, they serve both.
  Step(*other, 11);
  ASSERT_EQ(CachedCount(*other), 1u);
  EXPECT_EQ(FirstByte(*other, 0), 1);
  EXPECT_TRUE(other->cached_same_bits());
  EXPECT_EQ(made_, 1);
}

TEST_F(PrefetcherWaysTest, PrefetchesRowsThatCannotBeRecomputed) {
  make_status_ = absl::InternalError("the engine is gone");
  Start(10 * chunk_bytes_);
  const auto context = Open({0, 1}, {}, Maker(0.17));
  Step(*context, 12);
  EXPECT_EQ(made_, 1) << "nor tried again";
  ASSERT_EQ(CachedCount(*context), 2u);
  EXPECT_EQ(FirstByte(*context, 0), 1);
  EXPECT_TRUE(context->cached_same_bits());
}

// Rows of a holder in this process, some of them present and some to be copied.
class HolderHere final : public LocalRowSource {
 public:
  struct Rows final : LocalRows {
    explicit Rows(uint8_t first) : bytes(size_t{1} << 20, std::byte{first}) {}
    std::span<const std::byte> tensor(uint32_t) const override { return bytes; }
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const LocalRows> Find(const Corpus& corpus, uint32_t chunk) override {
    const auto known = rows.find(corpus.chunks[chunk].id.bytes[0]);
    return known == rows.end() ? nullptr : known->second;
  }
  absl::Status Copy(const std::shared_ptr<const Corpus>& corpus,
                    const std::vector<uint32_t>& chunks, Instant) override {
    ++copies;
    if (on_copy) on_copy();
    if (!status.ok()) return status;
    for (const uint32_t chunk : chunks) Put(corpus->chunks[chunk].id.bytes[0]);
    return status;
  }
  void Put(uint8_t id) { rows[id] = std::make_shared<Rows>(static_cast<uint8_t>(200 + id)); }

  std::map<uint8_t, std::shared_ptr<const LocalRows>> rows;
  std::atomic<int> copies{0};
  std::function<void()> on_copy;
  absl::Status status;
};

TEST_F(PrefetcherWaysTest, ChunksOfThisProcessHolderAreCachedFromTheStart) {
  HolderHere holder;
  holder.Put(1);
  here_ = &holder;
  Start(10 * chunk_bytes_);
  const auto context = Open({0, 1});
  ASSERT_EQ(CachedCount(*context), 1u);
  EXPECT_EQ(FirstByte(*context, 0), 201);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, chunk_bytes_) << "the holder cannot evict it";
  EXPECT_EQ(Decisions(Primitive::kFetch, PrefetchReason::kHere), 1u);
  // The other chunk is copied to the holder, which answers for it from then on.
  Step(*context, 21);
  EXPECT_EQ(holder.copies, 1);
  EXPECT_EQ(prefetches_, 0);
  ASSERT_EQ(CachedCount(*context), 2u);
  EXPECT_EQ(FirstByte(*context, 1), 202);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 2 * chunk_bytes_);
  // The holder's rows are released when no context is open.
  context->Close();
  prefetcher_->AwaitIdle();
  EXPECT_EQ(holder.rows[1].use_count(), 1);
  prefetcher_.reset();
}

TEST_F(PrefetcherWaysTest, PrefetchesRowsThatTheHolderDoesNotMap) {
  HolderHere holder;
  holder.status = absl::ResourceExhaustedError("no room for copies");
  here_ = &holder;
  Start(10 * chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 11);
  EXPECT_EQ(holder.copies, 1);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_EQ(FirstByte(*context, 0), 1);
  prefetcher_.reset();
}

// Chunk 0's holder is on this host; chunk 1's is not.
TEST_F(PrefetcherWaysTest, MapsInsteadOfCopyingFromAHolderOfThisHost) {
  std::atomic<int> maps{0};
  map_ = [&](const MapCall& call) -> absl::StatusOr<std::shared_ptr<const LocalRows>> {
    ++maps;
    if (call.chunk == 1) return absl::UnimplementedError("not over shm");
    return std::make_shared<HolderHere::Rows>(uint8_t{77});
  };
  Start(chunk_bytes_);
  const auto context = Open({0});
  Step(*context, 11);
  ASSERT_EQ(CachedCount(*context), 1u);
  EXPECT_EQ(FirstByte(*context, 0), 77);
  EXPECT_EQ(maps, 1);
  EXPECT_EQ(prefetches_, 0);
  EXPECT_EQ(prefetcher_->stats().mapped_bytes, chunk_bytes_);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, chunk_bytes_) << "the copy takes room";
  // The mapped copy stays when no context attends it, like prefetched rows, until another range
  // needs its room.
  context->Close();
  prefetcher_->AwaitIdle();
  EXPECT_EQ(prefetcher_->stats().local_cache_chunks, 1u);
  const auto other = Open({1});
  clock_.Advance(std::chrono::seconds(100));
  Step(*other, 11);
  ASSERT_EQ(CachedCount(*other), 1u);
  EXPECT_EQ(FirstByte(*other, 0), 2);
  EXPECT_EQ(prefetches_, 1);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, chunk_bytes_);
  prefetcher_.reset();
}

// The four chunks of a range are assigned to two holders in turn, and every other one is on this
// host.
class PrefetcherMixedRangeTest : public PrefetcherWaysTest {
 protected:
  PrefetcherMixedRangeTest() {
    for (ChunkPlacement& chunk : corpus_->chunks) chunk.token_count = 512;
    bytes_ = LocalRowCache::BytesOf(corpus_->geometry, 512);
    map_ = [](const MapCall& call) -> absl::StatusOr<std::shared_ptr<const LocalRows>> {
      if (call.chunk % 2 == 0) return absl::UnimplementedError("not over shm");
      return std::make_shared<HolderHere::Rows>(static_cast<uint8_t>(70 + call.chunk));
    };
  }
  uint64_t bytes_ = 0;
};

TEST_F(PrefetcherMixedRangeTest, IsMappedAsFarAsItIsOnThisHost) {
  Start(4 * bytes_);
  const auto context = Open({0, 1, 2, 3});
  Step(*context, 60);
  ASSERT_EQ(CachedCount(*context), 4u);
  EXPECT_EQ(FirstByte(*context, 0), 1);
  EXPECT_EQ(FirstByte(*context, 1), 71);
  EXPECT_EQ(FirstByte(*context, 2), 3);
  EXPECT_EQ(FirstByte(*context, 3), 73);
  EXPECT_EQ(prefetches_, 2);
  EXPECT_EQ(prefetcher_->stats().mapped_bytes, 2 * bytes_);
  EXPECT_EQ(prefetcher_->stats().prefetched_bytes, 2 * bytes_);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 4 * bytes_);
  EXPECT_EQ(context->TakePrefetched(), 4 * bytes_);
  prefetcher_.reset();
}

TEST_F(PrefetcherMixedRangeTest, KeepsNothingIfTheRestCannotBePrefetched) {
  fetch_status_ = absl::UnavailableError("the holder is gone");
  Start(4 * bytes_);
  const auto context = Open({0, 1, 2, 3});
  Step(*context, 60);
  EXPECT_EQ(CachedCount(*context), 0u);
  EXPECT_GT(prefetcher_->stats().prefetches_failed, 0u);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 0u);
  EXPECT_EQ(prefetcher_->stats().local_cache_chunks, 0u);
  prefetcher_.reset();
}

// Chunk 1 belongs to this process' holder, which has no room for copies.
TEST_F(PrefetcherMixedRangeTest, DropsTheHoldersOwnRowsWhenNoContextUsesThem) {
  HolderHere holder;
  holder.Put(2);
  holder.status = absl::ResourceExhaustedError("no room for copies");
  here_ = &holder;
  Start(4 * bytes_);
  const auto context = Open({0, 1, 2, 3});
  Step(*context, 60);
  ASSERT_EQ(CachedCount(*context), 4u);
  EXPECT_EQ(FirstByte(*context, 1), 202);
  EXPECT_EQ(FirstByte(*context, 3), 73);
  context->Close();
  prefetcher_->AwaitIdle();
  EXPECT_EQ(holder.rows[2].use_count(), 1);
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 0u);
  prefetcher_.reset();
}

TEST_F(PrefetcherWaysTest, ChunksOfTheHolderAreCachedAsFarAsThereIsRoom) {
  HolderHere holder;
  for (uint8_t id = 1; id <= 4; ++id) holder.Put(id);
  here_ = &holder;
  Start(2 * chunk_bytes_);
  const auto context = Open({0, 1, 2, 3});
  EXPECT_EQ(CachedCount(*context), 2u);
  prefetcher_.reset();
}

// A copy that completes after its context has closed belongs to the holder only.
TEST_F(PrefetcherWaysTest, DropsACopyThatArrivesTooLate) {
  HolderHere holder;
  here_ = &holder;
  std::shared_ptr<ContextState> context;
  holder.on_copy = [&] { context->Close(); };
  Start(10 * chunk_bytes_);
  context = Open({0});
  Step(*context, 11);
  EXPECT_EQ(holder.copies, 1);
  prefetcher_->AwaitIdle();
  EXPECT_EQ(prefetcher_->stats().local_cache_bytes, 0u);
  EXPECT_EQ(holder.rows[1].use_count(), 1);
  prefetcher_.reset();
}

// Two ranges of one context are at two holders, and the caller's function must not run twice at
// once.
TEST_F(PrefetcherWaysTest, RecomputesOneRangeOfAContextAtATime) {
  holder_count_ = 2;
  Start(10 * chunk_bytes_);
  std::atomic<int> running{0}, most{0};
  Recompute recompute = Maker(0.01, /*us=*/30);
  recompute.make = [&, make = recompute.make](const RecomputeCall& call) {
    most = std::max<int>(most, ++running);
    absl::Status status = make(call);
    --running;
    return status;
  };
  ContextExpectation many;
  many.steps = 1000;
  const auto context = Open({0, 1, 2, 3, 4, 5}, many, recompute);
  Step(*context, 2);
  EXPECT_EQ(made_, 6);
  EXPECT_EQ(most, 1);
}

// Four chunks are one range. Another context has cached two of them.
TEST_F(PrefetcherWaysTest, OnlyWhatIsMissingIsPrefetched) {
  for (ChunkPlacement& chunk : corpus_->chunks) chunk.token_count = 512;
  std::atomic<uint32_t> chunks{0};
  on_prefetch_ = [&](const FetchCall& call) {
    if (call.tensor_begin == 0) chunks += call.chunk_end - call.chunk_begin;
  };
  Start(10 * chunk_bytes_);
  const auto some = Open({1, 2});
  Step(*some, 30);
  EXPECT_EQ(chunks, 2u);
  const auto all = Open({0, 1, 2, 3});
  Step(*all, 60);
  EXPECT_EQ(CachedCount(*all), 4u);
  EXPECT_EQ(chunks, 4u);
}

TEST_F(PrefetcherWaysTest, TwoPrefetchesAtOnceAndOneOfEachHolder) {
  absl::Mutex mu;
  std::set<uint32_t> under_way;
  size_t most = 0;
  bool go_on = false;
  holder_count_ = 3;
  on_prefetch_ = [&](const FetchCall& call) {
    absl::MutexLock lock(&mu);
    const uint32_t holder = call.chunk_begin % holder_count_;
    if (call.tensor_begin > 0) return;
    EXPECT_TRUE(under_way.insert(holder).second) << "two prefetches of one holder";
    most = std::max(most, under_way.size());
    mu.Await(absl::Condition(&go_on));
    under_way.erase(holder);
  };
  Start(10 * chunk_bytes_);
  ContextExpectation many;
  many.steps = 1000;
  // Chunks 0 and 3 have the same holder.
  const auto first = Open({0}, many), second = Open({3}, many), third = Open({1}, many),
             fourth = Open({2}, many);
  for (const auto* const context : {&first, &second, &third, &fourth})
    (*context)->CountCall({16, 16, 0, 0, false, 0});
  {
    absl::MutexLock lock(&mu);
    const auto two = [&] { return under_way.size() == kPrefetchFlowsDefault; };
    mu.Await(absl::Condition(&two));
    go_on = true;
  }
  prefetcher_->AwaitIdle();
  EXPECT_EQ(prefetches_, 4);
  EXPECT_EQ(most, kPrefetchFlowsDefault);
}

TEST_F(PrefetcherWaysTest, AHintCountsForAllAgentsThatShareTheChunks) {
  Start(10 * chunk_bytes_);
  ContextExpectation few;
  few.steps = 4;  // 400 us of 1,000
  const auto alone = Open({0}, few);
  alone->CountCall({16, 16, 0, 0, false, 0});
  prefetcher_->AwaitIdle();
  EXPECT_EQ(CachedCount(*alone), 0u);
  few.agents = 3;
  const auto many = Open({1}, few);
  many->CountCall({16, 16, 0, 0, false, 0});
  prefetcher_->AwaitIdle();
  EXPECT_EQ(CachedCount(*many), 1u);
  EXPECT_EQ(Decisions(Primitive::kFetch, PrefetchReason::kHint), 1u);
}

}  // namespace
}  // namespace ckv
