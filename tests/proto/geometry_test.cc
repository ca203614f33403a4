#include "proto/geometry.h"
#include "tests/support/named_geometry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace ckv {
namespace {

Geometry V3() {
  Geometry geometry = *NamedGeometry("deepseek-v3");
  geometry.revision = "abc";
  return geometry;
}

// The index of DeepSeek-V3.2.
IndexShape V32Index() {
  return {.dim = 128, .heads = 64, .dtype = IndexDtype::kFp8, .d_rope = 64, .scale = 0.011048543f};
}

struct Change {
  const char* field;  // as messages name it
  std::function<void(Geometry&)> apply;
};

// One valid change of every field.
std::vector<Change> EveryField() {
  return {
      {"model", [](Geometry& g) { g.model += "x"; }},
      {"revision", [](Geometry& g) { g.revision = "abd"; }},
      {"layers", [](Geometry& g) { g.layers = 60; }},
      {"d_qk", [](Geometry& g) { g.d_qk = 640; }},
      {"d_v", [](Geometry& g) { g.d_v = 256; }},
      {"d_rope", [](Geometry& g) { g.d_rope = 32; }},
      {"dtype", [](Geometry& g) { g.dtype = RowDtype::kFp8DsMla; }},
      {"rope_style", [](Geometry& g) { g.rope.style = RopeStyle::kHalfSplit; }},
      {"rope_theta", [](Geometry& g) { g.rope.theta = 5e4; }},
      {"yarn", [](Geometry& g) { g.rope.yarn.reset(); }},
      {"yarn", [](Geometry& g) { g.rope.yarn->factor = 32; }},
      {"yarn", [](Geometry& g) { g.rope.yarn->original_max_position = 8192; }},
      {"yarn", [](Geometry& g) { g.rope.yarn->beta_fast = 31; }},
      {"yarn", [](Geometry& g) { g.rope.yarn->beta_slow = 2; }},
      {"yarn", [](Geometry& g) { g.rope.yarn->mscale = 0.5; }},
      {"yarn", [](Geometry& g) { g.rope.yarn->mscale_all_dim = 0.5; }},
      {"softmax_scale", [](Geometry& g) { g.softmax_scale = 0.0625f; }},
      {"index", [](Geometry& g) { g.index = V32Index(); }},
      {"index", [](Geometry& g) { (g.index = V32Index())->dim = 64; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->heads = 32; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->dtype = IndexDtype::kBf16; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->dtype = IndexDtype::kInt8; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->d_rope = 32; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->rope_style = RopeStyle::kInterleaved; }},
      {"index", [](Geometry& g) { (g.index = V32Index())->scale = 1; }},
  };
}

// The published sizes: q = 1152, p = 1032 (2056 in f32), q + p = 2184; a row 1152 or 656.
TEST(Geometry, SizesOfDeepSeek) {
  Geometry g = V3();
  EXPECT_EQ(g.row_bytes(), 1152u);
  EXPECT_EQ(g.query_row_bytes(), 1152u);
  EXPECT_EQ(g.partial_row_bytes(false), 1032u);
  EXPECT_EQ(g.partial_row_bytes(true), 2056u);
  EXPECT_EQ(g.query_row_bytes() + g.partial_row_bytes(false), 2184u);
  EXPECT_EQ(g.token_bytes(), 61u * 1152);
  g.dtype = RowDtype::kFp8DsMla;
  EXPECT_EQ(g.row_bytes(), 656u);
  EXPECT_EQ(g.query_row_bytes(), 1152u);  // queries stay bf16
  EXPECT_TRUE(ValidateGeometry(g).ok());
}

// Index keys of 132 bytes behind the rows of 61 layers.
TEST(Geometry, TensorsOfDeepSeekWithAnIndex) {
  Geometry g = V3();
  EXPECT_EQ(g.tensor_count(), 61u);
  g.index = V32Index();
  EXPECT_EQ(g.tensor_count(), 122u);
  EXPECT_EQ(g.index_tensor(60), 121u);
  EXPECT_EQ(g.tensor_row_bytes(60), 1152u);
  EXPECT_EQ(g.tensor_row_bytes(61), 132u);
  EXPECT_EQ(g.token_bytes(), 61u * (1152 + 132));
  EXPECT_EQ(g.TensorName(60), "layer 60");
  EXPECT_EQ(g.TensorName(61), "index keys of layer 0");
  g.index->dtype = IndexDtype::kBf16;
  EXPECT_EQ(g.tensor_row_bytes(121), 256u);
}

TEST(ValidateGeometry, AcceptsTheLimitsThemselves) {
  Geometry g = V3();
  g.layers = kLayerCountMax;
  g.d_qk = kRowWidthMax;
  g.d_v = kRowWidthMax;
  g.model = std::string(kModelNameBytesMax, 'm');
  g.revision = "";
  EXPECT_TRUE(ValidateGeometry(g).ok()) << ValidateGeometry(g);
  g.d_rope = 0;
  g.rope = {RopeStyle::kNone, 0, std::nullopt};
  EXPECT_TRUE(ValidateGeometry(g).ok()) << ValidateGeometry(g);
  for (const Change& change : EveryField()) {
    Geometry changed = V3();
    change.apply(changed);
    EXPECT_TRUE(ValidateGeometry(changed).ok()) << change.field << ValidateGeometry(changed);
  }
}

void ExpectRefused(const Change& change) {
  Geometry g = V3();
  g.index = V32Index();
  change.apply(g);
  const absl::Status status = ValidateGeometry(g);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change.field;
  EXPECT_NE(std::string(status.message()).find(std::string("geometry: ") + change.field),
            std::string::npos)
      << change.field << ": " << status;
}

TEST(ValidateGeometry, NamesTheInvalidField) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Change cases[] = {
      {"model", [](Geometry& g) { g.model = ""; }},
      {"model", [](Geometry& g) { g.model = std::string(kModelNameBytesMax + 1, 'm'); }},
      {"model", [](Geometry& g) { g.model = "a\nb"; }},
      {"model", [](Geometry& g) { g.model = "\xc3\xa9"; }},
      {"model", [](Geometry& g) { g.model = "\x7f"; }},
      {"revision", [](Geometry& g) { g.revision = std::string(kModelNameBytesMax + 1, 'r'); }},
      {"revision", [](Geometry& g) { g.revision = std::string(1, '\0'); }},
      {"layers", [](Geometry& g) { g.layers = 0; }},
      {"layers", [](Geometry& g) { g.layers = kLayerCountMax + 1; }},
      {"d_qk", [](Geometry& g) { g.d_qk = 0; }},
      {"d_qk", [](Geometry& g) { g.d_qk = 575; }},
      {"d_qk", [](Geometry& g) { g.d_qk = kRowWidthMax + 2; }},
      {"d_v", [](Geometry& g) { g.d_v = 0; }},
      {"d_v", [](Geometry& g) { g.d_v = 577; }},
      {"d_rope", [](Geometry& g) { g.d_rope = 578; }},
      {"d_rope", [](Geometry& g) { g.d_rope = 63; }},
      {"d_rope", [](Geometry& g) { g.d_rope = 0; }},
      {"dtype", [](Geometry& g) { g.dtype = static_cast<RowDtype>(0); }},
      {"dtype", [](Geometry& g) { g.dtype = static_cast<RowDtype>(3); }},
      {"dtype",
       [](Geometry& g) {
         g.dtype = RowDtype::kFp8DsMla;
         g.d_qk = 640;
       }},
      {"dtype",
       [](Geometry& g) {
         g.dtype = RowDtype::kFp8DsMla;
         g.d_v = 510;
         g.d_qk = 574;
       }},
      {"rope_style", [](Geometry& g) { g.rope.style = static_cast<RopeStyle>(3); }},
      {"rope_theta", [](Geometry& g) { g.rope.theta = 1; }},
      {"rope_theta", [](Geometry& g) { g.rope.theta = kNan; }},
      {"rope_theta", [](Geometry& g) { g.rope.theta = kInf; }},
      {"rope_theta",
       [](Geometry& g) {
         g.rope = {RopeStyle::kNone, kNan, std::nullopt};
       }},
      {"yarn.factor", [](Geometry& g) { g.rope.yarn->factor = 0.5; }},
      {"yarn.factor", [](Geometry& g) { g.rope.yarn->factor = kNan; }},
      {"yarn.original", [](Geometry& g) { g.rope.yarn->original_max_position = 0; }},
      {"yarn.beta", [](Geometry& g) { g.rope.yarn->beta_fast = -1; }},
      {"yarn.beta", [](Geometry& g) { g.rope.yarn->beta_slow = kInf; }},
      {"yarn.mscale", [](Geometry& g) { g.rope.yarn->mscale = kNan; }},
      {"yarn.mscale", [](Geometry& g) { g.rope.yarn->mscale_all_dim = kInf; }},
      {"yarn.mscale",
       [](Geometry& g) {
         g.rope.style = RopeStyle::kNone;
         g.rope.yarn->mscale = kNan;
       }},
      {"softmax_scale", [](Geometry& g) { g.softmax_scale = 0; }},
      {"softmax_scale", [](Geometry& g) { g.softmax_scale = -1; }},
      {"softmax_scale", [](Geometry& g) { g.softmax_scale = static_cast<float>(kInf); }},
      {"softmax_scale", [](Geometry& g) { g.softmax_scale = static_cast<float>(kNan); }},
  };
  for (const Change& change : cases) ExpectRefused(change);
}

TEST(ValidateGeometry, NamesTheInvalidFieldOfTheIndex) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Change cases[] = {
      {"index.dim", [](Geometry& g) { g.index->dim = 0; }},
      {"index.dim", [](Geometry& g) { g.index->dim = 126; }},
      {"index.dim", [](Geometry& g) { g.index->dim = kIndexDimMax + 4; }},
      {"index.heads", [](Geometry& g) { g.index->heads = 0; }},
      {"index.heads", [](Geometry& g) { g.index->heads = kIndexHeadsMax + 1; }},
      {"index.dtype", [](Geometry& g) { g.index->dtype = static_cast<IndexDtype>(0); }},
      {"index.dtype", [](Geometry& g) { g.index->dtype = static_cast<IndexDtype>(4); }},
      {"index.d_rope", [](Geometry& g) { g.index->d_rope = 130; }},
      {"index.d_rope", [](Geometry& g) { g.index->d_rope = 63; }},
      {"index.d_rope", [](Geometry& g) { g.index->d_rope = 0; }},
      {"index.d_rope", [](Geometry& g) { g.index->rope_style = RopeStyle::kNone; }},
      {"index.rope_style", [](Geometry& g) { g.index->rope_style = static_cast<RopeStyle>(3); }},
      {"index.scale", [](Geometry& g) { g.index->scale = 0; }},
      {"index.scale", [](Geometry& g) { g.index->scale = static_cast<float>(kNan); }},
      {"rope_theta",
       [](Geometry& g) {
         g.d_rope = 0;
         g.rope = {RopeStyle::kNone, 0, std::nullopt};
       }},
  };
  for (const Change& change : cases) ExpectRefused(change);
}

TEST(ModelFingerprint, ChangesWithEveryField) {
  std::set<ChunkId> fingerprints = {ModelFingerprint(V3())};
  EXPECT_EQ(*fingerprints.begin(), ModelFingerprint(V3()));
  size_t count = 1;
  for (const Change& change : EveryField()) {
    Geometry changed = V3();
    change.apply(changed);
    EXPECT_NE(changed, V3()) << change.field;
    fingerprints.insert(ModelFingerprint(changed));
    EXPECT_EQ(fingerprints.size(), ++count) << change.field;
  }
}

Geometry GoldenGeometry() {
  Geometry g;
  g.model = "m";
  g.revision = "r";
  g.layers = 2;
  g.d_qk = 576;
  g.d_v = 512;
  g.d_rope = 64;
  g.rope.yarn = YarnParams{40, 4096, 32, 1, 0.5, 0.25};
  g.softmax_scale = 0.125f;
  return g;
}

// Goal: stored ids stay valid: the encoding does not drift. Method: a vector computed without this
// code:
//   s = lambda t: struct.pack('<Q', len(t)) + t
//   hashlib.sha256(s(b'ckv.geometry.1') + s(b'm') + s(b'r') + struct.pack('<IIIIBBdB', 2, 576, 512,
//       64, 1, 1, 10000.0, 1) + struct.pack('<6d', 40, 4096, 32, 1, .5, .25)
//       + struct.pack('<f', .125)).hexdigest()
TEST(ModelFingerprint, GoldenVector) {
  const Geometry g = GoldenGeometry();
  EXPECT_EQ(ModelFingerprint(g).ToHex(),
            "f1d45d9ddd02520a6a2f8d50243835de4ebdbea3c32ea5d1a783141cc0bea2b1");
}

// The same with an index, behind the bytes above: s(b'index') + struct.pack('<IIIBBf', 128, 64, 64,
// 2, 2, .5).
TEST(ModelFingerprint, GoldenVectorWithAnIndex) {
  Geometry g = GoldenGeometry();
  g.index = V32Index();
  g.index->scale = 0.5f;
  EXPECT_EQ(ModelFingerprint(g).ToHex(),
            "bf46f3c3ff99c8e54cd87a75f2ce2bcafc301d0dcf777789a4e39823bf870478");
}

TEST(DescribeDifference, NamesEveryFieldThatDiffers) {
  EXPECT_EQ(DescribeDifference(V3(), V3()), "");
  for (const Change& change : EveryField()) {
    Geometry changed = V3();
    change.apply(changed);
    const std::string difference = DescribeDifference(V3(), changed);
    EXPECT_EQ(difference.find(std::string(change.field) + ": "), 0u) << difference;
    EXPECT_EQ(difference.find(';'), std::string::npos) << difference;
  }
  Geometry two = V3();
  two.d_qk = 512;
  two.revision = "xyz";
  EXPECT_EQ(DescribeDifference(V3(), two),
            "revision: 'abc' here, 'xyz' there; d_qk: 576 here, 512 there");
  // The least difference that makes two geometries unequal is still visible.
  Geometry close = V3();
  close.rope.theta = std::nextafter(1e4, 2e4);
  EXPECT_NE(DescribeDifference(V3(), close).find("10000.000000000002 there"), std::string::npos)
      << DescribeDifference(V3(), close);
}

TEST(Geometry, ToStringIsOneLine) {
  EXPECT_EQ(V3().ToString(),
            "deepseek-ai/DeepSeek-V3@abc 61x576 (512+64) bf16 interleaved theta 10000 yarn x40");
  Geometry g = V3();
  g.rope = {RopeStyle::kNone, 1e4, std::nullopt};
  g.dtype = RowDtype::kFp8DsMla;
  EXPECT_EQ(g.ToString(), "deepseek-ai/DeepSeek-V3@abc 61x576 (512+64) fp8_ds_mla no rope");
  g.index = V32Index();
  EXPECT_EQ(g.ToString(),
            "deepseek-ai/DeepSeek-V3@abc 61x576 (512+64) fp8_ds_mla no rope index 64x128 fp8");
}

}  // namespace
}  // namespace ckv
