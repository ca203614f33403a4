// Goal: recomputed rows equal those of a prefill of the whole text, chunk by chunk, and chunks that
// cannot be recomputed are refused. Method: the reference engine.

#include "client/engine/recompute.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "client/engine/reference_engine.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

class RecomputeTest : public testing::Test {
 protected:
  RecomputeTest() {
    ReferenceConfig config;
    config.layers = 2;
    engine_ = *ReferenceEngine::Create(config);
    tokens_.resize(100);
    std::iota(tokens_.begin(), tokens_.end(), 1);
  }
  absl::Status Make(uint32_t begin, uint32_t end, bool wanted = true) {
    const uint32_t row_bytes = engine_->geometry().row_bytes();
    return RecomputeRows(
        *engine_, pool_, tokens_, counts_, begin, end,
        [&](uint32_t chunk, uint32_t layer) {
          rows_[chunk][layer].resize(size_t{counts_[chunk]} * row_bytes);
          return std::span(rows_[chunk][layer]);
        },
        [&] { return wanted; });
  }

  WorkerPool pool_{1};
  std::unique_ptr<ReferenceEngine> engine_;
  std::vector<int32_t> tokens_;
  std::vector<uint32_t> counts_ = {30, 1, 50, 40};  // the last is longer than what is left
  std::vector<std::byte> rows_[4][2];
};

TEST_F(RecomputeTest, MakesTheRowsOfAPrefill) {
  ASSERT_TRUE(Make(1, 3).ok());
  const auto whole = engine_->Prefill(tokens_, 0, pool_, [](uint32_t) { return absl::OkStatus(); });
  ASSERT_TRUE(whole.ok());
  const uint32_t row_bytes = engine_->geometry().row_bytes();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const RowView view = (*whole)->rows(layer);
    EXPECT_TRUE(rows_[0][layer].empty()) << "it was not asked for";
    for (uint32_t i = 0; i < 51; ++i) {
      const std::byte* made =
          i == 0 ? rows_[1][layer].data() : rows_[2][layer].data() + size_t{i - 1} * row_bytes;
      EXPECT_EQ(std::memcmp(made, view.data + size_t{30 + i} * view.stride_bytes, row_bytes), 0)
          << layer << " " << i;
    }
  }
}

TEST_F(RecomputeTest, RefusesWhatIsNotThere) {
  EXPECT_EQ(Make(1, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make(3, 5).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make(3, 4).code(), absl::StatusCode::kInvalidArgument) << "the text ends before it";
  EXPECT_EQ(Make(0, 1, /*wanted=*/false).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace ckv
