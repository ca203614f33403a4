// Goal: this host's constants never promise less than its memory can do: a call of one query row
// takes as long as its rows take to come in. Method: the calibration beside a plain read of rows
// that lie in no cache. Whatever runs beside either only makes it slower, so both are tried until
// they agree, and the bounds are wide.

#include "client/cache/calibrate_here.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "attention/mla_partial.h"
#include "client/cache/cold_rows.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

constexpr int kTries = 50;

Geometry DeepSeek() {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  return geometry;
}

// Microseconds to read one row of those that lie in no cache, the fastest of some runs.
double ReadUs(const Geometry& geometry, Clock& clock) {
  constexpr size_t kRows = 2048;
  std::vector<uint64_t> rows(kRows * geometry.row_bytes() / sizeof(uint64_t), 1);
  double fastest_us = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 5; ++run) {
    TakeOutOfCaches(std::as_bytes(std::span(rows)));
    const Instant begin = clock.Now();
    uint64_t sums[16] = {};
    for (size_t i = 0; i < rows.size(); i += 16) {
      for (size_t lane = 0; lane < 16; ++lane) sums[lane] += rows[i + lane];
    }
    fastest_us = std::min(fastest_us, UsSince(begin, clock) / kRows);
    EXPECT_EQ(std::accumulate(sums, std::end(sums), uint64_t{0}), rows.size());
  }
  return fastest_us;
}

// A vector kernel reads its rows at about the speed of a plain loop. A matrix kernel computes a
// tile of 16 even for one query row, so its floor may be higher, but never lower.
TEST(CalibrateHere, TheFloorIsAReadOfTheRows) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "times of this build say nothing of the machine";
#endif
  const Geometry geometry = DeepSeek();
  const std::vector<std::string_view> targets = KernelTargets();
  const auto vector = std::find_if(targets.begin(), targets.end(), [](std::string_view target) {
    return target != "AMX" && target != "AVX512_BF16";
  });
  ASSERT_NE(vector, targets.end());
  for (const std::string_view target : {targets.front(), *vector}) {
    ASSERT_TRUE(ForceKernelTarget(target).ok());
    double read_us = std::numeric_limits<double>::infinity(), floor_us = read_us;
    bool agree = false;
    for (int i = 0; i < kTries && !agree; ++i) {
      read_us = std::min(read_us, ReadUs(geometry, *Clock::Real()));
      floor_us =
          std::min(floor_us, CalibrateHere(geometry, *Clock::Real()).attend_floor.us_per_token);
      agree = floor_us >= read_us / 2 && (target != *vector || floor_us <= 2 * read_us);
    }
    EXPECT_TRUE(agree) << target << ": a floor of " << floor_us << " us a token, a read of "
                       << read_us;
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

TEST(CalibrateHere, CountsOneRowOfTheFloorAndManyOfTheSlope) {
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    Geometry geometry = DeepSeek();
    geometry.dtype = dtype;
    const RequesterConstants here = CalibrateHere(geometry, *Clock::Real());
    EXPECT_GT(here.attend_floor.us_per_token, 0);
    EXPECT_EQ(here.attend_floor.shown_share, 0);
    EXPECT_GT(here.attend_per_row_token_us, 0);
    EXPECT_EQ(AttendHereTime(here, 1, 1000).Us(),
              1000 * std::max(here.attend_per_row_token_us, here.attend_floor.us_per_token));
    EXPECT_EQ(AttendHereTime(here, 1 << 20, 1000).Us(),
              (1 << 20) * (1000 * here.attend_per_row_token_us));
  }
}

TEST(TakeOutOfCaches, LeavesWhatIsThere) {
  std::vector<std::byte> rows(1000);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::byte(i * 7);
  const std::vector<std::byte> before = rows;
  for (const size_t begin : {0u, 1u, 63u, 64u, 999u, 1000u})
    TakeOutOfCaches(std::span(rows).subspan(begin));
  TakeOutOfCaches({});
  EXPECT_EQ(rows, before);
}

}  // namespace
}  // namespace ckv
