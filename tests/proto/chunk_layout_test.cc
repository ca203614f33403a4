#include "proto/chunk_layout.h"

#include <array>

#include "gtest/gtest.h"
#include "proto/corpus.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

TEST(ChunkLayout, TensorsBeginAligned) {
  const Geometry geometry = SmallGeometry(3);  // 20 bytes a row
  for (const auto& [tokens, bytes, padded] :
       {std::array<uint64_t, 3>{0, 0, 0}, {1, 20, 64}, {3, 60, 64}, {4, 80, 128}, {16, 320, 320}}) {
    const ChunkLayout layout(geometry, static_cast<uint32_t>(tokens));
    ASSERT_EQ(layout.tensor_count(), 3u);
    for (uint32_t t = 0; t < 3; ++t) {
      EXPECT_EQ(layout.row_bytes(t), 20u);
      EXPECT_EQ(layout.bytes(t), bytes);
      EXPECT_EQ(layout.padded_bytes(t), padded);
      EXPECT_EQ(layout.begin(t), t * padded);
    }
    EXPECT_EQ(layout.total_bytes(), 3 * padded);
  }
}

// Rows of 20 bytes and index keys of 8: 3 tokens take 60 and 24, padded to 64 each, and 10 take 200
// and 80, padded to 256 and 128.
TEST(ChunkLayout, IndexKeysAreBehindTheRows) {
  const Geometry geometry = IndexedGeometry(2);
  const ChunkLayout small(geometry, 3), large(geometry, 10);
  ASSERT_EQ(small.tensor_count(), 4u);
  EXPECT_EQ(small.row_bytes(1), 20u);
  EXPECT_EQ(small.row_bytes(2), 8u);
  EXPECT_EQ(small.bytes(1), 60u);
  EXPECT_EQ(small.bytes(2), 24u);
  for (uint32_t t = 0; t < 4; ++t) EXPECT_EQ(small.begin(t), t * 64);
  EXPECT_EQ(small.total_bytes(), 256u);
  EXPECT_EQ(large.begin(1), 256u);
  EXPECT_EQ(large.begin(2), 512u);
  EXPECT_EQ(large.begin(3), 640u);
  EXPECT_EQ(large.padded_bytes(3), 128u);
  EXPECT_EQ(large.total_bytes(), 768u);
}

// 2048 tokens of DeepSeek-V2-Lite: 2.359 MB a layer and 63.7 MB in all.
TEST(ChunkLayout, TwoThousandTokensOfV2Lite) {
  const ChunkLayout layout(*NamedGeometry("deepseek-v2-lite"), 2048);
  EXPECT_EQ(layout.bytes(26), 2'359'296u);
  EXPECT_EQ(layout.total_bytes(), 63'700'992u);
}

// The largest that the limits allow must not overflow.
TEST(ChunkLayout, LargestChunk) {
  Geometry geometry = SmallGeometry(kLayerCountMax);
  geometry.d_qk = kRowWidthMax;
  const ChunkLayout layout(geometry, kChunkTokenCountMax);
  EXPECT_EQ(layout.total_bytes(), uint64_t{512} * 1048576 * 2048);
}

}  // namespace
}  // namespace ckv
