// A prefetcher whose costs, prefetches and clock the test sets.

#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/prefetch/prefetcher.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {

inline constexpr uint32_t kPrefetcherTokens = 3000;  // a range is one chunk

class PrefetcherTest : public testing::Test {
 protected:
  PrefetcherTest() {
    corpus_ = std::make_shared<Corpus>();
    corpus_->name = "c";
    corpus_->geometry = test::TestGeometry();
    for (uint8_t i = 0; i < 6; ++i) {
      ChunkPlacement chunk;
      chunk.id.bytes[0] = static_cast<uint8_t>(i + 1);
      chunk.token_count = kPrefetcherTokens;
      corpus_->chunks.push_back(chunk);
    }
    layers_ = corpus_->geometry.layers;
    chunk_bytes_ = LocalRowCache::BytesOf(corpus_->geometry, kPrefetcherTokens);
  }
  void Start(uint64_t local_cache_bytes) {
    PrefetcherTools tools;
    tools.cost = [this](const PrefetcherTools::Work& work) -> absl::StatusOr<StepCost> {
      if (!cost_known_) return absl::UnavailableError("nothing is measured yet");
      StepCost cost = cost_;
      cost.prefetch_us *= static_cast<double>(work.chunks.size());
      return cost;
    };
    tools.measure = [this](const PrefetcherTools::Work&, Instant) {
      ++measured_;
      clock_.Advance(measure_time_);
      if (measure_status_.ok()) cost_known_ = true;
      return measure_status_;
    };
    tools.same_target = [this](const auto&) { return same_target_; };
    tools.source = [this](const auto&, uint32_t chunk) -> const void* {
      return corpus_->chunks.data() + chunk % holder_count_;
    };
    tools.here = here_;
    tools.map = map_;
    tools.fetch = [this](const FetchCall& call, const PrefetcherTools::Place& place,
                         const std::function<bool()>&) {
      if (call.tensor_begin == 0) ++prefetches_;
      if (on_prefetch_) on_prefetch_(call);
      for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
        for (uint32_t layer = call.tensor_begin; layer < call.tensor_end; ++layer)
          place(RowRun{chunk, layer, 0, corpus_->chunks[chunk].token_count})[0] =
              static_cast<std::byte>(chunk + 1);
      }
      return fetch_status_;
    };
    prefetcher_ = std::make_unique<Prefetcher>(
        PrefetcherOptions{.clock = &clock_, .local_cache_bytes = local_cache_bytes},
        std::move(tools));
  }
  std::shared_ptr<ContextState> Open(const std::vector<uint32_t>& chunks,
                                     ContextExpectation expect = {}, Recompute recompute = {}) {
    std::vector<ChunkUse> uses;
    for (const uint32_t chunk : chunks) uses.push_back({chunk, 0});
    const ContextPart part = {corpus_, uses};
    auto context = *ContextState::Make({&part, 1});
    EXPECT_TRUE(
        prefetcher_
            ->Watch(context,
                    {.parts = {&part, 1}, .expect = expect, .recompute = std::move(recompute)},
                    kInstantMax)
            .ok());
    return context;
  }
  static StepCost Cost(double route_us, double cached_us, double prefetch_us) {
    StepCost cost;
    cost.route_us = route_us;
    cost.cached_us = cached_us;
    cost.prefetch_us = prefetch_us;
    return cost;
  }
  // Makes calls for this many steps. The prefetcher sees each, and each takes a microsecond of the
  // clock.
  void Step(const ContextState& context, uint32_t steps) {
    for (uint32_t i = 0; i < steps * layers_; ++i) {
      context.CountCall({16, 16, 0, own_count_, f32_, routed_us_});
      clock_.Advance(std::chrono::microseconds(1));
      prefetcher_->AwaitIdle();
    }
  }
  static size_t CachedCount(const ContextState& context) {
    const auto cached = context.cached();
    if (cached == nullptr) return 0;
    return size_t(
        std::count_if(cached->begin(), cached->end(), [](auto& rows) { return rows != nullptr; }));
  }
  uint64_t Decisions(Primitive primitive, PrefetchReason reason) const {
    return prefetcher_->stats().decisions[size_t(primitive)][size_t(reason)];
  }
  // A use of a chunk that no other context uses, from open to close.
  void UseOnce(uint32_t chunk, uint32_t steps) {
    const auto context = Open({chunk});
    Step(*context, steps);
    context->Close();
    prefetcher_->AwaitIdle();
  }

  ManualClock clock_;
  std::shared_ptr<Corpus> corpus_;
  uint32_t layers_ = 0;
  uint64_t chunk_bytes_ = 0;
  std::atomic<bool> cost_known_{true};
  StepCost cost_ = Cost(110, 10, 1000);  // routing costs 100 us more per step
  absl::Status fetch_status_;
  bool same_target_ = true;
  uint32_t own_count_ = 0;
  bool f32_ = false;
  double routed_us_ = 0;
  std::atomic<int> measured_{0}, prefetches_{0};
  absl::Status measure_status_;
  Duration measure_time_{0};
  uint32_t holder_count_ = 1;  // holders that the chunks are assigned to in turn
  LocalRowSource* here_ = nullptr;
  std::function<absl::StatusOr<std::shared_ptr<const LocalRows>>(const MapCall&)> map_;
  std::function<void(const FetchCall&)> on_prefetch_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace ckv
