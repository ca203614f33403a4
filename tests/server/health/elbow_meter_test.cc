// Goal: a holder is past its elbow when its batches take longer for each attend and it is busy, for
// some time, and not otherwise. Method: sums of batches with known fixed and marginal times.

#include "server/health/elbow_meter.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

ChunkId IdOf(uint8_t n) {
  ChunkId id;
  id.bytes.fill(n);
  return id;
}

struct Metered {
  uint64_t fixed_us = 0, marginal_us = 0;
  LoadSamples samples = {};
  ElbowMeter meter = {};
  Instant now{};

  // A second with batches of these sizes in turn, so many in all.
  HolderLoad Second(const std::vector<uint64_t>& sizes, size_t count,
                    const std::vector<ChunkId>& sampled = {}) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t n = sizes[i % sizes.size()];
      samples.NoteBatch(n, fixed_us + n * marginal_us);
    }
    now = now + seconds(1);
    return meter.Read(samples.sums(), now, sampled);
  }
};

TEST(ElbowMeterTest, FindsWhereTheCurveBends) {
  Metered one{.fixed_us = 800, .marginal_us = 100};
  one.Second({1, 2, 4, 12}, 500);
  const HolderLoad load = one.Second({1, 2, 4, 12}, 500);
  EXPECT_NEAR(load.elbow, 8, 0.1);
  EXPECT_NEAR(load.attends, 4.75, 0.01);
  EXPECT_NEAR(load.busy_part, 500 * (800 + 475) / 1e6, 0.01);
  EXPECT_FALSE(load.is_past_elbow) << "the average batch is below it";
}

TEST(ElbowMeterTest, ThreeWindowsInARowArePastIt) {
  Metered one{.fixed_us = 800, .marginal_us = 100};
  one.Second({1, 4}, 600);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(one.Second({8, 16}, 500).is_past_elbow);
  const HolderLoad load = one.Second({8, 16}, 500, {IdOf(3)});
  EXPECT_TRUE(load.is_past_elbow);
  EXPECT_THAT(load.hot, ElementsAre(IdOf(3)));
  EXPECT_TRUE(one.Second({8, 16}, 500).is_past_elbow) << "as long as it lasts";
  // A quiet window ends it, and begins the count anew.
  EXPECT_FALSE(one.Second({8, 16}, 10).is_past_elbow);
  EXPECT_FALSE(one.Second({8, 16}, 500).is_past_elbow);
}

TEST(ElbowMeterTest, AHolderThatRestsIsNotPastIt) {
  Metered one{.fixed_us = 10, .marginal_us = 100};
  one.Second({2, 6}, 800);  // the first look has no window before it
  for (int i = 0; i < 6; ++i) {
    const HolderLoad load = one.Second({2, 6}, 800);
    EXPECT_NEAR(load.busy_part, 0.33, 0.01);
    EXPECT_FALSE(load.is_past_elbow);
  }
}

// One caller keeps a processor busy by itself, and a second holder would not help it.
TEST(ElbowMeterTest, OneAttendAtATimeIsNotPastIt) {
  Metered one{.fixed_us = 10, .marginal_us = 990};
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(one.Second({1}, 990).is_past_elbow);
}

TEST(ElbowMeterTest, ABackendThatTakesMoreForNothingHasNoElbow) {
  Metered one{.fixed_us = 1500, .marginal_us = 0};
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(one.Second({8, 64}, 600).is_past_elbow);
}

TEST(ElbowMeterTest, NamesTheChunksThatMostAttendsRead) {
  Metered one{.fixed_us = 100, .marginal_us = 300};
  one.Second({2, 6}, 900);
  std::vector<ChunkId> sampled(200, IdOf(7));
  sampled.insert(sampled.end(), 100, IdOf(9));
  sampled.push_back(IdOf(1));  // below a hundredth
  HolderLoad load;
  for (int i = 0; i < 3; ++i) load = one.Second({2, 6}, 900, sampled);
  EXPECT_THAT(load.hot, ElementsAre(IdOf(7), IdOf(9)));
  EXPECT_THAT(one.Second({2, 6}, 1).hot, IsEmpty());
}

TEST(LoadSamplesTest, TakesEachSampleOnce) {
  LoadSamples samples = {};
  EXPECT_THAT(samples.TakeChunks(), IsEmpty());
  samples.NoteChunk({.slot = 0, .generation = 0});
  samples.NoteChunk({.slot = 5, .generation = 7});
  const std::vector<ChunkLocator> taken = samples.TakeChunks();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(std::pair(taken[1].slot, taken[1].generation), std::pair(5u, 7u));
  EXPECT_THAT(samples.TakeChunks(), IsEmpty());
  uint32_t due = 0;
  for (uint32_t i = 0; i < 10 * LoadSamples::kPiecePeriod; ++i) due += samples.IsPieceDue();
  EXPECT_EQ(due, 10u);
}

}  // namespace
}  // namespace ckv
