// Goal: the verdict of `agents compare` on auto follows from the rounds. Times within their noise
// are equal, a loss beyond it is called one, and savings are relative to the worst fixed policy.
// Method: policies with made-up rounds, in every order.

#include "client/tools/ctl/query/compare_report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv::test {
namespace {

using ctl::AutoVerdict;
using ctl::Compared;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kMiB = uint64_t{1} << 20;

Compared Policy(std::string name, const std::vector<int>& rounds_ms, uint64_t routed_mib,
                uint64_t prefetched_mib) {
  Compared one;
  one.policy = std::move(name);
  for (const int ms : rounds_ms) one.rounds.push_back(std::chrono::milliseconds(ms));
  ctl::PolicyResult result;
  result.elapsed = *std::min_element(one.rounds.begin(), one.rounds.end());
  result.routed_bytes = routed_mib * kMiB;
  result.prefetched_bytes = prefetched_mib * kMiB;
  result.local_cache_bytes = prefetched_mib * kMiB;
  one.fastest = result;
  return one;
}

Compared DoesNotFit() {
  Compared one;
  one.policy = "cache";
  one.failure = absl::ResourceExhaustedError("policy cache: agent 2: local row cache: too large");
  one.need_bytes = 18 * kMiB;
  return one;
}

std::string Describe(std::vector<Compared> compared) {
  const auto verdict = AutoVerdict::Of(compared);
  return verdict.has_value() ? verdict->Describe() : "";
}

TEST(AutoVerdict, ComparesTimesWithTheNoiseOfTheirRounds) {
  struct Case {
    std::vector<int> by_auto, route;
    std::string said;
  };
  const std::vector<Case> cases = {
      // Rounds of route differ by 10 %, those of auto by less.
      {{107, 109, 120}, {100, 110, 111}, "auto: within noise of the fastest, route: 1.07 x"},
      {{93, 94, 95}, {100, 110, 111}, "auto: within noise of the fastest, route: 0.93 x"},
      {{109, 111, 112}, {100, 110, 111}, "auto: within noise of the fastest, route: 1.09 x"},
      {{111, 112, 113},
       {100, 110, 111},
       "auto: took 1.11 x the time of the fastest, route; more than 5 % above it, and rounds "
       "differ "
       "by 10 %"},
      {{80, 81, 82}, {100, 101, 101}, "auto: the fastest, 0.80 x the time of route"},
      {{104, 105, 105},
       {100, 101, 101},
       "auto: took 1.04 x the time of the fastest, route; within 5 %"},
      // One round shows nothing about noise.
      {{101}, {100}, "auto: took 1.01 x the time of the fastest, route; within 5 %"},
      {{106}, {100}, "auto: took 1.06 x the time of the fastest, route; more than 5 % above it"},
      {{100}, {100}, "auto: the fastest, 1.00 x the time of route"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.said);
    const Compared by_auto = Policy("auto", one.by_auto, 1, 1);
    const Compared route = Policy("route", one.route, 2, 0), cached = Policy("cache", {900}, 0, 9);
    EXPECT_THAT(Describe({by_auto, route, cached}), StartsWith(one.said));
    EXPECT_THAT(Describe({cached, route, by_auto}), StartsWith(one.said));
  }
}

TEST(AutoVerdict, NeedsAutoAndAFixedPolicyThatFinished) {
  const Compared by_auto = Policy("auto", {10}, 1, 1), route = Policy("route", {10}, 1, 1);
  EXPECT_EQ(Describe({route}), "");
  EXPECT_EQ(Describe({by_auto}), "");
  EXPECT_EQ(Describe({by_auto, DoesNotFit()}), "");
  EXPECT_NE(Describe({by_auto, DoesNotFit(), route}), "");
  Compared failed = by_auto;
  failed.failure = absl::UnavailableError("a later round");
  EXPECT_EQ(Describe({failed, route}), "");
}

TEST(AutoVerdict, ComparesSavingsWithThePolicyThatNeedsTheMostOfEach) {
  const std::vector<Compared> compared = {Policy("route", {100, 101}, 120, 0),
                                          Policy("cache", {200, 201}, 0, 18),
                                          Policy("auto", {110, 111}, 20, 10)};
  const AutoVerdict verdict = *AutoVerdict::Of(compared);
  EXPECT_EQ(verdict.time().policy, "cache");
  EXPECT_NEAR(verdict.time().share(), 0.45, 1e-9);
  EXPECT_FALSE(verdict.time().within_noise);
  EXPECT_EQ(verdict.bytes_moved().policy, "route");
  EXPECT_NEAR(verdict.bytes_moved().share(), 0.75, 1e-9);
  EXPECT_EQ(verdict.bytes_memory().policy, "cache");
  EXPECT_NEAR(verdict.bytes_memory().share(), 8.0 / 18, 1e-9);
  const std::string table = verdict.RenderSavings();
  EXPECT_THAT(table, StartsWith("WHAT AUTO SAVED"));
  EXPECT_THAT(table, HasSubstr("45 %\n"));
  EXPECT_THAT(table, HasSubstr("75 %\n"));
  EXPECT_THAT(table, HasSubstr("44 %\n"));
  EXPECT_EQ(verdict.SavingsToJson()["bytes_moved"]["policy"], "route");
}

TEST(AutoVerdict, ClaimsNoSavingsWithoutMeasurement) {
  // Slower than both beyond noise, and as much memory as cached.
  const std::vector<Compared> worse = {Policy("route", {100, 101}, 10, 0),
                                       Policy("cache", {120, 121}, 0, 18),
                                       Policy("auto", {150, 151}, 5, 18)};
  const AutoVerdict verdict = *AutoVerdict::Of(worse);
  EXPECT_LT(verdict.time().share(), 0);
  EXPECT_LT(verdict.bytes_moved().share(), 0);
  EXPECT_EQ(verdict.bytes_memory().share(), 0);
  EXPECT_THAT(verdict.RenderSavings(), Not(HasSubstr("%")));
  EXPECT_THAT(verdict.RenderSavings(), HasSubstr("nothing"));
  // Faster than the worst by less than its rounds differ.
  const std::vector<Compared> alike = {Policy("route", {100, 130}, 0, 0),
                                       Policy("auto", {90, 91}, 0, 0)};
  EXPECT_TRUE(AutoVerdict::Of(alike)->time().within_noise);
  EXPECT_THAT(AutoVerdict::Of(alike)->RenderSavings(), HasSubstr("within noise"));
  // Nothing was moved and nothing was kept, so the share is 0.
  EXPECT_EQ(AutoVerdict::Of(alike)->bytes_moved().share(), 0);
}

TEST(ComparedNoise, IsWhatTheMedianRoundTakesLonger) {
  EXPECT_FALSE(Policy("auto", {100}, 0, 0).noise_s().has_value());
  EXPECT_NEAR(*Policy("auto", {107, 100}, 0, 0).noise_s(), 0.007, 1e-9);
  EXPECT_NEAR(*Policy("auto", {900, 100, 103}, 0, 0).noise_s(), 0.003, 1e-9);
}

TEST(PolicyRows, APolicyThatDidNotFinishLeavesTheOthersTheirRows) {
  Compared failed = Policy("auto", {50}, 0, 0);
  failed.failure = absl::UnavailableError("policy auto: agent 0: h1 is gone");
  const std::vector<Compared> compared = {DoesNotFit(), failed, Policy("route", {100}, 3, 0)};
  const ctl::CompareReport report = ctl::RenderPolicies(compared, 2 * kMiB);
  EXPECT_THAT(report.text, HasSubstr("does not fit"));
  EXPECT_THAT(report.text, HasSubstr("cache: does not fit: an agent's rows take 18.0 "
                                     "MiB, and --local-cache-mib gives "
                                     "them 2.0 MiB\n"));
  EXPECT_THAT(report.text, HasSubstr("auto: failed: policy auto: agent 0: h1 is gone\n"));
  // A round of auto was faster, but auto did not finish.
  EXPECT_EQ(ctl::FastestOf(compared).policy, "route");
  ASSERT_EQ(report.policies.size(), 3u);
  EXPECT_EQ(report.policies[0]["need_bytes"], 18 * kMiB);
  EXPECT_EQ(report.policies[0]["room_bytes"], 2 * kMiB);
  EXPECT_FALSE(report.policies[0].contains("seconds"));
  EXPECT_FALSE(report.policies[1].contains("need_bytes"));
  EXPECT_EQ(report.policies[2]["of_fastest"], 1.0);
}

}  // namespace
}  // namespace ckv::test
