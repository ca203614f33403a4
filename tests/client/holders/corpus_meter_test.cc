#include "client/holders/corpus_meter.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace ckv {
namespace {

Corpus Named(std::string name, std::string tenant = "") {
  Corpus corpus;
  corpus.name = std::move(name);
  corpus.tenant = std::move(tenant);
  return corpus;
}

TEST(CorpusMeter, ListsTheMostRequestedFirst) {
  CorpusMeter meter;
  EXPECT_TRUE(meter.Hottest(5).empty());
  for (int i = 0; i < 10; ++i) meter.Count(Named("hot", "a"), 16);
  for (int i = 0; i < 3; ++i) meter.Count(Named("hot"), 1);
  meter.Count(Named("cold"), 2);
  const auto hottest = meter.Hottest(2);
  ASSERT_EQ(hottest.size(), 2u);
  EXPECT_EQ(hottest[0].name, "hot");
  EXPECT_EQ(hottest[0].tenant, "a");
  EXPECT_EQ(hottest[0].call_count, 10u);
  EXPECT_EQ(hottest[0].query_row_count, 160u);
  EXPECT_EQ(hottest[1].tenant, "");
  EXPECT_EQ(hottest[1].call_count, 3u);
  EXPECT_EQ(meter.Hottest(9).size(), 3u);
}

// Goal: a tenant's corpora are counted, and not named (I6).
TEST(CorpusMeter, AddsUpTenants) {
  const std::vector<CorpusCalls> hottest = {
      {"secret", "a", 9, 90}, {"x", "", 8, 80}, {"x", "b", 7, 70}, {"y", "", 6, 60}};
  const auto shown = WithoutTenants(hottest, 1);
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0].name, "x");
  EXPECT_EQ(shown[0].call_count, 8u);
  EXPECT_EQ(shown[1].name, "");
  EXPECT_EQ(shown[1].tenant, "");
  EXPECT_EQ(shown[1].call_count, 16u);
  EXPECT_EQ(shown[1].query_row_count, 160u);
  EXPECT_EQ(WithoutTenants({hottest[1], hottest[3]}, 5).size(), 2u);
}

// Goal: threads that meet a corpus at the same moment agree on its place, and none beyond the limit
// is taken.
TEST(CorpusMeter, ThreadsAgreeAndTheTableIsLimited) {
  CorpusMeter meter;
  constexpr size_t kCorpora = CorpusMeter::kCorpusCountMax + 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < kCorpora; ++i) meter.Count(Named(absl::StrCat("c", i)), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = meter.Hottest(kCorpora);
  EXPECT_EQ(all.size(), CorpusMeter::kCorpusCountMax);
  uint64_t calls = meter.other_call_count();
  for (const CorpusCalls& corpus : all) {
    EXPECT_EQ(corpus.call_count, 4u) << corpus.name;
    calls += corpus.call_count;
  }
  EXPECT_EQ(calls, 4 * kCorpora);
}

}  // namespace
}  // namespace ckv
