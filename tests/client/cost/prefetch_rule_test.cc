// Goal: the rule prefetches when it should, learns what uses are like, follows a change, believes
// hints as far as they are right, and never pays much more than twice what a clairvoyant pays.
// Method: uses made from seeds, one step costing 1 us, against the experts' own costs in hindsight.

#include "client/cost/prefetch_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

constexpr Instant kNow = {1'000'000'000};
constexpr PrefetchRuleOptions kWide = {.capacity_bytes = 1 << 20};

// Returns the cost of one use: its routed steps, and the prefetch.
double UseOnce(PrefetchRule& rule, uint64_t item, double steps, double price,
               std::optional<double> hint = {}) {
  const PrefetchRule::UseId use = rule.Open(item, "c", {price, 1}, hint, kNow);
  double cost = 0;
  const double left = std::ceil(rule.LeftUs(use, kNow));
  if (rule.Verdict(use, kNow) == PrefetchVerdict::kCached || steps <= 0) {
    rule.Lose(use, steps, kNow);
  } else if (steps <= left && left > 0) {
    rule.Lose(use, steps, kNow);
    cost = steps;
  } else {
    if (left > 0) rule.Lose(use, left, kNow);
    EXPECT_EQ(rule.Verdict(use, kNow), PrefetchVerdict::kPrefetch);
    rule.PrefetchBegan(use, kNow);
    rule.Lose(use, steps - left, kNow);
    cost = left + price;
  }
  rule.Close(use);
  return cost;
}

double FixedCost(double factor, double steps, double price) {
  const double threshold = std::ceil(factor * price);
  return steps <= threshold && threshold > 0 ? steps : threshold + price;
}

double BestFixed(const std::vector<double>& uses, size_t begin, size_t end, double price) {
  double best = 1e300;
  for (const double factor : PrefetchRule::kFactors) {
    double cost = 0;
    for (size_t i = begin; i < end; ++i) cost += FixedCost(factor, uses[i], price);
    best = std::min(best, cost);
  }
  return best;
}

TEST(PrefetchRule, RoutesUntilItHasPaidThePriceWithoutKnownCosts) {
  PrefetchRule rule(kWide);
  for (uint64_t item = 0; item < PrefetchRule::kLearnUseCount; ++item) {
    // The worst use of all: it ends with the prefetch.
    EXPECT_EQ(UseOnce(rule, item, 101, 100), 200) << item;
  }
}

TEST(PrefetchRule, PrefetchesAtOnceIfUsesAreLong) {
  PrefetchRule rule(kWide);
  for (uint64_t item = 0; item < 60; ++item) UseOnce(rule, item, 1000, 100);
  EXPECT_EQ(rule.Leader("c", false), 0u);
  EXPECT_EQ(UseOnce(rule, 1000, 1000, 100), 100);
  EXPECT_EQ(rule.Leader("another", false), 0u) << "a class without uses of its own goes by all";
}

TEST(PrefetchRule, RoutesIfAPrefetchWouldEndTooLate) {
  PrefetchRule rule(kWide);
  std::mt19937 rng(1);
  for (uint64_t item = 0; item < 400; ++item)
    UseOnce(rule, item, static_cast<double>(5 + rng() % 146), 100);
  EXPECT_GE(PrefetchRule::kFactors[rule.Leader("c", false)], 2);
  EXPECT_EQ(UseOnce(rule, 1000, 150, 100), 150);
}

TEST(PrefetchRule, StaysNearTheBestExpertOfEachHalf) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 rng(seed);
    const double price = std::array{2.0, 20.0, 200.0, 2000.0}[rng() % 4];
    std::lognormal_distribution<double> first(std::log(price) + int(rng() % 5) - 2, 1.0);
    const double change = rng() % 2 == 0 ? 10 : 0.1;
    std::vector<double> uses(6000);
    for (size_t i = 0; i < uses.size(); ++i)
      uses[i] = std::max(1.0, std::floor(first(rng) * (i < uses.size() / 2 ? 1 : change)));
    PrefetchRule rule(kWide);
    double cost = 0;
    for (size_t i = 0; i < uses.size(); ++i) cost += UseOnce(rule, i, uses[i], price);
    const double best = BestFixed(uses, 0, uses.size() / 2, price) +
                        BestFixed(uses, uses.size() / 2, uses.size(), price);
    EXPECT_LE(cost, 1.15 * best) << "seed " << seed << ", price " << price;
  }
}

// Each use ends as soon as the rule has prefetched: the worst for the threshold that decides.
TEST(PrefetchRule, AnAdversaryGetsLittleMoreThanTwiceTheClairvoyant) {
  const double price = 60;
  PrefetchRule rule(kWide);
  double cost = 0, clairvoyant = 0;
  for (uint64_t item = 0; item < 5000; ++item) {
    const size_t leader = rule.Leader("c", false);
    const double steps =
        leader == 8 ? 20 * price : std::ceil(PrefetchRule::kFactors[leader] * price) + 1;
    cost += UseOnce(rule, item, steps, price);
    clairvoyant += std::min(steps, price);
    if (item < PrefetchRule::kLearnUseCount) {
      ASSERT_LE(cost, 2.05 * clairvoyant) << item;
    }
  }
  EXPECT_LE(cost, 2.2 * clairvoyant);
}

TEST(PrefetchRule, UsesHintsAsFarAsTheyAreRight) {
  std::mt19937_64 rng(3);
  std::lognormal_distribution<double> steps_of(std::log(300.0), 1.2);
  const double price = 350;
  double plain = 0, exact = 0, wrong = 0, optimum = 0;
  PrefetchRule without(kWide), with(kWide), misled(kWide);
  for (uint64_t item = 0; item < 8000; ++item) {
    const double steps = std::max(1.0, std::floor(steps_of(rng)));
    optimum += std::min(steps, price);
    plain += UseOnce(without, item, steps, price);
    exact += UseOnce(with, item, steps, price, steps);
    wrong += UseOnce(misled, item, steps, price, rng() % 2 == 0 ? steps * 10 : steps / 10);
  }
  EXPECT_LE(exact, 1.05 * optimum);
  EXPECT_LE(wrong, 1.10 * plain);
}

TEST(PrefetchRule, HintsOfOpenUsesOfOneItemAddUp) {
  PrefetchRule rule(kWide);
  const PrefetchRule::UseId one = rule.Open(1, "c", {100, 1}, 60, kNow);
  EXPECT_EQ(rule.Verdict(one, kNow), PrefetchVerdict::kBelowThreshold);
  const PrefetchRule::UseId two = rule.Open(1, "c", {100, 1}, 60, kNow);
  EXPECT_EQ(rule.Verdict(two, kNow), PrefetchVerdict::kPrefetch);
  rule.Close(one);
  rule.Close(two);
}

TEST(PrefetchRule, NeverPrefetchesWhatDoesNotFit) {
  PrefetchRule rule({.capacity_bytes = 10});
  const PrefetchRule::UseId use = rule.Open(1, "c", {100, 11}, {}, kNow);
  EXPECT_EQ(rule.Lose(use, 1e6, kNow), PrefetchVerdict::kTooLarge);
  EXPECT_EQ(rule.LeftUs(use, kNow), std::numeric_limits<double>::infinity());
  rule.Close(use);
}

TEST(PrefetchRule, AnEvictedItemIsPrefetchedAgainOnlyOnceItHasPaidForItself) {
  PrefetchRule rule(kWide);
  const auto at = [](double us) { return kNow + Duration(int64_t(us * 1e3)); };
  const PrefetchRule::UseId use = rule.Open(1, "c", {100, 1}, {}, kNow);
  // Loses 100 us in 400, so a prefetch of 100 us pays for itself in 400.
  EXPECT_EQ(rule.Lose(use, 100, at(400)), PrefetchVerdict::kPrefetch);
  rule.PrefetchBegan(use, at(400));
  EXPECT_EQ(rule.Lose(use, 10, at(410)), PrefetchVerdict::kCached);
  rule.Evicted(1);
  EXPECT_EQ(rule.Lose(use, 150, at(700)), PrefetchVerdict::kTooSoon);
  EXPECT_NEAR(rule.LeftUs(use, at(700)), 100, 1);
  EXPECT_EQ(rule.Verdict(use, at(801)), PrefetchVerdict::kPrefetch);
  rule.Close(use);
  EXPECT_NEAR(rule.stats().routed_us, 250, 1e-9);
  EXPECT_NEAR(rule.stats().saved_us, 10, 1e-9);
  EXPECT_NEAR(rule.stats().paid_us, 100, 1e-9);
}

TEST(PrefetchRule, AThresholdCountsWhatItEvicts) {
  // Two items in turns, space for one: a prefetch at once evicts the other each time. 30 steps for
  // a price of 20 are worth a prefetch only without that.
  PrefetchRule rule({.capacity_bytes = 1});
  std::mt19937 rng(5);
  double cost = 0;
  for (int i = 0; i < 4000; ++i) cost += UseOnce(rule, i % 2, i % 2 == 0 ? 30 : 3, 20);
  // Best: keep item 0 cached, and route item 1 for 3 steps a use.
  EXPECT_LE(cost, 2000 * 3 * 1.3 + 2000);
}

TEST(PrefetchRule, ItemsUnusedForLongestAreDropped) {
  PrefetchRule rule({.capacity_bytes = 1 << 20, .item_count_max = 8});
  const PrefetchRule::UseId held = rule.Open(1000, "c", {100, 1}, {}, kNow);
  rule.Lose(held, 60, kNow);
  for (uint64_t item = 0; item < 100; ++item) UseOnce(rule, item, 60, 100);
  EXPECT_EQ(rule.Lose(held, 40, kNow), PrefetchVerdict::kPrefetch)
      << "the item of an open use is not dropped";
  rule.Close(held);
  EXPECT_EQ(UseOnce(rule, 99, 60, 100), 40 + 100) << "the newest are known";
  EXPECT_EQ(UseOnce(rule, 0, 60, 100), 60) << "the oldest begin anew";
}

TEST(PrefetchRule, NonsenseCostsNothing) {
  PrefetchRule rule(kWide);
  const PrefetchRule::UseId use = rule.Open(1, "c", {NAN, 1}, NAN, kNow);
  rule.Lose(use, -5, kNow);
  rule.Lose(use, NAN, kNow);
  rule.Close(use);
  EXPECT_EQ(rule.stats().uses, 0u);
}

}  // namespace
}  // namespace ckv
