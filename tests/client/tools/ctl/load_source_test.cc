// Goal: every kind of input of a load gives the chunks of its bytes, with ids that are available
// before rows are read, or an error that names the file, line or tensor at fault.
// Method: small files made here; rows read one chunk at a time, compared with what was written.

#include "client/tools/ctl/corpus/load_source.h"

#include <cstring>
#include <map>
#include <set>

#include "attention/bf16.h"
#include "client/tools/ctl/corpus/npy_source.h"
#include "client/tools/ctl/corpus/prefill_source.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/ctl/query/agents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "store/formats/geometry_json.h"
#include "tests/client/tools/ctl/load_files.h"
#include "tests/support/named_geometry.h"

namespace ckv::ctl {
namespace {

using test::ReadTestFile;
using test::RowsOfFile;
using test::SmallEngine;
using test::TempPath;
using test::WriteNpy;
using test::WriteTestFile;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

CutOptions Fixed(uint32_t chunk_tokens, bool standalone = false) {
  CutOptions cut;
  cut.chunk_tokens = chunk_tokens;
  cut.standalone = standalone;
  return cut;
}

// Each chunk starts a chain, or follows an earlier one that ends where it begins.
void ExpectChain(const Corpus& corpus) {
  std::map<ChunkId, uint64_t> end_of;  // the position after a chunk's last token
  for (const ChunkPlacement& chunk : corpus.chunks) {
    if (!chunk.parent().IsZero()) {
      ASSERT_TRUE(end_of.contains(chunk.parent())) << chunk.id.ShortHex();
      EXPECT_EQ(chunk.position, end_of[chunk.parent()]) << chunk.id.ShortHex();
    }
    end_of[chunk.id] = chunk.position + chunk.token_count;
  }
}

// The source as a corpus, each chunk read and checked against its plan.
Corpus ReadAll(ChunkSource& source) {
  Corpus corpus;
  corpus.name = "c";
  corpus.geometry = source.geometry();
  for (uint32_t i = 0; i < source.chunks().size(); ++i) {
    const PlannedChunk& plan = source.chunks()[i];
    const auto chunk = source.Read(i);
    if (!chunk.ok()) {
      ADD_FAILURE() << chunk.status();
      return corpus;
    }
    EXPECT_EQ(chunk->info.id, plan.id);
    EXPECT_EQ(chunk->info.parent, plan.parent);
    EXPECT_EQ(chunk->info.position, plan.position);
    EXPECT_EQ(chunk->info.token_count(), plan.token_count);
    EXPECT_TRUE(ValidateChunkInfo(chunk->info, source.geometry()).ok());
    for (uint32_t layer = 0; layer < source.geometry().layers; ++layer) {
      EXPECT_EQ(ChecksumOf(chunk->rows(layer)), chunk->info.tensor_checksums[layer]);
    }
    corpus.chunks.emplace_back(
        PlacementFacts{plan.id, plan.parent, plan.token_count, plan.position, {{"h"}}});
  }
  EXPECT_TRUE(ValidateCorpus(corpus).ok());
  ExpectChain(corpus);
  return corpus;
}

TEST(RowFiles, DescribesAFileOfRowsIfAFileIsNone) {
  for (const char* text : {"                    GNU GENERAL PUBLIC LICENSE", "short", ""}) {
    const std::string path = WriteTestFile("licence", text);
    const absl::Status status = OpenRowFiles({path}, {}, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("not a safetensors file"), HasSubstr("--text")));
  }
  EXPECT_EQ(OpenRowFiles({TempPath("absent")}, {}, 0).status().code(), absl::StatusCode::kNotFound);
}

TEST(RowFiles, ChunksHaveTheRowsOfTheirTokensWheneverTheyAreRead) {
  const RowsOfFile head(70, 0, 1), tail(20, 70, 2);
  auto source =
      OpenRowFiles({head.Write("head"), tail.Write("tail")}, Fixed(32), /*token_count_max=*/85);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->token_count(), 85u);
  EXPECT_EQ((*source)->row_bytes(), 85u * 2 * 80);
  const Corpus corpus = ReadAll(**source);
  ASSERT_EQ(corpus.chunks.size(), 4u);
  EXPECT_EQ(corpus.chunks[3].parent(), corpus.chunks[2].id);  // over the end of a file
  // Again, backwards: rows that were given back can be read again.
  for (const uint32_t ordinal : {2u, 1u}) {
    const auto chunk = (*source)->Read(ordinal);
    ASSERT_TRUE(chunk.ok());
    const auto rows = chunk->rows(1);
    EXPECT_EQ(std::memcmp(rows.data(), head.layer(1).data() + ordinal * 32 * 80, rows.size()), 0);
  }
  // A chunk outlives its source.
  auto kept = (*source)->Read(3);
  source->reset();
  EXPECT_EQ(std::memcmp(kept->rows(0).data(), tail.layer(0).data(), 15 * 80), 0);
}

TEST(RowFiles, AFileAtAnotherPositionStartsAChain) {
  auto source =
      OpenRowFiles({RowsOfFile(8, 0, 1).Write("a"), RowsOfFile(8, 50, 2).Write("b")}, Fixed(4), 0);
  ASSERT_TRUE(source.ok()) << source.status();
  const Corpus corpus = ReadAll(**source);
  EXPECT_TRUE(corpus.chunks[2].parent().IsZero());
  EXPECT_EQ(corpus.chunks[3].parent(), corpus.chunks[2].id);
}

TEST(RowFiles, StandaloneTakesAFileAChunkFromPositionZero) {
  const RowsOfFile a(8, 0, 1), b(9, 0, 2), late(8, 100, 3);
  const std::string path_a = a.Write("a"), path_b = b.Write("b"), path_late = late.Write("late");
  auto source = OpenRowFiles({path_a, path_b}, Fixed(0, true), 0);
  ASSERT_TRUE(source.ok()) << source.status();
  const Corpus corpus = ReadAll(**source);
  EXPECT_TRUE(corpus.chunks[0].parent().IsZero() && corpus.chunks[1].parent().IsZero());
  // The id does not depend on what is before it.
  auto other = OpenRowFiles({path_b, path_a}, Fixed(0, true), 0);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->chunks()[0].id, corpus.chunks[1].id);
  EXPECT_EQ((*other)->chunks()[1].id, corpus.chunks[0].id);

  EXPECT_THAT(Message(OpenRowFiles({path_late}, Fixed(0, true), 0).status()),
              AllOf(HasSubstr(path_late), HasSubstr("position 100"), HasSubstr("base_position 0"),
                    HasSubstr("leave --standalone out")));
  EXPECT_THAT(Message(OpenRowFiles({path_a, path_b}, Fixed(8, true), 0).status()),
              AllOf(HasSubstr(path_b), HasSubstr("2 chunks"), HasSubstr("a file is one chunk")));
  EXPECT_THAT(Message(OpenRowFiles({path_a, path_a}, Fixed(0, true), 0).status()),
              AllOf(HasSubstr("each chunk once"), HasSubstr(path_a)));
}

TokenDocuments Documents(const std::vector<std::vector<int32_t>>& documents) {
  TokenDocuments result;
  for (const std::vector<int32_t>& tokens : documents) {
    result.documents.push_back({static_cast<uint32_t>(result.tokens.size()),
                                "line " + std::to_string(result.documents.size() + 1)});
    result.tokens.insert(result.tokens.end(), tokens.begin(), tokens.end());
  }
  return result;
}

TEST(Prefill, ATextIsCutIntoAChainOfItsPrefill) {
  const TokenDocuments text = Documents({{1, 2, 3, 4, 5, 6}, {7, 8, 9, 255}});
  uint64_t prefilled = 0;
  auto source =
      OpenPrefill(SmallEngine(), text, Fixed(4), 1, [&](uint64_t tokens) { prefilled += tokens; });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(prefilled, 10u);
  EXPECT_EQ((*source)->row_bytes(), 10u * 2 * 24 * 2);
  const Corpus corpus = ReadAll(**source);
  ASSERT_EQ(corpus.chunks.size(), 3u);
  EXPECT_EQ(prefilled, 10u);  // once
  // `agents run` makes this check of its text.
  EXPECT_TRUE(CheckText(corpus, text.tokens).ok());
  std::vector<int32_t> other = text.tokens;
  other[9] ^= 1;
  EXPECT_THAT(Message(CheckText(corpus, other)), HasSubstr("chunk 2"));
  other.pop_back();
  EXPECT_FALSE(CheckText(corpus, other).ok());
  // The engine and the rows outlive the source.
  const auto chunk = (*source)->Read(1);
  source->reset();
  EXPECT_EQ(ChecksumOf(chunk->rows(1)), chunk->info.tensor_checksums[1]);
}

TEST(Prefill, EachDocumentIsAChainByItself) {
  CutOptions cut;
  cut.policy = CutPolicy::kDocument;
  cut.chunk_max = 3;
  auto source =
      OpenPrefill(SmallEngine(), Documents({{1, 2, 3, 4}, {5, 6}, {1, 2, 3}}), cut, 1, nullptr);
  // The first three tokens of the first document equal the third document.
  EXPECT_THAT(Message(source.status()), AllOf(HasSubstr("line 3"), HasSubstr("line 1")));
  uint64_t prefilled = 0;
  source = OpenPrefill(SmallEngine(), Documents({{1, 2, 3, 4}, {5, 6}, {1, 2, 9}}), cut, 1,
                       [&](uint64_t tokens) { prefilled += tokens; });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(prefilled, 0u);  // one at a time, when they are read
  const Corpus corpus = ReadAll(**source);
  EXPECT_EQ(prefilled, 9u);
  ASSERT_EQ(corpus.chunks.size(), 4u);
  EXPECT_EQ(corpus.chunks[1].parent(), corpus.chunks[0].id);
  EXPECT_TRUE(corpus.chunks[2].parent().IsZero() && corpus.chunks[3].parent().IsZero());
  EXPECT_EQ(corpus.chunks[2].position, 0u);
}

// A standalone chunk depends on its tokens alone, not on their position.
TEST(Prefill, StandaloneChunksAreSharedByCorpora) {
  auto one =
      OpenPrefill(SmallEngine(), Documents({{1, 2, 3, 4, 5, 6, 7, 8}}), Fixed(4, true), 1, nullptr);
  auto two =
      OpenPrefill(SmallEngine(), Documents({{9, 9, 9, 9, 5, 6, 7, 8}}), Fixed(4, true), 1, nullptr);
  ASSERT_TRUE(one.ok() && two.ok());
  const Corpus corpus_one = ReadAll(**one), corpus_two = ReadAll(**two);
  EXPECT_NE(corpus_one.chunks[0].id, corpus_two.chunks[0].id);
  EXPECT_EQ(corpus_one.chunks[1].id, corpus_two.chunks[1].id);
  EXPECT_EQ((*one)->Read(1)->info.tensor_checksums, (*two)->Read(1)->info.tensor_checksums);
  EXPECT_THAT(
      Message(OpenPrefill(SmallEngine(), Documents({{1, 2, 1, 2}}), Fixed(2, true), 1, nullptr)
                  .status()),
      HasSubstr("each chunk once"));
}

TEST(Prefill, CutsByContentAnEditChangesTheChunksAroundItOnly) {
  CutOptions cut;
  cut.policy = CutPolicy::kContent;
  cut.chunk_tokens = 64;
  cut.standalone = true;
  ASSERT_TRUE(ValidateCut(cut).ok());
  std::mt19937 rng(5);
  std::vector<int32_t> tokens(20'000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 256);
  std::vector<int32_t> edited = tokens;
  edited.insert(edited.begin() + 10'000, 7);
  const auto ids = [&](const std::vector<int32_t>& of) {
    auto source = OpenPrefill(SmallEngine(), Documents({of}), cut, 1, nullptr);
    EXPECT_TRUE(source.ok()) << source.status();
    std::set<ChunkId> all;
    for (const PlannedChunk& chunk : (*source)->chunks()) all.insert(chunk.id);
    return all;
  };
  const std::set<ChunkId> before = ids(tokens), after = ids(edited);
  EXPECT_GT(before.size(), 100u);
  size_t changed = 0;
  for (const ChunkId& id : after) changed += before.contains(id) ? 0 : 1;
  EXPECT_GE(changed, 1u);
  EXPECT_LE(changed, 3u);
}

// The rows of RowsOfFile as arrays, and the options that go with them.
struct Arrays {
  Arrays() : rows(10, 7, 4) {
    options.geometry = WriteTestFile("geometry.json", EncodeGeometry(rows.geometry).dump());
    options.token_ids =
        WriteNpy("ids.npy", "<i4", "(10,)", std::as_bytes(std::span(rows.token_ids)));
    options.base_position = 7;
  }
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::string& path,
                                                    const std::string& dtype,
                                                    const CutOptions& cut = Fixed(4)) {
    options.dtype = dtype;
    return OpenNpyRows(path, options, cut, 0);
  }
  RowsOfFile rows;
  NpyOptions options;
};

TEST(NpyRows, AreTheChunksOfTheSameRowsInAFile) {
  Arrays arrays;
  auto file = OpenRowFiles({arrays.rows.Write("rows")}, Fixed(4), 0);
  ASSERT_TRUE(file.ok()) << file.status();
  const Corpus expected = ReadAll(**file);
  const auto bits = std::as_bytes(std::span(arrays.rows.values));
  for (const char* descr : {"|V2", "<u2"}) {
    auto source = arrays.Open(WriteNpy("rows.npy", descr, "(2, 10, 40)", bits), "bf16");
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(ReadAll(**source), expected);
    const auto chunk = (*source)->Read(2);
    EXPECT_EQ(chunk->info.tensor_checksums, (*file)->Read(2)->info.tensor_checksums);
  }
  // Token ids of NumPy's default type.
  const std::vector<int64_t> wide(arrays.rows.token_ids.begin(), arrays.rows.token_ids.end());
  arrays.options.token_ids = WriteNpy("wide.npy", "<i8", "(10,)", std::as_bytes(std::span(wide)));
  auto source = arrays.Open(WriteNpy("rows.npy", "<u2", "(2, 10, 40)", bits), "bf16");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(ReadAll(**source), expected);
}

TEST(NpyRows, WiderValuesAreRoundedToNearestEven) {
  Arrays arrays;
  std::vector<float> values(2 * 10 * 40);
  // Ties round to even: 1.00390625 rounds down, and 1.01171875 rounds up.
  const float ties[] = {1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 3e38f, 1e-40f, -0.0f};
  for (size_t i = 0; i < values.size(); ++i) values[i] = ties[i % 7] * (i % 3 == 0 ? 1.0f : 0.3f);
  auto source = arrays.Open(
      WriteNpy("f32.npy", "<f4", "(2, 10, 40)", std::as_bytes(std::span(values))), "f32");
  ASSERT_TRUE(source.ok()) << source.status();
  ReadAll(**source);
  const auto chunk = (*source)->Read(1);  // tokens 4 to 8
  for (uint32_t layer = 0; layer < 2; ++layer) {
    std::vector<uint16_t> bits(4 * 40);
    ASSERT_EQ(chunk->rows(layer).size(), bits.size() * 2);
    std::memcpy(bits.data(), chunk->rows(layer).data(), bits.size() * 2);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(bits[i], Bf16FromFloat(values[layer * 400 + 160 + i])) << i;
    }
  }
}

// Every binary16 value, against its definition.
TEST(NpyRows, HalvesAreConvertedExactlyAndThenRounded) {
  std::vector<uint16_t> halves(1 << 16), out(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  Bf16FromHalves(reinterpret_cast<const std::byte*>(halves.data()), out.data(), out.size());
  for (uint32_t i = 0; i < (1u << 16); ++i) {
    const uint32_t exponent = (i >> 10) & 31, mantissa = i & 1023;
    const float sign = (i & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(FloatFromBf16(out[i]))) << i;
      continue;
    }
    const float value = exponent == 31  ? sign * INFINITY
                        : exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                                        : sign * std::ldexp(static_cast<float>(mantissa + 1024),
                                                            static_cast<int>(exponent) - 25);
    ASSERT_EQ(out[i], Bf16FromFloat(value)) << i;
  }
}

TEST(NpyRows, TakesFp8RowsAsTheyAre) {
  Arrays arrays;
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  geometry.layers = 1;
  geometry.dtype = RowDtype::kFp8DsMla;
  arrays.options.geometry = WriteTestFile("fp8.json", EncodeGeometry(geometry).dump());
  std::vector<std::byte> rows(10 * 656);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i % 251);
  const std::string path = WriteNpy("fp8.npy", "|u1", "(1, 10, 656)", rows);
  auto source = arrays.Open(path, "fp8_ds_mla");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(ReadAll(**source).chunks.size(), 3u);
  EXPECT_EQ(std::memcmp((*source)->Read(1)->rows(0).data(), rows.data() + 4 * 656, 4 * 656), 0);
  EXPECT_THAT(Message(arrays.Open(path, "bf16").status()), HasSubstr("geometry of the other kind"));
}

TEST(NpyRows, NamesWhatDoesNotFit) {
  Arrays arrays;
  const auto bits = std::as_bytes(std::span(arrays.rows.values));
  const std::string good = WriteNpy("good.npy", "<u2", "(2, 10, 40)", bits);
  const auto refused = [&](const absl::Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr(what));
  };
  refused(arrays.Open(WriteNpy("flat.npy", "<u2", "(20, 40)", bits), "bf16").status(),
          "u2 [20, 40], must be V2 or u2 [2, tokens, 40]");
  refused(arrays.Open(WriteNpy("turned.npy", "<u2", "(10, 2, 40)", bits), "bf16").status(),
          "must be V2 or u2 [2, tokens, 40]");
  refused(arrays.Open(good, "f16").status(), "must be f2");
  refused(arrays.Open(good, "f32").status(), "must be f4");
  refused(arrays.Open(good, "f64").status(), "--dtype f64");
  refused(arrays.Open(good, "").status(), "needs --dtype");
  refused(arrays.Open(good, "bf16", Fixed(0, true)).status(), "position 7");
  NpyOptions options = arrays.options;
  options.geometry = "";
  refused(OpenNpyRows(good, options, {}, 0).status(), "needs --geometry");
  options.geometry = WriteTestFile("half.json", "{\"model\": \"m\"}");
  refused(OpenNpyRows(good, options, {}, 0).status(), "revision: is missing");
  options = arrays.options;
  options.base_position = kPositionMax;
  refused(OpenNpyRows(good, options, {}, 0).status(), "--base-position");
  options = arrays.options;
  const std::vector<int64_t> wide(10, int64_t{1} << 31);
  for (const auto& [path, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "needs --token-ids"},
           {WriteNpy("9.npy", "<i4", "(9,)", bits.first(36)),
            "i4 [9], must be i4, i8, u4 or u8 [10]"},
           {WriteNpy("f.npy", "<f4", "(10,)", bits.first(40)), "f4 [10], must be"},
           {WriteNpy("w.npy", "<i8", "(10,)", std::as_bytes(std::span(wide))), "no token id"}}) {
    options.token_ids = path;
    refused(OpenNpyRows(good, options, {}, 0).status(), what);
  }
}

}  // namespace
}  // namespace ckv::ctl
