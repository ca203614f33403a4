// Goal: a cache shows rows when they are committed and not before, gives back what was not, and
// loses no block whatever its sequences do.

#include "client/paged/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_slots.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::TestGeometry;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<CacheBlock> TableOf(const PagedCache& cache, CacheSequenceId sequence) {
  std::vector<CacheBlock> table;
  EXPECT_TRUE(cache.Table(sequence, table).ok());
  return table;
}

TEST(PagedCache, HidesReservedRowsUntilTheyAreCommitted) {
  auto cache = *PagedCache::Create(TestGeometry(), {.block_count = 6});
  const CacheSequenceId a = cache->Begin();
  {
    auto reservation = *cache->Reserve(a, 70);
    EXPECT_EQ(cache->free_block_count(), 4u);
    EXPECT_EQ(*cache->token_count(a), 0u);
    EXPECT_TRUE(TableOf(*cache, a).empty());
    EXPECT_EQ(reservation.DescribeBlocks(), "blocks 0 to 1");
    EXPECT_EQ(cache->Reserve(a, 1).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(cache->Free(a).code(), StatusCode::kFailedPrecondition);
    std::move(reservation).Commit();
  }
  EXPECT_EQ(*cache->token_count(a), 70u);
  EXPECT_THAT(TableOf(*cache, a), ElementsAre(0, 1));
  // What is left of the last block is used first; one that fails leaves all as it was.
  for (int again = 0; again < 2; ++again) {
    auto reservation = *cache->Reserve(a, 58 + 65);
    EXPECT_EQ(reservation.row_begin(), 6u);
    EXPECT_THAT(std::vector<CacheBlock>(reservation.table().begin(), reservation.table().end()),
                ElementsAre(1, 2, 3));
    EXPECT_THAT(TableOf(*cache, a), ElementsAre(0, 1));
  }
  EXPECT_EQ(*cache->token_count(a), 70u);
  EXPECT_EQ(cache->free_block_count(), 4u);
  const absl::Status full = cache->Reserve(a, 58 + 4 * 64 + 1).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("5 more blocks of 64 rows, 4 of 6 are free"));
  EXPECT_EQ(cache->Reserve(a, UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Reserve(a, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache->Free(a).ok());
  EXPECT_EQ(cache->free_block_count(), 6u);
  EXPECT_EQ(cache->Free(a).code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->token_count(a).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->Reserve(a, 1).status().code(), StatusCode::kNotFound);
}

TEST(PagedCache, OptionsAndTensorsAreChecked) {
  const Geometry geometry = TestGeometry();
  const auto code = [&](const PagedCache::Options& options) {
    return PagedCache::Create(geometry, options).status().code();
  };
  EXPECT_EQ(code({.block_count = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_count = kCacheBlockCountMax + 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_count = 1, .layer_begin = 3}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_count = 1, .layer_end = 4}), StatusCode::kInvalidArgument);
  EXPECT_EQ(PagedCache::Create(Geometry(), {.block_count = 1}).status().code(),
            StatusCode::kInvalidArgument);
  auto stage = *PagedCache::Create(geometry, {.block_count = 1, .layer_begin = 1, .layer_end = 2});
  EXPECT_EQ(stage->layer_begin(), 1u);
  EXPECT_EQ(stage->layer_end(), 2u);
  // An engine's own tensors.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(3 * 2 * 192 + 1);
  const size_t layer_bytes = size_t{2} * 64 * 192;
  std::byte* const base = memory[0].bytes;
  std::vector<std::span<std::byte>> layers;
  for (size_t i = 0; i < 3; ++i) layers.push_back({base + i * layer_bytes, layer_bytes});
  auto over = *PagedCache::Over(geometry, {.block_count = 2}, layers);
  EXPECT_EQ(over->layer(2).data(), base + 2 * layer_bytes);
  layers[1] = layers[1].first(layer_bytes - 1);
  EXPECT_EQ(PagedCache::Over(geometry, {.block_count = 2}, layers).status().code(),
            StatusCode::kInvalidArgument);
  layers[1] = {base + layer_bytes + 4, layer_bytes};
  EXPECT_EQ(PagedCache::Over(geometry, {.block_count = 2}, layers).status().code(),
            StatusCode::kInvalidArgument);
  layers.pop_back();
  EXPECT_EQ(PagedCache::Over(geometry, {.block_count = 2}, layers).status().code(),
            StatusCode::kInvalidArgument);
}

// Method: random sequences against a model of sets; blocks are never shared and never lost.
TEST(PagedCache, NoBlockIsLostOrSharedWhateverHappens) {
  constexpr uint32_t kBlocks = 40;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    auto cache = *PagedCache::Create(TestGeometry(1), {.block_count = kBlocks});
    std::map<uint64_t, uint64_t> tokens;  // visible, by sequence
    for (int step = 0; step < 300; ++step) {
      if (tokens.empty() || rng() % 8 == 0) tokens[cache->Begin().value] = 0;
      auto it = std::next(tokens.begin(), static_cast<ptrdiff_t>(rng() % tokens.size()));
      if (rng() % 6 == 0) {
        ASSERT_TRUE(cache->Free({it->first}).ok());
        tokens.erase(it);
      } else if (auto reserved = cache->Reserve({it->first}, 1 + rng() % 300); reserved.ok()) {
        const uint64_t count = reserved->token_count();
        if (rng() % 3 != 0) {
          std::move(*reserved).Commit();
          it->second += count;
        }
      }
      std::set<CacheBlock> used;
      size_t used_count = 0;
      for (const auto& [id, count] : tokens) {
        ASSERT_EQ(*cache->token_count({id}), count);
        const auto table = TableOf(*cache, {id});
        ASSERT_EQ(table.size(), (count + 63) / 64);
        used.insert(table.begin(), table.end());
        used_count += table.size();
      }
      ASSERT_EQ(used.size(), used_count);
      ASSERT_EQ(cache->free_block_count(), kBlocks - used_count);
    }
  }
}

// Goal: rows in blocks are attended as rows in one span: bit for bit as a selection of slots,
// within the bound of a merge as dense runs.
TEST(PagedCache, AttentionSeesTheSequence) {
  const Geometry geometry = TestGeometry(2);
  const AttentionShape shape = AttentionShape::Of(geometry);
  auto cache = *PagedCache::Create(geometry, {.block_count = 9});
  // Two sequences that grow in turns, so that their blocks interleave.
  const CacheSequenceId a = cache->Begin(), other = cache->Begin();
  std::mt19937 rng(3);
  const std::vector<uint16_t> rows = test::RandomBf16(size_t{300} * 96, rng);
  const auto* const bytes = reinterpret_cast<const std::byte*>(rows.data());
  for (size_t done = 0; done < 300; done += 60) {
    auto reservation = *cache->Reserve(a, 60);
    for (size_t i = 0; i < 60; ++i) {
      const auto to = reservation.Spans(1, i, 1).spans().front();
      std::memcpy(to.data(), bytes + (done + i) * 192, 192);
    }
    std::move(reservation).Commit();
    auto spacer = *cache->Reserve(other, 30);
    std::move(spacer).Commit();
  }
  const uint32_t q_count = 5;
  const std::vector<uint16_t> q = test::RandomBf16(size_t{q_count} * 96, rng);
  WorkerPool pool(1);
  struct Out {
    std::vector<float> o = std::vector<float>(5 * 64), m = std::vector<float>(5),
                       l = std::vector<float>(5);
    PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  };
  const auto attend = [&](const RowView& view, const Selection& selection) {
    Out out;
    AttentionPiece span;
    span.q = {q.data(), q_count, 96};
    span.rows = view;
    span.selection = selection;
    span.out = out.view();
    AttendPartials(shape, {&span, 1}, pool);
    return out;
  };
  const Out want = attend({bytes, 300, 192}, {});
  const std::vector<int32_t> slots = *test::SlotsOf(*cache, a);
  const Out selected =
      attend(cache->layer_rows(1), {slots.data(), static_cast<uint32_t>(slots.size()), q_count});
  EXPECT_EQ(selected.o, want.o);
  EXPECT_EQ(selected.m, want.m);
  EXPECT_EQ(selected.l, want.l);
  std::vector<RowView> runs;
  ASSERT_TRUE(cache->Runs(a, 1, runs).ok());
  EXPECT_GT(runs.size(), 1u);
  EXPECT_LT(runs.size(), slots.size() / 64 + 1);
  std::vector<Out> outs;
  for (const RowView& run : runs) outs.push_back(attend(run, {}));
  std::vector<ConstPartialView> parts;
  for (Out& out : outs) parts.push_back(out.view());
  Out merged;
  MergePartials(parts, q_count, 64, merged.view());
  for (size_t i = 0; i < merged.o.size(); ++i) EXPECT_NEAR(merged.o[i], want.o[i], 5e-7);
}

// Goal: who sees a table sees the rows; run under the thread sanitizer.
TEST(PagedCache, ReadersSeeWholeRowsWhileOthersWrite) {
  auto cache = *PagedCache::Create(TestGeometry(1), {.block_count = 64});
  const CacheSequenceId sequence = cache->Begin();
  constexpr uint64_t kTokens = 1000;
  std::thread writer([&] {
    for (uint64_t t = 0; t < kTokens; t += 20) {
      auto reservation = *cache->Reserve(sequence, 20);
      for (uint64_t i = 0; i < 20; ++i) {
        const auto row = reservation.Spans(0, i, 1).spans().front();
        std::memset(row.data(), static_cast<int>((t + i) % 251), row.size());
      }
      std::move(reservation).Commit();
    }
  });
  std::vector<int32_t> slots;
  while (slots.size() < kTokens) {
    slots = *test::SlotsOf(*cache, sequence);
    const RowView rows = cache->layer_rows(0);
    for (size_t t = slots.size() - std::min<size_t>(slots.size(), 40); t < slots.size(); ++t) {
      const std::byte* row = rows.data + size_t(slots[t]) * rows.stride_bytes;
      for (const size_t at : {0, 100, 191}) ASSERT_EQ(std::to_integer<size_t>(row[at]), t % 251);
    }
  }
  writer.join();
}

TEST(CacheReservation, NeighboursAreOneSpan) {
  auto cache = *PagedCache::Create(TestGeometry(), {.block_count = 8});
  const CacheSequenceId a = cache->Begin(), b = cache->Begin();
  std::move(*cache->Reserve(a, 10)).Commit();  // block 0
  std::move(*cache->Reserve(b, 64)).Commit();  // block 1
  auto reservation = *cache->Reserve(a, 54 + 100);
  EXPECT_EQ(reservation.DescribeBlocks(), "blocks 0, 2 to 3");
  // As {row of the layer, rows}.
  const auto spans = [&](uint32_t layer, uint64_t token_begin, uint64_t token_count) {
    const ScatterList list = reservation.Spans(layer, token_begin, token_count);
    std::vector<std::pair<ptrdiff_t, size_t>> found;
    for (const std::span<std::byte> span : list.spans())
      found.emplace_back((span.data() - reservation.layer(layer).data()) / 192, span.size() / 192);
    return found;
  };
  using Rows = std::vector<std::pair<ptrdiff_t, size_t>>;
  EXPECT_EQ(spans(0, 0, 54), (Rows{{10, 54}}));
  EXPECT_EQ(spans(0, 53, 2), (Rows{{63, 1}, {128, 1}}));
  EXPECT_EQ(spans(2, 54, 100), (Rows{{128, 100}}));
  EXPECT_EQ(spans(2, 20, 134), (Rows{{30, 34}, {128, 100}}));
}

TEST(CacheReservation, NoSpansWhereThereAreTooMany) {
  constexpr uint64_t kBlocks = ScatterList::kSpanCountMax + 1;
  auto cache = *PagedCache::Create(TestGeometry(), {.block_count = 2 * kBlocks});
  // Every other block is somebody else's.
  const CacheSequenceId a = cache->Begin(), other = cache->Begin();
  std::vector<CacheSequenceId> gaps;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    gaps.push_back(cache->Begin());
    std::move(*cache->Reserve(gaps.back(), 64)).Commit();
    std::move(*cache->Reserve(other, 64)).Commit();
  }
  for (const CacheSequenceId gap : gaps) ASSERT_TRUE(cache->Free(gap).ok());
  auto reservation = *cache->Reserve(a, kBlocks * 64);
  EXPECT_EQ(reservation.Spans(0, 64, (kBlocks - 1) * 64).spans().size(), kBlocks - 1);
  EXPECT_TRUE(reservation.Spans(0, 0, kBlocks * 64).empty());
  EXPECT_TRUE(reservation.Spans(0, 63, kBlocks * 64 - 126).empty());
}

}  // namespace
}  // namespace ckv
