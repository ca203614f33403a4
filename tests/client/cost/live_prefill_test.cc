// Goal: an engine's prefills give the cost of recomputing its model, and that decides. Method:
// made-up times, alone and at a requester of real holders.

#include "client/live_prefill.h"

#include <memory>
#include <string>

#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;

TEST(LivePrefill, IsTheMedianPerTokenAndLayerFromTheThirdReportOn) {
  const Geometry geometry = test::TestGeometry(/*layers=*/4);
  LivePrefill live;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(live.Report(geometry, 100, milliseconds(40)).ok());
  EXPECT_FALSE(live.PerTokenLayerUs(geometry).has_value());
  // One that waited for a compilation does not count, and a short one is not counted.
  ASSERT_TRUE(live.Report(geometry, 100, milliseconds(4000)).ok());
  EXPECT_DOUBLE_EQ(live.PerTokenLayerUs(geometry).value(), 100);
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(live.Report(geometry, LivePrefill::kTokensMin - 1, milliseconds(40)).ok());
  EXPECT_DOUBLE_EQ(live.PerTokenLayerUs(geometry).value(), 100);
  Geometry other = geometry;
  other.revision += "2";
  EXPECT_FALSE(live.PerTokenLayerUs(other).has_value());
}

TEST(LivePrefill, FollowsTheLastReports) {
  const Geometry geometry = test::TestGeometry(/*layers=*/4);
  LivePrefill live;
  for (size_t i = 0; i < LivePrefill::kReportCount; ++i)
    ASSERT_TRUE(live.Report(geometry, 1000, milliseconds(400)).ok());
  for (size_t i = 0; i < LivePrefill::kReportCount / 2 + 1; ++i)
    ASSERT_TRUE(live.Report(geometry, 1000, milliseconds(800)).ok());
  EXPECT_DOUBLE_EQ(live.PerTokenLayerUs(geometry).value(), 200);
}

TEST(LivePrefill, RefusesWhatIsNoPrefill) {
  const Geometry geometry = test::TestGeometry();
  LivePrefill live;
  Geometry wrong = geometry;
  wrong.layers = 0;
  for (const absl::Status& status :
       {live.Report(wrong, 100, milliseconds(1)), live.Report(geometry, 0, milliseconds(1)),
        live.Report(geometry, LivePrefill::kTokensMax + 1, milliseconds(1)),
        live.Report(geometry, 100, Duration::zero()),
        live.Report(geometry, 100, LivePrefill::kTookMax + milliseconds(1))})
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(LivePrefill, ForgetsAllAtTheLimitOfModels) {
  LivePrefill live;
  Geometry geometry = test::TestGeometry();
  for (size_t model = 0; model <= LivePrefill::kModelCountMax; ++model) {
    geometry.revision = std::to_string(model);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(live.Report(geometry, 100, milliseconds(1)).ok());
  }
  EXPECT_TRUE(live.PerTokenLayerUs(geometry).has_value());
  geometry.revision = "0";
  EXPECT_FALSE(live.PerTokenLayerUs(geometry).has_value());
}

TEST(LivePrefill, DecidesAtTheRequester) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  test::Cluster cluster(fabric.get(), 1, test::SmallShape(), nullptr, 16,
                        /*local_cache_bytes=*/uint64_t{64} << 20);
  cluster.fleet.Load("c", test::MakeTestCorpus(test::TestGeometry(), {100}, 3), {0});
  const std::shared_ptr<const Corpus> corpus = cluster.Resolve();
  ExplainCall call;
  call.corpus = corpus;
  call.query_rows = 16;
  call.deadline = test::Soon();
  auto explained = cluster.requester->Explain(call);
  ASSERT_TRUE(explained.ok()) << explained.status();
  const CostBreakdown& unknown = explained->decision.cost(Primitive::kLocal);
  EXPECT_FALSE(unknown.offered);
  EXPECT_NE(std::string(unknown.why_not).find("ckv_report_prefill"), std::string::npos);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        cluster.requester->ReportPrefill(corpus->geometry, 1000, std::chrono::microseconds(1))
            .ok());
  }
  explained = cluster.requester->Explain(call);
  ASSERT_TRUE(explained.ok()) << explained.status();
  const CostBreakdown& local = explained->decision.cost(Primitive::kLocal);
  EXPECT_TRUE(local.offered);
  EXPECT_NEAR(local.prefill_us, 0.1, 1e-9) << "100 tokens at 1 ns over all layers";
  EXPECT_LT(local.total_us, explained->decision.cost(Primitive::kFetch).total_us);
  const auto estimates = cluster.requester->Estimate({.corpus = corpus, .query_rows = 16});
  ASSERT_TRUE(estimates.ok());
  EXPECT_NEAR((*estimates)[0].decision.cost(Primitive::kLocal).prefill_us, 0.1, 1e-9);
}

}  // namespace
}  // namespace ckv
