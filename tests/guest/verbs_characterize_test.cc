// Goal: a characterization measures verbs as any other fabric: every sweep, and constants that a
// decision can be made with.
// Method: in the guest. Two real holders and a requester in this process, their lanes over verbs.
// Emulated: what is measured is there, not fast.

#include <cstdio>
#include <memory>

#include "client/tools/characterize/run.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"
#include "tests/transport/verbs/verbs_case.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

TEST(VerbsCharacterize, EverySweepIsMeasured) {
  const auto fabric = test::MakeVerbs(test::GuestVerbsOptions(), Clock::Real());
  ASSERT_NE(fabric, nullptr);
  test::TestFleet fleet({fabric.get()});
  fleet.StartHolder(0);
  fleet.StartHolder(1);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {64, 256, 128, 128}, 1);
  fleet.Load("c", corpus, {0, 0, 0, 1});
  RequesterOptions options;
  options.fabrics = {fabric.get()};
  options.lane_shape = test::SmallShape();
  auto requester = Requester::Create(options, &fleet, &fleet);
  ASSERT_TRUE(requester.ok()) << requester.status();
  CharacterizeTarget target;
  target.corpus = *(*requester)->Resolve("c", "", test::Soon());
  target.sizes = {0, 1};
  target.spread = {2, 3};
  target.lanes = {{"verbs", requester->get()}};
  // The guest's processor is emulated: each sweep takes its least number of rounds.
  const CharacterizeOptions sweeps = {.query_rows = {1, 45},
                                      .calibrate_query_rows = {1, 64},
                                      .parallel = {1, 2},
                                      .parallel_time_max = Duration(0),
                                      .kernel_rows_max = 32,
                                      .run_count = 1};
  const std::string path = testing::TempDir() + "/verbs_characterize.csv";
  std::remove(path.c_str());
  auto file = SampleFile::Open(path, "s");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto profile = Characterize(target, sweeps, "s", std::nullopt, *file, *Clock::Real(), {});
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->lanes.size(), 1u);
  EXPECT_EQ(profile->lanes[0].fabric, "verbs");
  EXPECT_GT(profile->lanes[0].constants.bandwidth_bytes_per_s, 0);
  // Here 2 x 2; over verbs 2 x (fetch, 2 rows), 2 kernels, 2 counts x (fan-in, staging, 3 x
  // congestion), 2 x 2 over holders.
  EXPECT_EQ(file->samples().size(), 4u + 6u + 2u + 10u + 4u);
  for (const Sample& sample : file->samples()) EXPECT_GT(sample.us, 0) << FormatSample(sample);
}

}  // namespace
}  // namespace ckv
