// Goal: `agents compare` runs the same agents under each policy, starts each with an empty local
// row cache, and distinguishes right tokens from wrong ones.
// Method: the parts on their own; then the command against daemons in this process.

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "client/tools/ctl/query/policy_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/tools/ctl/load_fleet.h"
#include "tests/support/temp_folder.h"

namespace ckv::test {
namespace {

using ctl::Json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(PolicyAgents, SomeStaySomeLookSomeReadEverything) {
  Corpus corpus;
  corpus.chunks.resize(3);
  const auto agents = ctl::MakePolicyAgents(corpus, 8, 320);
  ASSERT_EQ(agents.size(), 8u);
  for (const size_t stays : {0, 4}) {
    EXPECT_EQ(agents[stays].token_count, 320u);
    EXPECT_THAT(agents[stays].chunks, ElementsAre(stays % 3));
  }
  for (const size_t looks : {1, 3, 5, 7}) {
    EXPECT_EQ(agents[looks].token_count, 1u);
    EXPECT_THAT(agents[looks].chunks, ElementsAre(looks % 3));
  }
  for (const size_t reads : {2, 6}) {
    EXPECT_EQ(agents[reads].token_count, 10u);
    EXPECT_THAT(agents[reads].chunks, ElementsAre(0, 1, 2));
  }
  EXPECT_NE(agents[0].prompt, agents[4].prompt);
  // At least one token, however few are requested.
  EXPECT_EQ(ctl::MakePolicyAgents(corpus, 3, 1)[2].token_count, 1u);
}

TEST(PolicyAgents, CountsWrongAndMissingTokens) {
  const ctl::PolicyAnswers expected = {{{1, 0.5f}, {2, 0.5f}}, {{3, 0.5f}}};
  EXPECT_EQ(ctl::CountDifferent(expected, expected), 0u);
  EXPECT_EQ(ctl::CountDifferent({{{1, 0.5f}, {9, 0.5f}}, {{3, 0.5f}}}, expected), 1u);
  EXPECT_EQ(ctl::CountDifferent({{{1, 0.5f}}, {{3, 0.5f}}}, expected), 1u);
  EXPECT_EQ(ctl::CountDifferent({expected[0]}, expected), 1u);
}

class CompareTest : public LoadFleet {
 protected:
  void SetUp() override {
    LoadFleet::SetUp();
    StartHolders(2);
    text_ = TempPath("compare.txt");
    std::ofstream(text_) << "What may be copied, by whom, and on what terms, is said in a licence. "
                            "Who changes a file must say so, and when. ";
    row_bytes_ = MustRun({"corpus", "load", "c", text_, "--text", "--max-tokens", "96",
                          "--chunk-tokens", "32"})["total_row_bytes"];
  }
  std::vector<std::string> Compare(std::vector<std::string> more) const {
    more.insert(more.begin(), {"agents", "compare", "--corpus", "c", "--text", text_, "--tokens",
                               "3", "--rounds", "2"});
    return more;
  }

  std::string text_;
  uint64_t row_bytes_ = 0;
};

TEST_F(CompareTest, EachPolicyIsRunWithNothingNear) {
  // Policy cache is first: if the next policy shared its requester, nothing would be left to
  // prefetch.
  const Json json = MustRun(Compare({"--policy", "cache,auto,route"}));
  EXPECT_TRUE(json["equal"]) << json;
  ASSERT_EQ(json["policies"].size(), 3u);
  for (const Json& one : json["policies"]) {
    EXPECT_TRUE(one["equal"]) << one;
    EXPECT_EQ(one["rounds_s"].size(), 2u);
    EXPECT_GE(one["of_fastest"], 1.0);
  }
  const Json& cached = json["policies"][0];
  EXPECT_EQ(cached["policy"], "cache");
  // The holders are on this host, so rows are mapped. Rows that take too long to map are fetched.
  const uint64_t mapped = cached["bytes_mapped"], prefetched = cached["bytes_prefetched"];
  EXPECT_GT(mapped, 0u);
  EXPECT_GE(mapped + prefetched, row_bytes_);
  EXPECT_GE(cached["bytes_memory"], row_bytes_);
  EXPECT_EQ(cached["bytes_routed"], 0u);
  EXPECT_EQ(cached["cached_share"], 1.0);
  const Json& routed = json["policies"][2];
  EXPECT_EQ(routed["policy"], "route");
  EXPECT_EQ(routed["bytes_prefetched"], 0u);
  EXPECT_EQ(routed["bytes_memory"], 0u);
  EXPECT_GT(routed["bytes_routed"], 0u);
  EXPECT_EQ(routed["cached_share"], 0.0);
}

TEST_F(CompareTest, ReportsNothingOnAutoWithoutIt) {
  const Json json = MustRun(Compare({"--policy", "cache"}));
  EXPECT_EQ(json["fastest"], "cache");
  EXPECT_EQ(json["auto"], "");
  EXPECT_TRUE(json["auto_saved"].is_null());
  EXPECT_EQ(json["policies"].size(), 1u);
}

TEST_F(CompareTest, NamesEachMistake) {
  const Outcome unknown = Run(Compare({"--policy", "route,nearest"}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("'nearest' is not one of route|cache|auto"));
  const Outcome twice = Run(Compare({"--policy", "route,auto,route"}));
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("--policy: route is named twice"));
  const std::string other = TempPath("other.txt");
  std::ofstream(other) << std::string(200, 'x');
  const Outcome text = Run({"agents", "compare", "--corpus", "c", "--text", other});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.err, HasSubstr("loaded from another text"));
  EXPECT_EQ(Run({"agents", "compare", "--corpus", "absent", "--text", text_}).code, 3);
}

// 320 tokens of the reference engine take 1.4 MiB.
TEST_F(CompareTest, RowsWithoutRoomAreARowOfTheTable) {
  std::ofstream(text_) << std::string(150, 'a') + std::string(170, 'b');
  MustRun({"corpus", "load", "large", text_, "--text", "--chunk-tokens", "160"});
  const std::vector<std::string> command = {"agents",   "compare", "--corpus",          "large",
                                            "--text",   text_,     "--tokens",          "1",
                                            "--rounds", "2",       "--local-cache-mib", "1"};
  const Json json = MustRun(command);
  EXPECT_TRUE(json["equal"]) << json;
  ASSERT_EQ(json["policies"].size(), 3u);
  EXPECT_EQ(json["policies"][0]["rounds_s"].size(), 2u) << json;
  const Json& cached = json["policies"][1];
  EXPECT_EQ(cached["policy"], "cache");
  EXPECT_EQ(cached["room_bytes"], 1u << 20);
  EXPECT_GT(cached["need_bytes"], cached["room_bytes"]);
  EXPECT_EQ(json["policies"][2]["policy"], "auto");
  EXPECT_EQ(json["policies"][2]["rounds_s"].size(), 2u) << json;
  EXPECT_THAT(std::string(cached["error"]), HasSubstr("does not fit: an agent's rows take 1."));
  // There is nothing else to show.
  std::vector<std::string> alone = command;
  alone.insert(alone.end(), {"--policy", "cache"});
  const Outcome refused = Run(alone);
  EXPECT_EQ(refused.code, 6);
  EXPECT_THAT(refused.err, HasSubstr("policy cache: agent 2: "));
}

TEST_F(CompareTest, ReportsWhatAutoSaved) {
  const Json json = MustRun(Compare({}));
  EXPECT_GT(json["auto_factor"], 0.0);
  EXPECT_GE(json["noise"], 0.0);
  EXPECT_GT(json["auto_saved"]["seconds"]["worst"], 0.0);
}

TEST_F(CompareTest, ACorpusOfAnotherModelIsRefused) {
  Load("random", MakeTestCorpus(TestGeometry(), {32}, /*seed=*/7));
  const Outcome refused = Run({"agents", "compare", "--corpus", "random", "--text", text_});
  EXPECT_EQ(refused.code, 7);
  EXPECT_THAT(refused.err, HasSubstr("is not of the reference engine's model"));
}

}  // namespace
}  // namespace ckv::test
