// Goal: a decision uses a calibration's profile if it is of the corpus, and the operator's
// description of the network. Otherwise it uses neither. Method: real holders in this process; a
// profile with values that no measurement gives; an oracle that reads a file.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "client/cost/live_compute.h"
#include "client/cost/live_error.h"
#include "client/cost/oracle_file.h"
#include "client/cost/profile_file.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::MakeTestCorpus;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

Profile ProfileOf(const Geometry& geometry) {
  Profile profile;
  const std::vector<std::string> holders = {"h0"};
  profile.subject = SubjectOf(geometry, HostIdentity(), holders, /*quick=*/true);
  profile.here.merge_per_row_us = 0.125;
  profile.here.splice_per_token_layer_us = 0.0625;
  profile.here.splice_per_layer_us = 7;
  profile.here.prefill_per_token_layer_us = 3.5;
  profile.here.attend = {1, 2, 1, {{{16, 0.25}}}};
  profile.lanes = {{"h0", "shm", {1e6, 1, 123e6}, {4, 0, 1, {{{16, 0.5}}}}},
                   {"h0", "tcp", {1e6, 1, 456e6}, {5, 0, 1, {{{16, 0.5}}}}}};
  return profile;
}

struct ExplainProfile : testing::Test {
  ExplainProfile() {
    fleet.StartHolder(0);
    fleet.StartHolder(1);
    fleet.Load("c", MakeTestCorpus(TestGeometry(), {200, 300}, 1), {0, 1});
    options.fabrics = {fabric.get()};
  }
  void Start() {
    requester = *Requester::Create(options, &fleet, &fleet);
    published = *requester->Resolve("c", "", Soon());
  }
  absl::StatusOr<Requester::Explanation> Explain() {
    ExplainCall call;
    call.corpus = published;
    call.chunks = {0, 1};
    call.query_rows = 16;
    call.deadline = Soon();
    return requester->Explain(call);
  }

  std::unique_ptr<Fabric> fabric = NewShmFabric(Clock::Real());
  TestFleet fleet{{fabric.get()}};
  RequesterOptions options;
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> published;
};

TEST_F(ExplainProfile, UsesItsConstantsForItsCorpus) {
  options.profile = std::make_shared<const Profile>(ProfileOf(TestGeometry()));
  Start();
  const auto explained = Explain();
  ASSERT_TRUE(explained.ok()) << explained.status();
  const DecisionInput& input = explained->input;
  EXPECT_EQ(input.here.merge_per_row_us, 0.125);
  EXPECT_EQ(input.here.splice_per_layer_us, 7);
  EXPECT_EQ(input.here.attend, options.profile->here.attend);
  ASSERT_EQ(input.candidates.size(), 2u);
  const Candidate& known = input.candidates[0];
  EXPECT_EQ(known.compute.curve, options.profile->lanes[0].compute);
  EXPECT_EQ(known.fabric->fetch_bandwidth_bytes_per_s, 123e6);
  // From a live probe, not the profile's second and byte a second.
  EXPECT_LT(known.fabric->t_probe_us, 1e6);
  EXPECT_GT(known.fabric->bandwidth_bytes_per_s, 1);
  // A holder that the profile does not name is measured.
  EXPECT_TRUE(input.candidates[1].compute.curve.empty());
  EXPECT_EQ(input.candidates[1].fabric->fetch_bandwidth_bytes_per_s, 0);
  const CostBreakdown& local = explained->decision.cost(Primitive::kLocal);
  EXPECT_TRUE(local.offered);
  EXPECT_DOUBLE_EQ(local.prefill_us, 500 * published->geometry.layers * 3.5);
}

TEST_F(ExplainProfile, IgnoresProfilesOfAnotherGeometryOrHost) {
  Geometry other = TestGeometry();
  other.d_qk += 64;
  Profile elsewhere = ProfileOf(TestGeometry());
  elsewhere.subject = SubjectOf(TestGeometry(), "elsewhere", {}, true);
  for (const Profile& profile : {ProfileOf(other), elsewhere}) {
    options.profile = std::make_shared<const Profile>(profile);
    Start();
    const auto explained = Explain();
    ASSERT_TRUE(explained.ok()) << explained.status();
    EXPECT_FALSE(explained->input.here.prefill_per_token_layer_us.has_value());
    EXPECT_TRUE(explained->input.here.attend.empty());
    EXPECT_GT(explained->input.here.attend_per_row_token_us, 0);
    EXPECT_TRUE(explained->input.candidates[0].compute.curve.empty());
    EXPECT_EQ(explained->input.candidates[0].fabric->fetch_bandwidth_bytes_per_s, 0);
    EXPECT_FALSE(explained->decision.cost(Primitive::kLocal).offered);
  }
}

// Goal: calls correct the profile. Its kernel time is orders of magnitude too high, so the factor
// must reach its limit, and the error must be reported.
TEST_F(ExplainProfile, CallsCorrectIt) {
  Profile profile = ProfileOf(TestGeometry());
  for (LaneProfile& lane : profile.lanes) lane.compute = {1e7, 0, 1, {{{16, 1e3}}}};
  options.profile = std::make_shared<const Profile>(profile);
  Start();
  ASSERT_TRUE(Explain().ok());  // without T_probe there is nothing to compare a round trip with
  const ChunkUse use = {0, 0};
  const std::vector<uint16_t> q(published->geometry.d_qk);
  test::Answer answer(1, published->geometry.d_v);
  AttendCall call;
  call.corpus = published;
  call.chunks = {&use, 1};
  call.q = {q.data(), 1, published->geometry.d_qk};
  call.deadline = Soon();
  for (uint32_t i = 0; i < 10 * LiveError::kSampleCountMin; ++i)
    ASSERT_TRUE(requester->Attend(call, answer.View(), nullptr).ok());
  const auto explained = Explain();
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->input.candidates[0].compute.live.compute, LiveCompute::kFactorMin);
  const std::vector<HolderView> holders = requester->KnownHolders();
  ASSERT_TRUE(holders[0].model_error.has_value());
  EXPECT_GT(*holders[0].model_error, 0.9);
  EXPECT_FALSE(holders[1].model_error.has_value());
}

// Two holders on two tiers, whose bandwidths are lower than that of any lane of this machine.
TEST_F(ExplainProfile, UsesThePathsOfTheOracle) {
  const std::string path = test::TempPath("oracle.json");
  std::ofstream(path) << R"({"version": 1,
    "tiers": [{"name": "node", "bandwidth_GBps": 1e-3, "latency_us": 1},
              {"name": "rack", "bandwidth_GBps": 1e-4, "latency_us": 3, "congestion": 0.5}],
    "hosts": {"here": ["n1"], "near": ["n1"], "far": ["n2"]}})";
  NetworkOracleOptions oracle_options;
  oracle_options.requester_host = "here";
  NetworkOracle oracle(std::make_unique<OracleFile>(path), oracle_options);
  ASSERT_TRUE(oracle.Refresh().ok());
  fleet.Place(0, "near:1");
  fleet.Place(1, "far:1");
  options.oracle = &oracle;
  Start();
  const auto explained = Explain();
  ASSERT_TRUE(explained.ok()) << explained.status();
  const std::vector<Candidate>& candidates = explained->input.candidates;
  ASSERT_EQ(candidates.size(), 2u);
  ASSERT_TRUE(candidates[0].path.has_value() && candidates[1].path.has_value());
  EXPECT_EQ(candidates[0].path->tier, 0u);
  EXPECT_EQ(candidates[0].path->bandwidth_bytes_per_s, 1e6);
  EXPECT_EQ(candidates[1].path->tier, 1u);
  EXPECT_EQ(candidates[1].path->congestion, 0.5);
  EXPECT_EQ(candidates[1].path->bandwidth_bytes_per_s, 1e5);
  // The slowest holder determines a route's time: its bytes at half of 0.1 MB/s, not at its lane's
  // rate.
  const CostBreakdown& route = explained->decision.cost(Primitive::kRoute);
  EXPECT_EQ(route.candidate, 1u);
  const Geometry& g = published->geometry;
  const double bytes = 16. * (g.query_row_bytes() + g.partial_row_bytes(false));
  EXPECT_NEAR(route.transfer_us, bytes / 0.05 * g.layers, 1e-6 * route.transfer_us);
}

}  // namespace
}  // namespace ckv
