// Goal: ckvctl chunk find lists a prompt's chunks among those that its tenant may read, and no
// others. Chunks of a tenant have ids of their own and survive a restart.

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"
#include "tests/client/tools/ctl/load_fleet.h"

namespace ckv {
namespace {

using ctl::Json;
using test::WriteTestFile;
using ::testing::HasSubstr;

class FindTest : public test::LoadFleet {
 protected:
  void SetUp() override {
    Config config = test::ConfigOf({"directory"}, "d");
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    config.directory_path = test::TempPath(std::string(test->name()) + "-directory");
    StartDirectory(config);
  }
  // `count` tokens that differ from those of other seeds.
  static std::vector<int32_t> Tokens(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
    return tokens;
  }
  static std::string Lines(const std::string& name,
                           const std::vector<std::vector<int32_t>>& documents) {
    std::string text;
    for (const std::vector<int32_t>& document : documents) text += Json(document).dump() + "\n";
    return WriteTestFile(name, text);
  }
  static std::vector<int32_t> Join(const std::vector<std::vector<int32_t>>& parts) {
    std::vector<int32_t> all;
    for (const std::vector<int32_t>& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  void LoadAlone(const std::string& name, const std::string& file, const std::string& tenant = "") {
    MustRun({"corpus", "load", name, file, "--cut", "document", "--standalone"}, tenant);
  }
  std::vector<std::string> IdsOf(const std::string& name, const std::string& tenant = "") {
    std::vector<std::string> ids;
    const Json shown = MustRun({"corpus", "show", name}, tenant);
    for (const Json& chunk : shown["chunks"]) ids.push_back(chunk["id"]);
    return ids;
  }
};

TEST_F(FindTest, APromptOfSharedDocumentsAndAChain) {
  StartHolders(1);
  StartRequester();
  const auto one = Tokens(40, 1), two = Tokens(30, 2), chain = Tokens(48, 3);
  LoadAlone("notes", Lines("notes.jsonl", {one, two}));
  MustRun({"corpus", "load", "chain", Lines("chain.jsonl", {chain}), "--chunk-tokens", "16"});
  const std::vector<std::string> notes = IdsOf("notes"), links = IdsOf("chain");
  // Two of the chain's three chunks, a gap, the documents in another order, a gap.
  const auto prompt = Join({{chain.begin(), chain.begin() + 37}, two, one, {1, 2, 3}});
  const Json found = MustRun({"chunk", "find", Lines("prompt.jsonl", {prompt})});
  EXPECT_EQ(found["token_count"], 110);
  EXPECT_EQ(found["covered_token_count"], 102);
  const auto span = [](int begin, int count, const std::string& chunk, int offset) {
    return Json{
        {"token_begin", begin}, {"token_count", count}, {"chunk", chunk}, {"offset", offset}};
  };
  EXPECT_EQ(found["spans"], Json::array({span(0, 16, links[0], 0), span(16, 16, links[1], 0),
                                         span(37, 30, notes[1], 37), span(67, 40, notes[0], 67)}));
  EXPECT_EQ(found["holes"], Json::array({Json{{"token_begin", 32}, {"token_count", 5}},
                                         Json{{"token_begin", 107}, {"token_count", 3}}}));
  EXPECT_EQ(found["truncated"], false);
  // Along one corpus only.
  const Json along =
      MustRun({"chunk", "find", Lines("prompt.jsonl", {prompt}), "--corpus", "chain"});
  EXPECT_EQ(along["spans"], Json::array({span(0, 16, links[0], 0), span(16, 16, links[1], 0)}));
  EXPECT_EQ(along["holes"], Json::array({Json{{"token_begin", 32}, {"token_count", 78}}}));
  EXPECT_EQ(MustRun({"chunk", "find", Lines("prompt.jsonl", {prompt}), "--geometry-of",
                     "notes"})["spans"],
            found["spans"]);
}

TEST_F(FindTest, AppendsOfATenantHaveIdsOfItsKey) {
  StartDurableHolders(1);
  StartRequester();
  const auto one = Tokens(40, 6), two = Tokens(30, 7);
  LoadAlone("notes", Lines("one.jsonl", {one}), "acme");
  const Json appended = MustRun({"corpus", "load", "notes", Lines("two.jsonl", {one, two}), "--cut",
                                 "document", "--standalone", "--extend"},
                                "acme");
  EXPECT_EQ(appended["chunks_appended"], 1);
  const std::string prompt = Lines("prompt.jsonl", {Join({two, {7}, one})});
  EXPECT_EQ(MustRun({"chunk", "find", prompt}, "acme")["covered_token_count"], 70);
  EXPECT_EQ(Run({"chunk", "find", prompt}, "other").code, 3);
  // A chain continues after an id with a verification tag.
  const std::string head = test::RowsOfFile(32, 0, 1).Write("head");
  const std::string tail = test::RowsOfFile(16, 32, 2).Write("tail");
  MustRun({"corpus", "load", "whole", head, tail}, "acme");
  MustRun({"corpus", "load", "chain", head}, "acme");
  for (const int due : {1, 0}) {  // and again
    const Json report = MustRun({"corpus", "load", "chain", tail, "--extend"}, "acme");
    EXPECT_EQ(report["chunks_appended"], due);
    EXPECT_EQ(IdsOf("chain", "acme"), IdsOf("whole", "acme"));
  }
}

TEST_F(FindTest, HidesATenantsChunksFromOthers) {
  StartDurableHolders(1);
  StartRequester();
  const auto text = Tokens(40, 4), shared = Tokens(30, 5);
  const std::string file = Lines("secret.jsonl", {text});
  LoadAlone("secret", file, "acme");
  LoadAlone("open", Lines("open.jsonl", {shared}));
  const std::string prompt = Lines("prompt.jsonl", {Join({text, {7}, shared})});
  const Json own = MustRun({"chunk", "find", prompt}, "acme");
  EXPECT_EQ(own["covered_token_count"], 70);
  const std::string id = IdsOf("secret", "acme")[0];
  EXPECT_EQ(own["spans"][0]["chunk"], id);
  for (const std::string tenant : {"", "other"}) {
    const Json found = MustRun({"chunk", "find", prompt}, tenant);
    EXPECT_EQ(found["covered_token_count"], 30) << tenant;
    EXPECT_EQ(Run({"chunk", "find", file}, tenant).code, 3) << tenant;  // nothing at all
  }
  // The same text of another tenant, and of everyone, has other ids.
  LoadAlone("secret", file, "other");
  LoadAlone("plain", file);
  const std::string others = IdsOf("secret", "other")[0], plain = IdsOf("plain")[0];
  EXPECT_NE(id, others);
  EXPECT_NE(id, plain);
  EXPECT_NE(others, plain);
  // Along a corpus the key is used, too.
  EXPECT_EQ(MustRun({"chunk", "find", file, "--corpus", "secret"}, "acme")["spans"][0]["chunk"],
            id);
  // The chunk is checked and served from its file after a restart.
  StopHolder(0);
  StartDurableHolder(0);
  EXPECT_EQ(Run({"corpus", "verify", "secret"}, "acme").code, 0);
}

// The shared tenant has the plain key, so previous ids stay the same.
TEST_F(FindTest, SharedIdsArePlain) {
  StartHolders(1);
  const auto text = Tokens(20, 6);
  LoadAlone("open", Lines("open.jsonl", {text}));
  v1::GetCorpusRequest request;
  request.set_name("open");
  v1::GetCorpusReply reply;
  ASSERT_TRUE(directory_stub_->GetCorpus(test::Call().get(), request, &reply).ok());
  const Corpus corpus = *FromProto(reply.corpus());
  EXPECT_EQ(corpus.chunks[0].id,
            ComputeChunkId(ModelFingerprint(corpus.geometry), ChunkId(), 0, text));
  EXPECT_EQ(corpus.chunks[0].token_hash(), TokenHashOf(text, TenantKey()));
}

TEST_F(FindTest, ReportsMistakesBeforeItQueriesAMember) {
  const std::string two = Lines("two.jsonl", {{1, 2}, {3}});
  EXPECT_THAT(Run({"chunk", "find", two}).err, HasSubstr("2 lines, and a prompt is one"));
  EXPECT_THAT(Run({"chunk", "find", WriteTestFile("prompt.txt", "abc")}).err,
              HasSubstr("pass --text or --jsonl"));
  EXPECT_EQ(Run({"chunk", "find", two, "--text", "--jsonl"}).code, 2);
  EXPECT_EQ(Run({"chunk", "find", two, "--corpus", "a", "--geometry-of", "b"}).code, 2);
}

}  // namespace
}  // namespace ckv
