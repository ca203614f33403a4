// Goal: ckvctl corpus load --extend never doubles a text, however it is cut and whatever it is.
// Method: each kind of file loaded in one cut and extended by itself in others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "tests/client/tools/ctl/load_fleet.h"

namespace ckv::ctl {
namespace {

using test::RowsOfFile;
using test::WriteTestFile;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class ExtendCutTest : public test::LoadFleet {
 protected:
  struct Kind {
    const char* name;
    std::string file;
    std::vector<std::string> options;
  };
  std::vector<Kind> Kinds() {
    const RowsOfFile rows(300, 0, 1);
    const std::string ids =
        test::WriteNpy("ids.npy", "<i4", "(300,)", std::as_bytes(std::span(rows.token_ids)));
    const std::string array =
        test::WriteNpy("rows.npy", "|V2", "(2, 300, 40)", std::as_bytes(std::span(rows.values)));
    const std::string geometry = WriteTestFile(
        "g.json",
        R"({"model":"test/rows","revision":"r1","layers":2,"d_qk":40,"d_v":32,"d_rope":8,)"
        R"("dtype":"bf16","rope_style":"interleaved","rope_theta":10000,"softmax_scale":0.2})");
    std::string text, line = "[";
    for (int i = 0; i < 60; ++i) {
      text += static_cast<char>('a' + i % 7 * (i / 7) % 26);
      line += std::to_string(i) + (i < 59 ? ", " : "]\n");
    }
    return {{"rows", rows.Write("rows"), {}},
            {"npy", array, {"--dtype", "bf16", "--geometry", geometry, "--token-ids", ids}},
            {"text", WriteTestFile("text.txt", text), {"--text"}},
            {"jsonl", WriteTestFile("ids.jsonl", line), {}},
            {"standalone", WriteTestFile("one.jsonl", line), {"--standalone"}}};
  }
  Outcome Load(const Kind& kind, std::vector<std::string> more) {
    std::vector<std::string> all = {"corpus", "load", kind.name, kind.file};
    all.insert(all.end(), kind.options.begin(), kind.options.end());
    all.insert(all.end(), more.begin(), more.end());
    return Run(all);
  }
  size_t ChunkCount(const Kind& kind) {
    return MustRun({"corpus", "show", kind.name})["chunks"].size();
  }
};

TEST_F(ExtendCutTest, TheSameFileIsNeverDoubled) {
  StartHolders(2);
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    const Outcome made = Load(kind, {"--chunk-tokens", "20"});
    ASSERT_EQ(made.code, 0) << made.err;
    const size_t count = ChunkCount(kind);
    // The corpus' own cut is taken.
    const Outcome again = Load(kind, {"--extend"});
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.json["chunks_appended"], 0);
    const std::vector<std::vector<std::string>> cuts = {
        {"--chunk-tokens", "10"}, {"--chunk-tokens", "17"},
        {"--chunk-tokens", "64"}, {"--cut", "content", "--chunk-tokens", "16"},
        {"--cut", "document"},    {"--chunk-tokens", "19", "--max-tokens", "19"}};
    for (const auto& cut : cuts) {
      // Less than 16 tokens by themselves are a text of their own (client/publish/text_overlap.h).
      if (kind.name == std::string("standalone") && cut[1] == "10") continue;
      std::vector<std::string> options = cut;
      options.emplace_back("--extend");
      const Outcome other = Load(kind, options);
      EXPECT_EQ(other.code, 7) << cut[1] << " " << other.err;
      EXPECT_THAT(other.err,
                  AllOf(AnyOf(HasSubstr("this text already"), HasSubstr("another chunk behind")),
                        HasSubstr("--replace")));
    }
    EXPECT_EQ(ChunkCount(kind), count);
  }
}

TEST_F(ExtendCutTest, AnotherTextIsCutAsTheCorpusIs) {
  StartHolders(1);
  MustRun({"corpus", "load", "a", RowsOfFile(100, 0, 1).Write("one"), "--chunk-tokens", "32"});
  MustRun({"corpus", "load", "a", RowsOfFile(70, 0, 2).Write("two"), "--extend"});
  std::vector<uint32_t> sizes;
  const auto shown = MustRun({"corpus", "show", "a"});
  for (const auto& chunk : shown["chunks"]) sizes.push_back(chunk["token_count"]);
  EXPECT_EQ(sizes, (std::vector<uint32_t>{32, 32, 32, 4, 32, 32, 6}));
}

TEST(ChunkTokensOf, FollowsTheChunks) {
  const auto corpus = [](const std::vector<std::vector<uint32_t>>& texts) {
    Corpus made;
    uint8_t next = 0;
    for (const auto& text : texts) {
      ChunkId parent;
      for (const uint32_t count : text) {
        ChunkId id;
        id.bytes[0] = ++next;
        ChunkPlacement chunk;
        chunk.id = id;
        chunk.set_parent(parent);
        chunk.token_count = count;
        made.chunks.push_back(chunk);
        parent = id;
      }
    }
    return made;
  };
  EXPECT_EQ(ChunkTokensOf(corpus({}), false, 2048), 2048u);
  EXPECT_EQ(ChunkTokensOf(corpus({{256, 256, 9}}), false, 2048), 256u);
  EXPECT_EQ(ChunkTokensOf(corpus({{256, 9}, {256, 256}, {77}}), false, 2048), 256u);
  EXPECT_EQ(ChunkTokensOf(corpus({{256, 9}, {64, 1}}), false, 2048), 2048u) << "two cuts";
  EXPECT_EQ(ChunkTokensOf(corpus({{300}, {3000}}), false, 2048), 3000u) << "one chunk a text";
  EXPECT_EQ(ChunkTokensOf(corpus({{300}, {200}}), false, 2048), 2048u);
  EXPECT_EQ(ChunkTokensOf(corpus({{64}, {64}, {9}}), true, 1024), 64u);
  EXPECT_EQ(ChunkTokensOf(corpus({{64}, {9}}), true, 1024), 1024u);
}

}  // namespace
}  // namespace ckv::ctl
