// Goal: a sequence state of llama.cpp becomes the chunks of its tokens and keys, and a fetch
// returns it byte for byte, or with its rows rotated to another position.
// Method: states written here, loaded onto holders of this process, and fetched by a requester.

#include <cmath>
#include <cstring>

#include "attention/bf16.h"
#include "client/tools/ctl/corpus/llama_source.h"
#include "store/formats/geometry_json.h"
#include "store/formats/llama_state.h"
#include "store/formats/reference_cell.h"
#include "store/memory/chunk.h"
#include "tests/client/tools/ctl/load_fleet.h"

namespace ckv::ctl {
namespace {

using test::ReadTestFile;
using test::RowsOfFile;
using test::TempPath;
using test::WriteNpy;
using test::WriteTestFile;
using testing::AllOf;
using testing::HasSubstr;

std::string WriteState(const RowsOfFile& rows, const std::string& name, uint32_t streams = 1) {
  std::string path = TempPath(name);
  auto writer = LlamaStateWriter::Create(path, {.token_ids = rows.token_ids,
                                                .base_position = rows.position,
                                                .layer_count = rows.geometry.layers,
                                                .row_bytes = rows.geometry.row_bytes(),
                                                .stream_count = streams});
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (uint32_t layer = 0; layer < rows.geometry.layers; ++layer) {
    EXPECT_TRUE(writer->Write(layer, 0, rows.layer(layer)).ok());
  }
  EXPECT_TRUE(std::move(*writer).Finish().ok());
  return path;
}

std::string WriteGeometry(const Geometry& geometry, const std::string& name = "geometry.json") {
  return WriteTestFile(name, EncodeGeometry(geometry).dump());
}

CutOptions FixedCut(uint32_t chunk_tokens) {
  CutOptions cut;
  cut.chunk_tokens = chunk_tokens;
  return cut;
}

void ExpectSameChunks(ChunkSource& source, ChunkSource& expected) {
  ASSERT_EQ(source.chunks().size(), expected.chunks().size());
  for (uint32_t i = 0; i < expected.chunks().size(); ++i) {
    EXPECT_EQ(source.chunks()[i].id, expected.chunks()[i].id) << i;
    const auto chunk = source.Read(i), other = expected.Read(i);
    ASSERT_TRUE(chunk.ok() && other.ok()) << chunk.status();
    EXPECT_TRUE(ValidateChunkInfo(chunk->info, source.geometry()).ok());
    EXPECT_EQ(chunk->info.tensor_checksums, other->info.tensor_checksums) << i;
    EXPECT_EQ(ChecksumOf(chunk->rows(1)), chunk->info.tensor_checksums[1]);
  }
}

TEST(LlamaStates, AreTheChunksOfTheSameRowsInAFile) {
  const RowsOfFile head(70, 0, 1), tail(20, 70, 2), other(8, 500, 3);
  const LlamaOptions options = {WriteGeometry(head.geometry), ""};
  const std::vector<std::string> files = {head.Write("a"), tail.Write("b"), other.Write("c")};
  const std::vector<std::string> states = {
      WriteState(head, "a.ggsq"), WriteState(tail, "b.ggsq", 4), WriteState(other, "c.ggsq")};
  for (const uint32_t tokens_max : {0u, 75u}) {
    auto expected = OpenRowFiles(files, FixedCut(32), tokens_max);
    auto source = OpenLlamaStates(states, options, FixedCut(32), tokens_max);
    ASSERT_TRUE(expected.ok() && source.ok()) << source.status();
    ExpectSameChunks(**source, **expected);
  }
}

// `path` with every layer's keys of f16, whose bits are the same.
std::string AsF16(const std::string& path, const RowsOfFile& rows) {
  std::string text = ReadTestFile(path);
  const size_t count = rows.token_ids.size();
  const size_t first = 12 + 4 * count + 8 + 12 * count + 8;
  for (size_t layer = 0; layer < 2; ++layer) text[first + layer * (12 + count * 80)] = 1;
  return WriteTestFile("f16.ggsq", text);
}

TEST(LlamaStates, KeysOfF16AreRoundedToNearestEven) {
  RowsOfFile rows(12, 3, 5);
  // 1 + 2^-8 is between two bf16 values and rounds to the even one, 1. 1 + 3 x 2^-8 rounds up.
  for (size_t i = 0; i < rows.values.size(); ++i) rows.values[i] = i % 2 == 0 ? 0x3c04 : 0x3c0c;
  auto source = OpenLlamaStates({AsF16(WriteState(rows, "rows.ggsq"), rows)},
                                {WriteGeometry(rows.geometry), ""}, FixedCut(8), 0);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto chunk = (*source)->Read(1);
  ASSERT_TRUE(chunk.ok());
  ASSERT_EQ(chunk->rows(1).size(), 4u * 80);
  uint16_t first[2];
  std::memcpy(first, chunk->rows(1).data(), sizeof(first));
  EXPECT_EQ(first[0], 0x3f80);
  EXPECT_EQ(first[1], 0x3f82);
}

TEST(LlamaStates, AStateWithoutIdsTakesThemFromAnArray) {
  const RowsOfFile rows(10, 0, 4);
  const std::string whole = WriteState(rows, "whole.ggsq");
  std::string text = ReadTestFile(whole).substr(12 + 4 * 10);
  text.insert(0, "\xd8\x3c\x14\xaf\0\0\0\0", 8);
  const std::string data = WriteTestFile("data.bin", text);
  LlamaOptions options = {WriteGeometry(rows.geometry), ""};
  EXPECT_THAT(std::string(OpenLlamaStates({data}, options, {}, 0).status().message()),
              AllOf(HasSubstr(data), HasSubstr("needs --token-ids")));
  auto expected = OpenLlamaStates({whole}, options, FixedCut(4), 0);
  options.token_ids = WriteNpy("ids.npy", "<i4", "(10,)", std::as_bytes(std::span(rows.token_ids)));
  auto source = OpenLlamaStates({data}, options, FixedCut(4), 0);
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectSameChunks(**source, **expected);
  EXPECT_THAT(std::string(OpenLlamaStates({whole}, options, {}, 0).status().message()),
              HasSubstr("has token ids itself"));
  EXPECT_THAT(std::string(OpenLlamaStates({data, data}, options, {}, 0).status().message()),
              HasSubstr("one at a time"));
}

TEST(LlamaStates, RefusesStatesOfAnotherGeometry) {
  const RowsOfFile rows(10, 0, 4);
  const std::string state = WriteState(rows, "rows.ggsq");
  const auto refused = [&](auto change, const char* what) {
    Geometry geometry = rows.geometry;
    change(geometry);
    const absl::Status status =
        OpenLlamaStates({state}, {WriteGeometry(geometry, "other.json"), ""}, {}, 0).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  refused([](Geometry& geometry) { geometry.layers = 3; },
          "2 layers with keys of 40 values, and the geometry has 3 of 40");
  refused([](Geometry& geometry) { geometry.d_qk = 48, geometry.d_v = 40; },
          "the geometry has 2 of 48");
  EXPECT_THAT(std::string(OpenLlamaStates({state}, {}, {}, 0).status().message()),
              HasSubstr("needs --geometry"));
}

class LlamaStateCtlTest : public test::LoadFleet {
 protected:
  void SetUp() override {
    LoadFleet::SetUp();
    StartHolders(3);
    StartRequester();
  }
};

TEST_F(LlamaStateCtlTest, AFetchGivesAStateBackByteForByte) {
  const RowsOfFile rows(100, 40, 7);
  const std::string state = WriteState(rows, "slot-0.bin");  // a name that a user chose
  const std::string geometry = WriteGeometry(rows.geometry);
  const Json loaded =
      MustRun({"corpus", "load", "docs", state, "--geometry", geometry, "--chunk-tokens", "16"});
  EXPECT_EQ(loaded["chunks_new"], 7);
  const std::string out = TempPath("fetched.ggsq");
  EXPECT_EQ(MustRun({"fetch", "--corpus", "docs", "--out", out})["token_count"], 100);
  EXPECT_EQ(ReadTestFile(out), ReadTestFile(state));
  MustRun({"fetch", "--corpus", "docs", "--out", out, "--streams", "3"});
  EXPECT_EQ(ReadTestFile(out), ReadTestFile(WriteState(rows, "three.ggsq", 3)));

  MustRun({"fetch", "--corpus", "docs", "--chunks", "2-3", "--out", out});
  const auto part = LlamaState::Open(out);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->base_position(), 40u + 32);
  EXPECT_TRUE(std::equal(part->token_ids().begin(), part->token_ids().end(),
                         rows.token_ids.begin() + 32, rows.token_ids.begin() + 64));
}

TEST_F(LlamaStateCtlTest, AFetchElsewhereRotatesTheBandByTheDistance) {
  RowsOfFile rows(48, 40, 7);
  std::mt19937 rng(3);
  for (uint16_t& value : rows.values) {
    value = Bf16FromFloat(std::normal_distribution<float>()(rng));
  }
  MustRun({"corpus", "load", "docs", WriteState(rows, "a.ggsq"), "--geometry",
           WriteGeometry(rows.geometry), "--chunk-tokens", "16"});
  const std::string out = TempPath("moved.ggsq");
  MustRun({"fetch", "--corpus", "docs", "--position", "7", "--out", out});
  const auto moved = LlamaState::Open(out);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->base_position(), 7u);
  for (uint32_t token = 0; token < 48; ++token) {
    std::vector<uint16_t> row(40);
    std::memcpy(row.data(), moved->Rows(1, token, token + 1).data(), 80);
    const uint16_t* before = rows.values.data() + (48 + token) * 40;
    ASSERT_TRUE(std::equal(before, before + 32, row.begin())) << token;
    for (uint32_t pair = 0; pair < 4; ++pair) {
      const double angle = -33 * std::pow(10000.0, -2.0 * pair / 8);
      const double x = FloatFromBf16(before[32 + 2 * pair]);
      const double y = FloatFromBf16(before[33 + 2 * pair]);
      // One rounding to bf16, 2^-8 of a value of at most the pair's norm, and the angle's f32.
      const double bound = std::hypot(x, y) * (0x1p-8 + 1e-5);
      EXPECT_NEAR(FloatFromBf16(row[32 + 2 * pair]), x * std::cos(angle) - y * std::sin(angle),
                  bound);
      EXPECT_NEAR(FloatFromBf16(row[33 + 2 * pair]), x * std::sin(angle) + y * std::cos(angle),
                  bound);
    }
  }
}

TEST_F(LlamaStateCtlTest, RefusesOptionsThatConflict) {
  const RowsOfFile rows(20, 0, 7);
  const std::string state = WriteState(rows, "a.ggsq"), geometry = WriteGeometry(rows.geometry);
  const auto refused = [&](const std::vector<std::string>& arguments, const char* what) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(what));
  };
  refused({"corpus", "load", "docs", state}, "needs --geometry");
  refused({"corpus", "load", "docs", state, "--geometry", geometry, "--dtype", "bf16"},
          "a sequence state contains both");
  refused({"corpus", "load", "docs", state, rows.Write("rows")}, "files of one kind");
  refused({"corpus", "load", "docs", WriteTestFile("bad.ggsq", "GGUF0000"), "--geometry", geometry},
          "not a sequence state");
  MustRun({"corpus", "load", "docs", state, "--geometry", geometry});
  refused({"fetch", "--corpus", "docs", "--out", TempPath("x.safetensors"), "--streams", "2"},
          "--out FILE.ggsq");
  const std::string out = TempPath("far.ggsq");
  refused({"fetch", "--corpus", "docs", "--position", "2147483640", "--out", out}, "position");
  EXPECT_FALSE(std::filesystem::exists(out));
}

// One cell a layer, at the last position, that names the chunks.
TEST_F(LlamaStateCtlTest, AttachWritesOneCellForAllTokens) {
  RowsOfFile rows(100, 40, 7);
  rows.geometry.d_qk = 576;
  rows.geometry.d_v = 512;
  rows.geometry.d_rope = 64;
  rows.values.assign(size_t{2} * 100 * 576, 0x3f80);
  MustRun({"corpus", "load", "docs", WriteState(rows, "a.ggsq"), "--geometry",
           WriteGeometry(rows.geometry), "--chunk-tokens", "16"});
  const std::string out = TempPath("attached.ggsq");
  const Json report = MustRun({"attach", "--corpus", "docs", "--chunks", "1-5", "--position", "7",
                               "--streams", "2", "--out", out});
  EXPECT_EQ(report["token_count"], 80);
  const std::string text = ReadTestFile(out);
  const size_t cells = 12 + 4 * 80;  // u32 streams, u32 cells, a cell of 12 bytes, 8 bytes, layers
  ASSERT_EQ(text.size(), cells + 8 + 12 + 8 + 2 * (12 + 1152) + 4);
  int32_t ids[80], position = 0;
  std::memcpy(ids, text.data() + 12, sizeof(ids));
  EXPECT_TRUE(std::equal(ids, ids + 80, rows.token_ids.begin() + 16));
  std::memcpy(&position, text.data() + cells + 8, sizeof(position));
  EXPECT_EQ(position, 7 + 79);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const size_t row = cells + 28 + layer * 1164 + 12;
    const auto reference =
        DecodeReference(std::as_bytes(std::span(text)).subspan(row, rows.geometry.row_bytes()));
    ASSERT_TRUE(reference.ok()) << reference.status();
    EXPECT_EQ(reference->corpus, "docs");
    EXPECT_EQ(std::pair(reference->chunk_begin, reference->chunk_end), std::pair(1u, 6u));
    EXPECT_EQ(reference->position, 7u);
    EXPECT_EQ(reference->token_count, 80u);
    EXPECT_EQ(reference->layer, layer);
  }
  // The written state has no rows to load.
  EXPECT_THAT(Run({"corpus", "load", "again", out, "--geometry", WriteGeometry(rows.geometry)}).err,
              HasSubstr("80 token ids and 1 cells"));
  EXPECT_THAT(Run({"attach", "--corpus", "docs", "--chunks", "1,3", "--out", out}).err,
              HasSubstr("follow each other"));
}

// A file of 2,049 tokens is two chunks unless an option sets another size.
TEST_F(LlamaStateCtlTest, IsCutAsFilesOfRowsAre) {
  const RowsOfFile rows(2049, 0, 9);
  const Json loaded = MustRun({"corpus", "load", "docs", WriteState(rows, "a.ggsq"), "--geometry",
                               WriteGeometry(rows.geometry)});
  EXPECT_EQ(loaded["chunks_new"], 2);
}

}  // namespace
}  // namespace ckv::ctl
