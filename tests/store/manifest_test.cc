#include "store/manifest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "store/chunk_id.h"

namespace ckv {
namespace {

using nlohmann::json;

Corpus MakeCorpus(size_t chunk_count = 3) {
  Corpus corpus;
  corpus.name = "gpl-3";
  corpus.tenant = "shared";
  corpus.version = UINT64_MAX;
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  corpus.geometry.revision = "604d566";
  ChunkId parent;
  uint64_t position = 100;
  for (size_t i = 0; i < chunk_count; ++i) {
    ChunkPlacement chunk;
    const std::vector<int32_t> tokens(i, 1);
    chunk.id = ComputeChunkId({}, parent, position, tokens);
    chunk.parent = parent;
    chunk.token_count = static_cast<uint32_t>(i);
    chunk.position = position;
    chunk.holders = {{"h" + std::to_string(i % 3)}, {"spare"}};
    position += i;
    parent = chunk.id;
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

TEST(Manifest, RoundTrip) {
  Corpus plain = MakeCorpus();
  plain.tenant = "";
  plain.geometry.rope = {RopeStyle::kHalfSplit, 1e6, std::nullopt};
  Corpus fp8 = MakeCorpus(0);
  fp8.geometry.dtype = RowDtype::kFp8DsMla;
  Corpus no_rope = MakeCorpus(1);
  no_rope.geometry.rope.style = RopeStyle::kNone;
  for (const Corpus& corpus : {MakeCorpus(), MakeCorpus(100), plain, fp8, no_rope}) {
    const auto text = EncodeManifest(corpus);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto back = DecodeManifest(*text);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, corpus);
    EXPECT_EQ(*EncodeManifest(*back), *text);
  }
}

// Goal: scales survive exactly, since geometries are compared bit for bit. Method: random floats
// and doubles; a failure prints the seed.
TEST(Manifest, NumbersSurviveExactly) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 rng(seed);
    Corpus corpus = MakeCorpus(0);
    corpus.geometry.softmax_scale = std::ldexp(1 + static_cast<float>(rng() >> 40) * 0x1p-24f,
                                               static_cast<int>(rng() % 40) - 20);
    corpus.geometry.rope.theta = 2 + static_cast<double>(rng() >> 11) * 0x1p-30;
    corpus.geometry.rope.yarn->mscale = static_cast<double>(rng() >> 11) * 0x1p-53;
    EXPECT_EQ(*DecodeManifest(*EncodeManifest(corpus)), corpus);
  }
}

TEST(Manifest, DoesNotEncodeAnInvalidCorpus) {
  Corpus corpus = MakeCorpus();
  corpus.geometry.model = "\xff";
  EXPECT_EQ(EncodeManifest(corpus).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Manifest, RefusesWhatIsNotAManifestAndSaysWhere) {
  struct Case {
    const char* error;
    std::function<void(json&)> change;
  };
  const Case cases[] = {
      {"schema_version: is missing", [](json& m) { m.erase("schema_version"); }},
      {"schema_version: is missing", [](json& m) { m = json::array(); }},
      {"schema_version: 0 is no version", [](json& m) { m["schema_version"] = 0; }},
      {"schema_version: must be a whole number", [](json& m) { m["schema_version"] = "1"; }},
      {"name: is missing", [](json& m) { m.erase("name"); }},
      {"name: must be a string", [](json& m) { m["name"] = 1; }},
      {"corpus: name", [](json& m) { m["name"] = "a b"; }},
      {"corpus: no name", [](json& m) { m["name"] = ""; }},
      {"'colour': is not known", [](json& m) { m["colour"] = 1; }},
      {"version: must be a whole number", [](json& m) { m["version"] = -1; }},
      {"version: must be a whole number", [](json& m) { m["version"] = 1.5; }},
      {"geometry.: must be an object", [](json& m) { m["geometry"] = 1; }},
      {"geometry.layers: must be less than 2^32",
       [](json& m) { m["geometry"]["layers"] = uint64_t{1} << 32; }},
      {"geometry: layers", [](json& m) { m["geometry"]["layers"] = 0; }},
      {"geometry.dtype", [](json& m) { m["geometry"]["dtype"] = "f16"; }},
      {"geometry.rope_style", [](json& m) { m["geometry"]["rope_style"] = "neox"; }},
      {"geometry.rope_theta: must be a number",
       [](json& m) { m["geometry"]["rope_theta"] = nullptr; }},
      {"softmax_scale", [](json& m) { m["geometry"]["softmax_scale"] = 1e300; }},
      {"geometry.yarn.factor: is missing", [](json& m) { m["geometry"]["yarn"].erase("factor"); }},
      {"geometry.yarn.'slope': is not known", [](json& m) { m["geometry"]["yarn"]["slope"] = 1; }},
      {"chunks: must be an array", [](json& m) { m["chunks"] = json::object(); }},
      {"chunk 1: : must be an object", [](json& m) { m["chunks"][1] = 7; }},
      {"chunk 2: id: chunk id: 2 characters", [](json& m) { m["chunks"][2]["id"] = "ab"; }},
      {"chunk 0: parent: must be a string", [](json& m) { m["chunks"][0]["parent"] = nullptr; }},
      {"chunk 1: token_count", [](json& m) { m["chunks"][1]["token_count"] = 1ull << 40; }},
      {"chunk 1: holders: must be an array", [](json& m) { m["chunks"][1]["holders"] = "h"; }},
      {"chunk 1: holders: must be strings", [](json& m) { m["chunks"][1]["holders"] = {1}; }},
      {"chunk 1: no holder", [](json& m) { m["chunks"][1]["holders"] = json::array(); }},
      {"is in it already", [](json& m) { m["chunks"][1] = m["chunks"][0]; }},
      {"nested deeper", [](json& m) { m["chunks"][1]["holders"] = {{"h"}}; }},
  };
  const json good = json::parse(*EncodeManifest(MakeCorpus()));
  for (const Case& c : cases) {
    json manifest = good;
    c.change(manifest);
    const absl::Status status = DecodeManifest(manifest.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error << ": " << status;
    EXPECT_NE(std::string(status.message()).find(c.error), std::string::npos)
        << c.error << ": " << status;
  }
}

TEST(Manifest, ALaterSchemaIsNotInvalidButTooNew) {
  const absl::Status status = DecodeManifest(R"({"schema_version":2,"new":1})").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST(Manifest, RefusesTextThatIsNotJson) {
  const std::string good = *EncodeManifest(MakeCorpus());
  for (size_t size = 0; size + 2 < good.size(); size += 7) {
    EXPECT_FALSE(DecodeManifest(good.substr(0, size)).ok()) << size;
  }
  for (const std::string& text :
       {std::string(1'000'000, '['), good + std::string(1, '\0'), good + "{}",
        std::string(R"({"schema_version":1,"schema_version":1})"), "\"\xff\"" + good}) {
    EXPECT_EQ(DecodeManifest(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CheckChain, AcceptsChainsAndBranches) {
  EXPECT_TRUE(CheckChain(MakeCorpus(0)).ok());
  Corpus corpus = MakeCorpus(5);
  EXPECT_TRUE(CheckChain(corpus).ok());
  // Two continuations of one prefix, and another chain beside it.
  ChunkPlacement branch = corpus.chunks[3];
  branch.id.bytes[0] ^= 1;
  corpus.chunks.push_back(branch);
  ChunkPlacement other;
  other.id.bytes[0] = 9;
  other.position = 7;
  corpus.chunks.push_back(other);
  const absl::Status status = CheckChain(corpus);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckChain, NamesTheChunkThatDoesNotFollow) {
  struct Case {
    const char* error;
    std::function<void(Corpus&)> change;
  };
  const Case cases[] = {
      {"chunk 3: position", [](Corpus& c) { c.chunks[3].position += 1; }},
      {"chunk 3: position", [](Corpus& c) { c.chunks[2].token_count += 1; }},
      {"chunk 2: its parent", [](Corpus& c) { c.chunks[2].parent.bytes[5] ^= 1; }},
      {"chunk 0: its parent", [](Corpus& c) { c.chunks.erase(c.chunks.begin()); }},
      {"chunk 1: its parent", [](Corpus& c) { std::swap(c.chunks[1], c.chunks[2]); }},
      {"chunk 1: its parent", [](Corpus& c) { c.chunks[1].parent = c.chunks[1].id; }},
  };
  for (const Case& c : cases) {
    Corpus corpus = MakeCorpus(5);
    c.change(corpus);
    const absl::Status status = CheckChain(corpus);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_NE(std::string(status.message()).find(c.error), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace ckv
