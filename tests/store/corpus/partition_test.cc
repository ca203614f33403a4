// Goal: shares follow weights, a change moves hardly more than it must, and a plan depends only on
// its inputs.

#include "store/corpus/partition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"
#include "tests/support/sanitized.h"

namespace ckv {
namespace {

Corpus CorpusOf(uint32_t count, const std::vector<HolderId>& holders, uint32_t per_document = 10) {
  Corpus corpus;
  corpus.name = "c";
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  std::mt19937_64 random(3);
  for (uint32_t i = 0; i < count; ++i) {
    ChunkPlacement chunk;
    for (size_t at = 0; at < 32; at += 8) {
      const uint64_t part = random();
      std::memcpy(chunk.id.bytes.data() + at, &part, 8);
    }
    if (i % per_document != 0) chunk.set_parent(corpus.chunks.back().id);
    chunk.token_count = 64;
    chunk.set_holders({holders[i % holders.size()]});
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

std::vector<WeightedHolder> Targets(const std::vector<double>& weights) {
  std::vector<WeightedHolder> targets;
  for (size_t i = 0; i < weights.size(); ++i)
    targets.push_back({{"h" + std::to_string(i)}, weights[i]});
  return targets;
}

// The corpus once the manifest was switched to the plan.
Corpus After(Corpus corpus, const PartitionPlan& plan) {
  for (size_t i = 0; i < corpus.chunks.size(); ++i) corpus.chunks[i].set_holders(plan.holders[i]);
  return corpus;
}

TEST(PlanPartition, SharesFollowWeights) {
  const Corpus corpus = CorpusOf(200'000, {{"old"}});
  const std::vector<double> weights = {1, 1, 2, 4};
  for (const uint32_t replicas : {1u, 2u}) {
    const auto plan = *PlanPartition(corpus, PartitionPolicy::kHash, Targets(weights), replicas);
    std::map<std::string, double> primaries;
    for (const auto& holders : plan.holders) {
      ASSERT_EQ(holders.size(), replicas);
      primaries[holders[0].name] += 1.0 / 200'000;
      ASSERT_EQ(std::set<HolderId>(holders.begin(), holders.end()).size(), replicas);
    }
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(primaries["h" + std::to_string(i)], weights[i] / 8, 0.01) << i;
    EXPECT_EQ(plan.copies.size(), 200'000u * replicas);
    EXPECT_EQ(plan.drops.size(), 200'000u);
    EXPECT_EQ(plan.copy_bytes, plan.copies.size() * 64 * corpus.geometry.token_bytes());
  }
}

// A million chunks: when a holder is added or removed, or its weight changes, what moves is within
// 5 % of the minimum.
TEST(PlanPartition, AChangeMovesHardlyMoreThanItMust) {
  constexpr uint32_t kChunks = kSanitized ? 100'000 : 1'000'000;
  const Corpus corpus = CorpusOf(kChunks, {{"old"}});
  const std::vector<double> before = {1, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<std::vector<double>> changes = {{1, 1, 1, 1, 1, 1, 1, 1, 1},
                                                    {1, 1, 1, 1, 1, 1, 1},
                                                    {2, 1, 1, 1, 1, 1, 1, 1},
                                                    {1, 1, 1, 0.5, 1, 1, 1, 1}};
  const Corpus placed =
      After(corpus, *PlanPartition(corpus, PartitionPolicy::kHash, Targets(before), 1));
  for (const std::vector<double>& weights : changes) {
    const auto plan = *PlanPartition(placed, PartitionPolicy::kHash, Targets(weights), 1);
    // The minimum, by weights alone: what holders' shares grow by.
    double sum_before = 0, sum_after = 0, least = 0;
    for (const double weight : before) sum_before += weight;
    for (const double weight : weights) sum_after += weight;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double was = i < before.size() ? before[i] / sum_before : 0;
      least += std::max(0.0, weights[i] / sum_after - was);
    }
    EXPECT_LE(double(plan.copies.size()), 1.05 * least * kChunks) << weights.size();
    EXPECT_EQ(plan.copies.size(), plan.copies_min);
    EXPECT_EQ(plan.drops.size(), plan.copies.size());
  }
}

TEST(PlanPartition, ThePlanOfWhatIsThereIsEmpty) {
  const Corpus corpus = CorpusOf(1000, {{"h0"}, {"h1"}});
  for (const PartitionPolicy policy :
       {PartitionPolicy::kHash, PartitionPolicy::kDocument, PartitionPolicy::kRange}) {
    const auto targets = Targets({1, 2, 3});
    const Corpus placed = After(corpus, *PlanPartition(corpus, policy, targets, 2));
    const auto again = *PlanPartition(placed, policy, targets, 2);
    EXPECT_TRUE(again.copies.empty() && again.drops.empty());
    EXPECT_EQ(again.copy_bytes + again.copies_min, 0u);
    // In whatever order the holders are named.
    const std::vector<WeightedHolder> turned(targets.rbegin(), targets.rend());
    EXPECT_TRUE(PlanPartition(placed, policy, turned, 2)->copies.empty());
  }
}

TEST(PlanPartition, DocumentsAndNeighboursStayTogether) {
  const Corpus corpus = CorpusOf(10'000, {{"h0"}});
  const auto by_document =
      *PlanPartition(corpus, PartitionPolicy::kDocument, Targets({1, 1, 1, 1}), 1);
  for (uint32_t i = 0; i < 10'000; ++i)
    ASSERT_EQ(by_document.holders[i], by_document.holders[i / 10 * 10]);
  // More chunks than groups: neighbours share one, but for those at a border.
  const Corpus large = CorpusOf(4 * kPlacementGroupCount, {{"h0"}});
  const auto by_range = *PlanPartition(large, PartitionPolicy::kRange, Targets({1, 1, 1, 1}), 1);
  for (uint32_t i = 0; i < large.chunks.size(); ++i)
    ASSERT_EQ(by_range.holders[i], by_range.holders[i / 4 * 4]);
}

TEST(PlanPartition, CopiesFromHoldersThatHaveThem) {
  Corpus corpus = CorpusOf(1000, {{"h0"}});
  for (auto& chunk : corpus.chunks) chunk.set_holders({{"h0"}, {"h1"}});
  const auto plan = *PlanPartition(corpus, PartitionPolicy::kHash, Targets({1, 1, 1, 1}), 2);
  std::map<std::string, int> sent;
  for (const ChunkMove& copy : plan.copies) {
    const auto& had = corpus.chunks[copy.chunk].holders();
    ASSERT_NE(std::find(had.begin(), had.end(), copy.from), had.end());
    ASSERT_EQ(std::find(had.begin(), had.end(), copy.to), had.end());
    ++sent[copy.from.name];
  }
  EXPECT_NEAR(sent["h0"], sent["h1"], 0.2 * sent["h0"]);
  for (const ChunkMove& drop : plan.drops) EXPECT_TRUE(drop.to.name.empty());
}

TEST(PlanPartition, RefusesAnImpossiblePlan) {
  const Corpus corpus = CorpusOf(10, {{"h0"}});
  const auto refused = [&](std::vector<WeightedHolder> targets, uint32_t replicas) {
    return PlanPartition(corpus, PartitionPolicy::kHash, targets, replicas).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}, 1));
  EXPECT_TRUE(refused(Targets({1, 1}), 3));
  EXPECT_TRUE(refused(Targets({1, 1}), 0));
  EXPECT_TRUE(refused(Targets({1, 0}), 1));
  EXPECT_TRUE(refused(Targets({1, -1}), 1));
  EXPECT_TRUE(refused(Targets({1, std::nan("")}), 1));
  EXPECT_TRUE(refused(Targets({1, 1e9}), 1));
  EXPECT_TRUE(refused({{{"a"}, 1}, {{"a"}, 1}}, 1));
  EXPECT_TRUE(refused({{{""}, 1}}, 1));
  EXPECT_FALSE(ParsePartitionPolicy("alphabet").ok());
  EXPECT_EQ(*ParsePartitionPolicy("range"), PartitionPolicy::kRange);
}

}  // namespace
}  // namespace ckv
