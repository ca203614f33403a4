// Goal: this host's constants are there for every dtype, and a call costs at least the floor of its
// rows. Whether the floor is right, tests/bench/kernels/curve_bench.cc measures ("BM_Here").

#include "client/paged/calibrate_here.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "client/paged/cache_flush.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

Geometry DeepSeek() {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  return geometry;
}

TEST(CalibrateHere, CountsOneRowOfTheFloorAndManyOfTheSlope) {
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    Geometry geometry = DeepSeek();
    geometry.dtype = dtype;
    const RequesterConstants here = *CalibrateHere(geometry, *Clock::Real());
    EXPECT_GT(here.attend_floor.us_per_token, 0);
    EXPECT_EQ(here.attend_floor.shown_share, 0);
    EXPECT_GT(here.attend_per_row_token_us, 0);
    EXPECT_EQ(AttendHereTime(here, 1, 1000).Us(),
              1000 * std::max(here.attend_per_row_token_us, here.attend_floor.us_per_token));
    EXPECT_EQ(AttendHereTime(here, 1 << 20, 1000).Us(),
              (1 << 20) * (1000 * here.attend_per_row_token_us));
  }
}

TEST(FlushFromCaches, ChangesNoBytes) {
  std::vector<std::byte> rows(1000);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::byte(i * 7);
  const std::vector<std::byte> before = rows;
  for (const size_t begin : {0u, 1u, 63u, 64u, 999u, 1000u})
    FlushFromCaches(std::span(rows).subspan(begin));
  FlushFromCaches({});
  EXPECT_EQ(rows, before);
}

}  // namespace
}  // namespace ckv
