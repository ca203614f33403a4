#include "proto/corpus.h"
#include "tests/support/named_geometry.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

namespace ckv {
namespace {

Corpus Good(size_t chunk_count = 3) {
  Corpus corpus;
  corpus.name = "gpl-3.0_text";
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  for (size_t i = 0; i < chunk_count; ++i) {
    ChunkPlacement chunk;
    chunk.id.bytes[0] = static_cast<uint8_t>(i + 1);
    chunk.id.bytes[1] = static_cast<uint8_t>(i >> 8);
    chunk.token_count = 10;
    chunk.position = 10 * i;
    chunk.set_holders({{"a"}, {"b"}});
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

TEST(Corpus, CountsItsTokens) {
  EXPECT_EQ(Good(0).token_count(), 0u);
  Corpus corpus = Good(4097);
  for (ChunkPlacement& chunk : corpus.chunks) chunk.token_count = kChunkTokenCountMax;
  EXPECT_EQ(corpus.token_count(), 4097 * uint64_t{kChunkTokenCountMax}) << "beyond 32 bits";
}

TEST(ChunkPlacement, HasTheFactsThatItIsMadeFrom) {
  PlacementFacts facts;
  facts.id.bytes[0] = 1;
  facts.parent.bytes[0] = 2;
  facts.token_count = kChunkTokenCountMax;
  facts.position = kPositionMax;
  facts.holders = {{"a"}, {"b"}};
  facts.leased = {{"c"}};
  facts.token_hash = {.head = 3, .whole = 4};
  EXPECT_TRUE(ValidateNumbers(facts).ok());
  ChunkPlacement chunk(facts);
  EXPECT_EQ(chunk.id, facts.id);
  EXPECT_EQ(chunk.parent(), facts.parent);
  EXPECT_EQ(chunk.token_count, facts.token_count);
  EXPECT_EQ(uint64_t{chunk.position}, facts.position);
  EXPECT_EQ(chunk.holders(), facts.holders);
  EXPECT_EQ(chunk.leased(), facts.leased);
  EXPECT_EQ(chunk.token_hash(), facts.token_hash);
  const ChunkPlacement whole = chunk;
  chunk.ClearLineage();
  EXPECT_TRUE(chunk.parent().IsZero());
  EXPECT_EQ(chunk.token_hash(), TokenHash());
  EXPECT_EQ(whole.parent(), facts.parent) << "a copy is not changed";
  EXPECT_TRUE(whole.HasMembersOf(chunk));
  chunk.set_leased({});
  EXPECT_FALSE(whole.HasMembersOf(chunk));
  EXPECT_EQ(whole.leased(), facts.leased);
}

TEST(ChunkPlacement, RefusesNumbersThatItCannotHold) {
  PlacementFacts facts;
  facts.token_count = kChunkTokenCountMax + 1;
  EXPECT_EQ(ValidateNumbers(facts).code(), absl::StatusCode::kInvalidArgument);
  facts.token_count = 0;
  facts.position = kPositionMax + 1;
  EXPECT_EQ(ValidateNumbers(facts).code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemberSharing, ChunksWithTheSameMembersShareThem) {
  Corpus corpus = Good(6);
  for (size_t i = 0; i < 6; ++i) corpus.chunks[i].set_holders({{i % 2 == 0 ? "a" : "b"}});
  corpus.chunks[4].set_leased({{"c"}});
  const Corpus before = corpus;
  MemberSharing sharing;
  for (ChunkPlacement& chunk : corpus.chunks) sharing.Add(chunk);
  EXPECT_EQ(corpus, before);
  EXPECT_EQ(&corpus.chunks[0].holders(), &corpus.chunks[2].holders());
  EXPECT_EQ(&corpus.chunks[1].holders(), &corpus.chunks[5].holders());
  EXPECT_NE(&corpus.chunks[0].holders(), &corpus.chunks[4].holders());
  corpus.chunks[2].mutable_holders().push_back({"z"});
  EXPECT_EQ(corpus.chunks[0].holders().size(), 1u) << "a change is that of one chunk";

  // A copy of chunks that share already goes on sharing all that it has, with its lineage.
  corpus.chunks[1].set_parent(corpus.chunks[0].id);
  sharing.Add(corpus.chunks[1]);
  Corpus copy = corpus;
  sharing.AddAll(copy.chunks);
  EXPECT_EQ(copy, corpus);
  EXPECT_EQ(&copy.chunks[1].parent(), &corpus.chunks[1].parent());
}

TEST(ValidateCorpus, AcceptsTheLimitsThemselves) {
  EXPECT_TRUE(ValidateCorpus(Good(0)).ok());
  Corpus corpus = Good();
  corpus.name = std::string(kCorpusNameBytesMax, 'Z');
  corpus.tenant = "tenant-1";
  corpus.chunks[0].token_count = 0;
  corpus.chunks[1].token_count = kChunkTokenCountMax;
  corpus.chunks[1].position = kPositionMax;
  corpus.chunks[2].set_holders({});
  for (uint32_t i = 0; i < kReplicaCountMax; ++i) {
    corpus.chunks[2].mutable_holders().push_back({std::to_string(i)});
  }
  EXPECT_TRUE(ValidateCorpus(corpus).ok()) << ValidateCorpus(corpus);
}

TEST(ValidateCorpus, NamesTheInvalidField) {
  struct Case {
    const char* error;
    std::function<void(Corpus&)> change;
  };
  const Case cases[] = {
      {"no name", [](Corpus& c) { c.name = ""; }},
      {"corpus: name: 129 characters", [](Corpus& c) { c.name = std::string(129, 'a'); }},
      {"corpus: name: only letters", [](Corpus& c) { c.name = "a/b"; }},
      {"corpus: name: only letters", [](Corpus& c) { c.name = std::string("a\0b", 3); }},
      {"corpus: tenant: only letters", [](Corpus& c) { c.tenant = "a b"; }},
      {"geometry: layers", [](Corpus& c) { c.geometry.layers = 0; }},
      {"chunk 1: the zero id", [](Corpus& c) { c.chunks[1].id = ChunkId(); }},
      {"chunk 2: too many tokens",
       [](Corpus& c) { c.chunks[2].token_count = kChunkTokenCountMax + 1; }},
      {"chunk 0: position", [](Corpus& c) { c.chunks[0].position = kPositionMax + 1; }},
      {"chunk 1: no holder", [](Corpus& c) { c.chunks[1].set_holders({}); }},
      {"chunk 1: too many holders",
       [](Corpus& c) { c.chunks[1].mutable_holders().resize(kReplicaCountMax + 1); }},
      {"chunk 1: a holder without a name",
       [](Corpus& c) { c.chunks[1].mutable_holders()[1].name = ""; }},
      {"corpus: holder: only", [](Corpus& c) { c.chunks[1].mutable_holders()[1].name = "a b"; }},
      {"chunk 1: a holder twice", [](Corpus& c) { c.chunks[1].mutable_holders()[1].name = "a"; }},
      {"chunk 1: a holder twice", [](Corpus& c) { c.chunks[1].set_leased({{"b"}}); }},
      {"chunk 1: too many holders",
       [](Corpus& c) { c.chunks[1].mutable_leased().resize(kReplicaCountMax - 1); }},
      {"chunk 2: 010000000000 is in it already",
       [](Corpus& c) { c.chunks[2].id = c.chunks[0].id; }},
  };
  for (const Case& c : cases) {
    Corpus corpus = Good();
    c.change(corpus);
    const absl::Status status = ValidateCorpus(corpus);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_NE(std::string(status.message()).find(c.error), std::string::npos)
        << c.error << ": " << status;
  }
}

TEST(VersionName, IsTheNameAndTheNumber) {
  EXPECT_EQ(VersionNameOf("docs", 7), "docs@7");
  const auto parsed = ParseVersionName("docs@18446744073709551615");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->name, "docs");
  EXPECT_EQ(parsed->version, UINT64_MAX);
  for (const char* other : {"docs", "@7", "docs@", "docs@07", "docs@0", "docs@x", "docs@7@8",
                            "a@-1", "docs@18446744073709551616"}) {
    EXPECT_FALSE(ParseVersionName(other).has_value()) << other;
  }
  EXPECT_TRUE(ValidateCorpusName("NAME", "docs@7").ok());
  EXPECT_TRUE(ValidateCorpusName("NAME", "docs").ok());
  for (const char* bad : {"docs@", "do cs@7", "@7", "docs@7@8"})
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateCorpusName("NAME", bad))) << bad;
  EXPECT_FALSE(ValidateCorpusName("NAME", std::string(127, 'n') + "@7").ok());
}

TEST(ValidatePolicy, RefusesWhatIsBeyondItsLimits) {
  EXPECT_TRUE(ValidatePolicy({}).ok());
  EXPECT_TRUE(
      ValidatePolicy({.ttl_ms = kTtlMsMax, .kept_version_count = kKeptVersionCountMax}).ok());
  EXPECT_FALSE(ValidatePolicy({.ttl_ms = kTtlMsMax + 1}).ok());
  EXPECT_FALSE(ValidatePolicy({.kept_version_count = kKeptVersionCountMax + 1}).ok());
}

TEST(ChunksOrAll, ListsThemAllIfNoneIsNamed) {
  Corpus corpus;
  EXPECT_EQ(ChunksOrAll(corpus, {}).status().code(), absl::StatusCode::kInvalidArgument);
  corpus.chunks.resize(3);
  EXPECT_EQ(*ChunksOrAll(corpus, {}), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(*ChunksOrAll(corpus, {2, 0}), (std::vector<uint32_t>{2, 0}));
  for (const std::vector<uint32_t>& bad : {std::vector<uint32_t>{3}, {1, 1}, {UINT32_MAX}})
    EXPECT_EQ(ChunksOrAll(corpus, bad).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValidateCorpus, RefusesTooManyChunksBeforeLookingAtThem) {
  Corpus corpus = Good(0);
  corpus.chunks.resize(kCorpusChunkCountMax + 1);
  const absl::Status status = ValidateCorpus(corpus);
  EXPECT_NE(std::string(status.message()).find("1048577 chunks"), std::string::npos) << status;
}

}  // namespace
}  // namespace ckv
