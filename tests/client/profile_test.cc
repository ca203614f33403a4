// Goal: constants come from measurements, follow a real change, and shrug off a single pause.

#include "client/profile.h"

#include "client/explain.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/client/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

TEST(LiveFabric, NothingIsKnownBeforeAProbe) {
  LiveFabric live;
  EXPECT_FALSE(live.Get().has_value());
  live.Observe(100, 5);
  EXPECT_FALSE(live.Get().has_value());
  live.Set({16, 25e9});
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  EXPECT_EQ(live.Get()->bandwidth_bytes_per_s, 25e9);
}

TEST(LiveFabric, OnePauseMovesLittleARealChangeIsFollowed) {
  LiveFabric live;
  live.Set({16, 25e9});
  live.Observe(100, 1e6);
  EXPECT_LE(live.Get()->t_probe_us, 16 * 1.0626);
  live.Observe(1 << 20, 1e6);
  EXPECT_GE(live.Get()->bandwidth_bytes_per_s, 25e9 * 0.968);
  for (int i = 0; i < 200; ++i) live.Observe(100, 40);
  EXPECT_NEAR(live.Get()->t_probe_us, 40, 0.5);
  // 1 MB in 140 us is 100 us of moving after the probe: 10.5 GB/s.
  for (int i = 0; i < 200; ++i) live.Observe(1 << 20, 140);
  EXPECT_NEAR(live.Get()->bandwidth_bytes_per_s, 10.5e9, 0.2e9);
}

TEST(LiveFabric, NonsenseIsIgnored) {
  LiveFabric live;
  live.Set({16, 25e9});
  live.Observe(100, 0);
  live.Observe(100, -5);
  live.Observe(100, std::nan(""));
  live.Observe(64 << 10, 1e6);  // neither small nor large
  EXPECT_EQ(live.Get()->t_probe_us, 16);
  for (int i = 0; i < 1000; ++i) live.Observe(1 << 20, 1e-9);
  EXPECT_TRUE(std::isfinite(live.Get()->bandwidth_bytes_per_s));
}

TEST(Calibrate, EveryTermIsMeasured) {
  for (const RowDtype dtype : {RowDtype::kBf16, RowDtype::kFp8DsMla}) {
    Geometry geometry = *NamedGeometry("deepseek-v2-lite");
    geometry.revision = "r";
    geometry.dtype = dtype;
    const RequesterConstants here = CalibrateHere(geometry, *Clock::Real());
    EXPECT_GT(here.merge_per_row_us, 0);
    EXPECT_GT(here.attend_per_row_token_us, 0);
    EXPECT_GT(here.splice_per_token_layer_us, 0);
    EXPECT_FALSE(here.prefill_per_token_layer_us.has_value());
  }
  const Geometry unrotated = [] {
    Geometry geometry = TestGeometry();
    geometry.rope.style = RopeStyle::kNone;
    return geometry;
  }();
  EXPECT_EQ(CalibrateHere(unrotated, *Clock::Real()).splice_per_token_layer_us, 0);
}

TEST(Explain, EveryInputIsMeasured) {
  const auto fabric = NewShmFabric(Clock::Real());
  TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  fleet.StartHolder(1);
  const auto corpus = MakeTestCorpus(TestGeometry(), {0, 200, 300}, 1);
  fleet.Load("c", corpus, {0, 0, 1});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const auto published = *requester->Resolve("c", "", Soon());
  const auto explained = requester->Explain(published, 0, 3, 16, 4, 0, Soon());
  ASSERT_TRUE(explained.ok()) << explained.status();
  const DecisionInput& input = explained->input;
  EXPECT_EQ(input.tokens, 500u);
  EXPECT_EQ(input.query_rows, 16u);
  EXPECT_EQ(input.steps, 4u);
  ASSERT_TRUE(input.fabric.has_value());
  EXPECT_GT(input.fabric->t_probe_us, 0);
  EXPECT_GT(input.fabric->bandwidth_bytes_per_s, 0);
  EXPECT_GT(input.holder_compute.base_us + input.holder_compute.per_row_token_us, 0);
  EXPECT_TRUE(explained->decision.costs[0].offered);
  EXPECT_TRUE(explained->decision.costs[1].offered);
  EXPECT_FALSE(explained->decision.costs[2].offered);
  EXPECT_FALSE(explained->summary.empty());
  for (const HolderView& view : requester->Holders())
    EXPECT_GT(view.constants.bandwidth_bytes_per_s, 0) << view.member.id.name;
  // Of chunks without tokens nobody is asked, so nothing but local could be offered.
  const auto empty = requester->Explain(published, 0, 1, 16, 4, 0, Soon());
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->decision.choice.has_value());
}

TEST(Explain, WhatCannotBeMeasuredIsAnError) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  const auto corpus = MakeTestCorpus(TestGeometry(), {20}, 1);
  fleet.Load("c", corpus, {0});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const auto published = *requester->Resolve("c", "", Soon());
  EXPECT_EQ(requester->Explain(published, 0, 2, 16, 1, 0, Soon()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requester->Explain(published, 0, 1, 0, 1, 0, Soon()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requester->Explain(nullptr, 0, 1, 1, 1, 0, Soon()).status().code(),
            absl::StatusCode::kInvalidArgument);
  fleet.StopHolder(0);
  EXPECT_EQ(requester->Explain(published, 0, 1, 16, 1, 0, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckv
