// Goal: models have the numbers of their public configs, and a wrong name lists the right ones.

#include "proto/named_models.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(NamedModels, AreValidAndHaveTheSoftmaxScalesOfTheirConfigs) {
  const std::map<std::string, float> scales = {{"deepseek-v2-lite", .1147213868f},
                                               {"deepseek-v3", .1352337789f},
                                               {"deepseek-v3.2", .1352337789f},
                                               {"glm-4.7-flash", .0625f},
                                               {"glm-5", .0625f},
                                               {"kimi-k2", .13087f}};
  ASSERT_EQ(NamedModels().size(), scales.size());
  for (const NamedModel& model : NamedModels()) {
    EXPECT_TRUE(ValidateGeometry(model.geometry).ok()) << model.name;
    EXPECT_NEAR(model.geometry.softmax_scale, scales.at(model.name), 1e-5) << model.name;
    EXPECT_EQ(model.geometry.row_bytes(), 1152u) << model.name;
    EXPECT_EQ(FindModel(model.name)->geometry, model.geometry);
  }
}

// A decode step of one sequence: 27 x 16 and 61 x 128 query rows.
TEST(NamedModels, HaveTheirLayersAndHeads) {
  EXPECT_EQ(FindModel("deepseek-v2-lite")->geometry.layers, 27u);
  EXPECT_EQ(FindModel("deepseek-v2-lite")->heads, 16u);
  EXPECT_EQ(FindModel("deepseek-v3")->geometry.layers, 61u);
  EXPECT_EQ(FindModel("deepseek-v3")->heads, 128u);
  EXPECT_EQ(FindModel("kimi-k2")->geometry.rope.yarn->beta_fast, 1);
}

TEST(NamedModels, SparseAttentionHasIndexKeys) {
  const Geometry v32 = FindModel("deepseek-v3.2")->geometry;
  const Geometry glm = FindModel("glm-5")->geometry;
  EXPECT_EQ(v32.index->ToString(), "64x128 fp8");
  EXPECT_EQ(glm.index->ToString(), "32x128 fp8");
  EXPECT_EQ(v32.index->rope_style, RopeStyle::kHalfSplit);
  EXPECT_EQ(glm.index->rope_style, RopeStyle::kInterleaved);
  EXPECT_NEAR(v32.index->scale, .011048543, 1e-8);
  EXPECT_EQ(v32.token_bytes(), 61u * (1152 + 132));
  EXPECT_FALSE(FindModel("deepseek-v3")->geometry.index.has_value());
}

TEST(NamedModels, AWrongNameListsTheRightOnes) {
  const absl::Status status = FindModel("gpt-2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "no model is named 'gpt-2'; known are: deepseek-v2-lite, glm-4.7-flash, deepseek-v3, "
            "deepseek-v3.2, kimi-k2, glm-5");
}

}  // namespace
}  // namespace ckv
