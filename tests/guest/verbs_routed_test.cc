// Goal: a routed decode over verbs is right: attention over all rows at once, whatever holds them.
// Method: in the guest. Two real holders and a requester in this process, their lanes over verbs,
// the control plane in process; dense, and selected rows; the f64 reference. Tolerances are those
// of tests/client/call/requester_test.cc: 5e-7 x max(1, max|o|) with f32 partials, 2^-8 x max|o|
// with bf16.

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"
#include "tests/transport/verbs/verbs_case.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

using test::Answer;
using test::Soon;

TEST(VerbsRouted, DecodeIsExact) {
  const auto fabric = test::MakeVerbs(test::GuestVerbsOptions(), Clock::Real());
  ASSERT_NE(fabric, nullptr);
  {
    test::TestFleet fleet({fabric.get()});
    fleet.StartHolder(0);
    fleet.StartHolder(1);
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.lane_shape = test::SmallShape();
    options.call_count_max = 1;
    auto made = Requester::Create(options, &fleet, &fleet);
    ASSERT_TRUE(made.ok()) << made.status();
    const std::unique_ptr<Requester> requester = *std::move(made);

    const std::vector<uint32_t> tokens = {5, 1, 64, 130, 33, 72};
    const auto corpus = test::MakeTestCorpus(test::TestGeometry(), tokens, 1);
    fleet.Load("c", corpus, {0, 1, 1, 0, 1, 0});
    const auto published = requester->Resolve("c", "", Soon());
    ASSERT_TRUE(published.ok()) << published.status();
    const std::vector<uint32_t> all = {0, 1, 2, 3, 4, 5};
    std::mt19937 rng(4);
    for (uint32_t step = 0; step < 12; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      const uint32_t rows = step % 3 == 0 ? 45 : 16;  // 45: cut into several frames
      const auto q = test::RandomBf16(size_t{rows} * corpus.geometry.d_qk, rng);
      AttendCall call;
      call.corpus = *published;
      call.layer = step % corpus.geometry.layers;
      call.q = {q.data(), rows, corpus.geometry.d_qk};
      call.deadline = Soon();
      call.wire = step % 2 == 0 ? PartialDtype::kF32 : PartialDtype::kBf16;
      Answer got(rows, corpus.geometry.d_v);
      AttendReport report;
      const absl::Status status = requester->Attend(call, got.View(), &report);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(report.holder_count, 2u);
      const auto want = test::Reference(corpus, call.layer, all, call.q, {});
      const double largest = test::MaxAbsO(want);
      test::ExpectNear(got, want, step % 2 == 0 ? 5e-7 * std::max(1.0, largest) : largest / 256);
    }
    EXPECT_GE(fabric->use().queue_pairs, 4u);  // both ends of a lane to each holder
  }
  test::AwaitUse(*fabric, VerbsUse{});
}

}  // namespace
}  // namespace ckv
