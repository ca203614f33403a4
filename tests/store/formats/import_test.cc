#include "store/formats/import.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "store/memory/chunk_id.h"
#include "tests/store/formats/test_files.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;

// A file of rows as an exporter would write it: DeepSeek's row, bf16 or fp8_ds_mla.
struct Rows {
  explicit Rows(uint32_t token_count, bool fp8 = false, uint32_t layer_count = 2) {
    metadata = {{"model", "deepseek-ai/DeepSeek-V2-Lite"},
                {"revision", "604d566"},
                {"d_v", "512"},
                {"d_rope", "64"},
                {"rope_style", "interleaved"},
                {"rope_theta", "10000"},
                {"softmax_scale", "0.1147213868"},
                {"base_position", "100"}};
    const uint64_t width = fp8 ? 656 : 576;
    const size_t row_bytes = fp8 ? 656 : 1152;
    data.resize(token_count * row_bytes * layer_count);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
    token_ids.resize(token_count);
    std::iota(token_ids.begin(), token_ids.end(), 7);
    for (uint32_t layer = 0; layer < layer_count; ++layer) {
      tensors.push_back(
          {"layers." + std::to_string(layer) + ".ckv",
           fp8 ? TensorDtype::kU8 : TensorDtype::kBf16,
           {token_count, width},
           std::span(data).subspan(layer * token_count * row_bytes, token_count * row_bytes)});
    }
    tensors.push_back(
        {"token_ids", TensorDtype::kI32, {token_count}, std::as_bytes(std::span(token_ids))});
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  absl::StatusOr<RowFile> Open() const {
    const absl::Status written = WriteSafetensors(directory / "rows", metadata, tensors);
    EXPECT_TRUE(written.ok()) << written;
    return RowFile::Open(directory / "rows");
  }

  template <typename T>
  void SetTokenIds(TensorDtype dtype, const std::vector<T>& ids) {
    tensors.back() = {"token_ids", dtype, {ids.size()}, std::as_bytes(std::span(ids))};
  }

  TemporaryDirectory directory;
  Metadata metadata;
  std::vector<std::byte> data;
  std::vector<int32_t> token_ids;
  std::vector<TensorToWrite> tensors;
};

TEST(RowFile, ReadsBf16Rows) {
  const Rows rows(5);
  auto opened = rows.Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  const RowFile file = *std::move(opened);
  Geometry expected = *NamedGeometry("deepseek-v2-lite");
  expected.revision = "604d566";
  expected.layers = 2;
  expected.rope.yarn.reset();
  EXPECT_EQ(file.geometry(), expected) << DescribeDifference(file.geometry(), expected);
  EXPECT_EQ(file.base_position(), 100u);
  EXPECT_TRUE(std::equal(file.token_ids().begin(), file.token_ids().end(), rows.token_ids.begin(),
                         rows.token_ids.end()));
  const auto middle = file.Rows(1, 2, 4);
  EXPECT_EQ(middle.size(), 2 * 1152u);
  EXPECT_EQ(std::memcmp(middle.data(), rows.data.data() + (5 + 2) * 1152, middle.size()), 0);
  EXPECT_TRUE(file.Rows(0, 5, 5).empty());
}

TEST(RowFile, ReadsFp8Rows) {
  const Rows rows(3, /*fp8=*/true);
  const auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->geometry().dtype, RowDtype::kFp8DsMla);
  EXPECT_EQ(file->geometry().d_qk, 576u);
  EXPECT_EQ(file->geometry().row_bytes(), 656u);
  EXPECT_EQ(file->Rows(1, 0, 3).size(), 3 * 656u);
}

// Adds index keys of 16 values in fp8 to a file of rows.
void AddIndex(Rows& rows, std::vector<std::byte>& keys) {
  const uint64_t tokens = rows.token_ids.size();
  rows.metadata["index"] = R"({"d_rope":8,"dim":16,"dtype":"fp8","heads":4,)"
                           R"("rope_style":"half","scale":0.125})";
  keys.resize(2 * tokens * 20);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::byte>(i * 7);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    rows.tensors.push_back({"layers." + std::to_string(layer) + ".index_k",
                            TensorDtype::kU8,
                            {tokens, 20},
                            std::span(keys).subspan(layer * tokens * 20, tokens * 20)});
  }
}

TEST(RowFile, ReadsIndexKeys) {
  Rows rows(5);
  std::vector<std::byte> keys;
  AddIndex(rows, keys);
  const auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  const IndexShape due = {
      .dim = 16, .heads = 4, .dtype = IndexDtype::kFp8, .d_rope = 8, .scale = 0.125f};
  EXPECT_EQ(file->geometry().index, due);
  EXPECT_EQ(file->geometry().layers, 2u);
  const auto middle = file->Rows(3, 2, 4);  // of layer 1
  ASSERT_EQ(middle.size(), 40u);
  EXPECT_EQ(std::memcmp(middle.data(), keys.data() + (5 + 2) * 20, 40), 0);
  const TensorSpec spec = RowTensorSpec(file->geometry(), 3, 5);
  EXPECT_EQ(spec.name, "layers.1.index_k");
  EXPECT_EQ(spec.dtype, TensorDtype::kU8);
  EXPECT_EQ(spec.shape, (std::vector<uint64_t>{5, 20}));
}

TEST(RowFile, AnEmptyFileIsAnEmptyChunk) {
  const Rows rows(0);
  const auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->token_ids().empty());
  EXPECT_TRUE(file->Rows(1, 0, 0).empty());
}

TEST(RowFile, ReadsYarnHalfSplitAndNoRope) {
  Rows rows(1);
  rows.metadata["rope_style"] = "half";
  rows.metadata["rope_scaling"] =
      R"({"type":"yarn","factor":40,"original_max_position_embeddings":4096,)"
      R"("beta_fast":32,"beta_slow":1,"mscale":0.707,"mscale_all_dim":0.707})";
  auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->geometry().rope.style, RopeStyle::kHalfSplit);
  EXPECT_EQ(file->geometry().rope.yarn, NamedGeometry("deepseek-v2-lite")->rope.yarn);

  rows.metadata["d_rope"] = "0";
  rows.metadata.erase("rope_style");
  rows.metadata.erase("rope_theta");
  rows.metadata.erase("rope_scaling");
  file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->geometry().rope.style, RopeStyle::kNone);
}

void ExpectRefusal(const Rows& rows, std::string_view what) {
  const absl::Status status = rows.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << what << ": " << status;
}

TEST(RowFile, NamesTheMetadataKeyThatIsMissing) {
  for (const char* key : {"model", "revision", "d_v", "d_rope", "rope_style", "rope_theta",
                          "softmax_scale", "base_position"}) {
    Rows rows(1);
    rows.metadata.erase(key);
    ExpectRefusal(rows, std::string("metadata '") + key + "': is missing");
  }
}

TEST(RowFile, NamesTheInvalidMetadataKey) {
  struct Case {
    const char* key;
    const char* value;
    const char* error;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"model", "", "model"},
           {"model", "a\nb", "printable"},
           {"d_v", "-1", "'d_v': '-1', must be a whole number"},
           {"d_v", "512.5", "must be a whole number"},
           {"d_v", "0", "d_v"},
           {"d_v", "577", "d_v"},
           {"d_v", "4294967808", "at most 1024"},  // 2^32 + 512
           {"d_rope", "63", "d_rope"},
           {"d_rope", "0", "rope_style"},  // and yet interleaved
           {"rope_style", "neox", "must be 'interleaved' or 'half'"},
           {"rope_style", "none", "must be 'interleaved' or 'half'"},
           {"rope_theta", "inf", "'rope_theta': 'inf', must be a positive number"},
           {"rope_theta", "nan", "must be a positive number"},
           {"rope_theta", "1", "rope_theta"},
           {"rope_scaling", "{", "rope_scaling: not JSON"},
           {"softmax_scale", "0", "must be a positive number"},
           {"softmax_scale", "1e-60", "softmax_scale"},  // zero as a float
           {"softmax_scale", "1e60", "softmax_scale"},   // infinite as a float
           {"base_position", "1e3", "must be a whole number"},
           {"base_position", "1099511627777", "at most 1099511627776"},
           {"base_position", "1099511627776", "the last token's position is over"},
       }) {
    Rows rows(1);
    rows.metadata[c.key] = c.value;
    ExpectRefusal(rows, c.error);
  }
}

TEST(RowFile, NamesTheInvalidTensor) {
  struct Case {
    const char* error;
    std::function<void(Rows&)> change;
  };
  const Case cases[] = {
      {"tensor 'token_ids': is missing", [](Rows& r) { r.tensors.pop_back(); }},
      {"tensor 'tokens': is not known; a file of rows has token_ids and layers.0.ckv, "
       "layers.1.ckv, ...; did you mean token_ids?",
       [](Rows& r) { r.tensors[2].name = "tokens"; }},
      {"tensor 'layers.1.cvk': is not known; a file of rows has token_ids and layers.0.ckv, "
       "layers.1.ckv, ...; did you mean layers.1.ckv?",
       [](Rows& r) { r.tensors[1].name = "layers.1.cvk"; }},
      {"tensor 'token_ids': U8 [12], must be I32 or I64 [T]",
       [](Rows& r) {
         r.tensors[2].dtype = TensorDtype::kU8;
         r.tensors[2].shape = {12};
       }},
      {"tensor 'token_ids': I32 [3, 1], must be",
       [](Rows& r) {
         r.tensors[2].shape = {3, 1};
       }},
      {"1 tensors, must be token_ids and",
       [](Rows& r) { r.tensors.erase(r.tensors.begin(), r.tensors.begin() + 2); }},
      {"tensor 'layers.0.ckv': is missing", [](Rows& r) { r.tensors[0].name = "layers.2.ckv"; }},
      {"tensor 'extra': is not known; a file of rows has token_ids and layers.0.ckv, "
       "layers.1.ckv, ...",
       [](Rows& r) {
         r.tensors.push_back({"extra", TensorDtype::kU8, {0}, {}});
       }},
      {"tensor 'layers.01.ckv': is not known",
       [](Rows& r) { r.tensors[1].name = "layers.01.ckv"; }},
      {"tensor 'layers.0.ckv': F16 [3, 576], must be BF16 [3, 576]",
       [](Rows& r) { r.tensors[0].dtype = TensorDtype::kF16; }},
      {"tensor 'layers.1.ckv': F16 [3, 576], must be BF16 [3, 576] like layer 0",
       [](Rows& r) { r.tensors[1].dtype = TensorDtype::kF16; }},
      {"tensor 'layers.0.ckv': BF16 [3, 576, 1]",
       [](Rows& r) {
         r.tensors[0].shape = {3, 576, 1};
       }},
      {"tensor 'layers.1.ckv': BF16 [6, 288]",
       [](Rows& r) {
         r.tensors[1].shape = {6, 288};
       }},
      {"tensor 'layers.0.ckv': BF16 [1, 1728], must be BF16 [3, ",
       [](Rows& r) {
         r.tensors[0].shape = {1, 1728};
       }},
      {"tensor 'layers.0.ckv': U8 [3, 1152], must be U8 [3, 656]",
       [](Rows& r) {
         r.tensors[0].dtype = TensorDtype::kU8;
         r.tensors[0].shape = {3, 1152};
       }},
      {"d_qk",
       [](Rows& r) {  // a row wider than the limit
         const std::span<const std::byte> wide(r.data.data(), 3 * 1026 * 2);
         r.tensors[0] = {"layers.0.ckv", TensorDtype::kBf16, {3, 1026}, wide};
         r.tensors[1] = {"layers.1.ckv", TensorDtype::kBf16, {3, 1026}, wide};
       }},
  };
  for (const Case& c : cases) {
    Rows rows(3);
    c.change(rows);
    ExpectRefusal(rows, c.error);
  }
}

TEST(RowFile, NamesWhatIsWrongWithAnIndex) {
  struct Case {
    const char* error;
    std::function<void(Rows&)> change;
  };
  const Case cases[] = {
      {"metadata 'index': is missing, and the file has index keys",
       [](Rows& r) { r.metadata.erase("index"); }},
      {"metadata 'index': ", [](Rows& r) { r.metadata["index"] = "{"; }},
      {"metadata 'index': heads: is missing", [](Rows& r) { r.metadata["index"] = "{\"dim\":4}"; }},
      {"metadata 'index': dtype: must be bf16, fp8 or int8",
       [](Rows& r) {
         r.metadata["index"] = R"({"d_rope":8,"dim":16,"dtype":"f16","heads":4,)"
                               R"("rope_style":"half","scale":1})";
       }},
      {"index.scale",
       [](Rows& r) {
         r.metadata["index"] = R"({"d_rope":8,"dim":16,"dtype":"fp8","heads":4,)"
                               R"("rope_style":"half","scale":0})";
       }},
      {"4 tensors, must be token_ids and", [](Rows& r) { r.tensors.erase(r.tensors.begin() + 3); }},
      {"tensor 'layers.1.index': is not known",
       [](Rows& r) { r.tensors[4].name = "layers.1.index"; }},
      {"tensor 'layers.1.index_k': U8 [5, 4], must be U8 [1, 20] by metadata 'index'",
       [](Rows& r) {
         r.tensors[4].shape = {5, 4};
       }},
      {"tensor 'layers.0.index_k': BF16 [1, 10], must be U8 [1, 20]",
       [](Rows& r) {
         r.tensors[3].dtype = TensorDtype::kBf16;
         r.tensors[3].shape = {1, 10};
       }},
  };
  for (const Case& c : cases) {
    Rows rows(1);
    std::vector<std::byte> keys;
    AddIndex(rows, keys);
    c.change(rows);
    ExpectRefusal(rows, c.error);
  }
}

TEST(RowFile, OpenNamesTheFileAndSeparatesMissingFromWrong) {
  const TemporaryDirectory directory;
  EXPECT_EQ(RowFile::Open(directory / "none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteSafetensors(directory / "empty", {}, {}).ok());
  const absl::Status status = RowFile::Open(directory / "empty").status();
  EXPECT_NE(std::string(status.message()).find(directory / "empty"), std::string::npos) << status;
}

TEST(CutFixed, CoversEveryTokenOnce) {
  for (const uint32_t count : {0u, 1u, 7u, 8u, 9u, 100u}) {
    for (const uint32_t chunk : {0u, 1u, 4u, 8u, 1000u, UINT32_MAX}) {
      const std::vector<TokenRange> ranges = CutFixed(count, chunk);
      ASSERT_FALSE(ranges.empty());
      uint32_t at = 0;
      for (size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].begin, at);
        at = ranges[i].end;
        if (i + 1 < ranges.size()) {
          EXPECT_EQ(ranges[i].end - ranges[i].begin, chunk);
        }
      }
      EXPECT_EQ(at, count);
    }
  }
  EXPECT_EQ(CutFixed(UINT32_MAX, UINT32_MAX - 1).size(), 2u);  // no wrap-around
}

// Goal: the chunks of a file chain and pass the check that a holder makes of them.
TEST(RowFile, TakesWideTokenIds) {
  Rows rows(12);
  std::vector<int64_t> wide;
  for (size_t i = 0; i < 12; ++i) wide.push_back(static_cast<int64_t>(i) * 1000);
  wide.back() = INT32_MAX;
  rows.SetTokenIds(TensorDtype::kI64, wide);
  const auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(
      std::equal(wide.begin(), wide.end(), file->token_ids().begin(), file->token_ids().end()));
  wide[3] = int64_t{1} << 31;
  ExpectRefusal(rows, "tensor 'token_ids': [3] is 2147483648, no token id");
  const std::vector<int32_t> padding(12, -1);
  rows.SetTokenIds(TensorDtype::kI32, padding);
  ExpectRefusal(rows, "tensor 'token_ids': [0] is -1, no token id");
}

TEST(RowFile, ReadsExtraKeys) {
  Rows rows(12);
  rows.metadata["extra_keys"] =
      R"([{"begin": 5, "tokens": 4, "digest": "00ff"}, {"digest": "AA"}])";
  const auto file = rows.Open();
  ASSERT_TRUE(file.ok()) << file.status();
  const ExtraKeys keys(file->extra_keys().begin(), file->extra_keys().end());
  EXPECT_EQ(keys, (ExtraKeys{{0, 0, "\xaa"}, {5, 4, std::string("\0\xff", 2)}}));
  rows.metadata["extra_keys"] = R"([{"begin": 12, "tokens": 4, "digest": "00ff"}])";
  ExpectRefusal(rows, "metadata 'extra_keys'");
}

TEST(DescribeChunk, ChunksOfAFileAreValid) {
  const Rows rows(10);
  const auto file = *rows.Open();
  ChunkId parent;
  for (const TokenRange range : CutFixed(10, 4)) {
    const ChunkInfo info =
        DescribeChunk(file.geometry(), parent, file.base_position(), file.token_ids(), range,
                      [&](uint32_t layer) { return file.Rows(layer, range.begin, range.end); });
    EXPECT_TRUE(ValidateChunkInfo(info, file.geometry()).ok());
    EXPECT_EQ(info.position, 100 + range.begin);
    EXPECT_EQ(info.parent, parent);
    EXPECT_EQ(info.token_ids.front(), static_cast<int32_t>(7 + range.begin));
    EXPECT_EQ(info.tensor_checksums[1], ChecksumOf(file.Rows(1, range.begin, range.end)));
    parent = info.id;
  }
}

TEST(ParseRopeScaling, NoRopeScalingMeansNoYarn) {
  for (const char* none : {"", "null", R"({"type":"default"})", R"({"rope_type":"default"})"}) {
    const auto parsed = ParseRopeScaling(none);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_FALSE(parsed->has_value()) << none;
  }
}

TEST(ParseRopeScaling, FillsDefaults) {
  const auto parsed = ParseRopeScaling(R"({"type":"yarn","rope_type":"yarn","factor":32.5,)"
                                       R"("original_max_position_embeddings":8192})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  YarnParams expected;
  expected.factor = 32.5;
  expected.original_max_position = 8192;
  EXPECT_EQ(*parsed, expected);
}

TEST(ParseRopeScaling, NamesTheKey) {
  const std::string good = R"({"type":"yarn","factor":40,"original_max_position_embeddings":1)";
  for (const auto& [text, error] : std::vector<std::pair<std::string, const char*>>{
           {"[]", "must be a JSON object"},
           {"{", "not JSON"},
           {good + std::string("}\0", 2), "not JSON"},
           {"{}", "type: '', must be 'yarn'"},
           {R"({"type":"linear","factor":2})", "type: 'linear'"},
           {R"({"type":1})", "type: must be one name"},
           {R"({"type":"yarn","rope_type":"default"})", "rope_type: must be one name"},
           {R"({"type":"yarn","original_max_position_embeddings":1})", "factor: is missing"},
           {R"({"type":"yarn","factor":1})", "original_max_position_embeddings: is missing"},
           {good + R"(,"beta_fast":"32"})", "beta_fast: must be a number"},
           {good + R"(,"truncate":1})", "'truncate': is not known"},
           {good + R"(,"mscale":[1]})", "nested deeper"},
           {good + R"(,"factor":1})", "'factor' twice"},
       }) {
    const absl::Status status = ParseRopeScaling(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(error), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace ckv
