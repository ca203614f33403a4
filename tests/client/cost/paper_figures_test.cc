// Goal: the paper's constants, fed to our formulas, give the paper's numbers to 1 %.
// Source: arXiv:2606.01502; each test names its section.
//
// Not here, because no formula gives them:
// * 116 us at M_q = 1024 (4.3) and 24 us, or "125x", at M_q = 1 are measured. The model gives
//   105.5 us and 186x. It lacks about 9 us of turnaround, which also explains the 7 % of its fit.
//   Table 1's effective bandwidths of 24.7 GB/s result if these 9 us are taken off.
// * "near the 16 us floor for M_q <= 128" (7): the formula gives 27 us at 128.
// * Inversion near M_q = 1e5 (5.5): it needs 70 GB/s, the bandwidth of figure 1. At the 25 GB/s of
//   all else it is between 3.4e4 and 6.3e4, which is tested.
// * "below 0.2 GB/s" (8, congestion) counts a pull that the congestion spares.
// * Splices, gathers from M holders (1.3 to 3.9 ms), elbows and host overhead are measured.

#include <cmath>

#include "client/cost/predicate.h"
#include "client/cost/what_if.h"
#include "gtest/gtest.h"
#include "tests/client/cost/predicate_input.h"

namespace ckv {
namespace {

using test::BareInput;
using test::PaperInput;
using test::PublishedGeometry;

constexpr size_t kPaperRoute = 0, kPaperFetch = 1;
constexpr double kSpliceUs = 3000;  // "the flat 3 ms splice"

void ExpectWithinOnePercent(double got, double want) { EXPECT_NEAR(got, want, want / 100); }

double RouteUs(const DecisionInput& input) { return Decide(input).costs[kPaperRoute].total_us; }

// The paper compares one layer's round trip with the pull of all 27 layers. A layer of 27 times the
// tokens has as many bytes.
DecisionInput OneLayerAgainstTheChunk(uint32_t query_rows, double bandwidth) {
  DecisionInput input = BareInput(query_rows);
  input.tokens = uint64_t{2048} * 27;
  input.candidates[0].fabric = FabricConstants{16, bandwidth};
  input.here.splice_per_layer_us = kSpliceUs;
  return input;
}

// 3.2
TEST(PaperFigures, BytesOfTheWire) {
  const Geometry geometry = PublishedGeometry("deepseek-v2-lite");
  EXPECT_EQ(geometry.query_row_bytes(), 1152u);
  EXPECT_EQ(geometry.partial_row_bytes(false), 1032u);
  EXPECT_EQ(Decide(BareInput(1)).route_bytes, 2184u);
  EXPECT_EQ(Decide(BareInput(1)).fetch_bytes, 2359296u);
  ExpectWithinOnePercent(double(geometry.token_bytes()) * 2048, 63.7e6);
}

// 4.2 and table 2: T_probe + M_q (q + p) / BW on five fabrics.
TEST(PaperFigures, RouteTimes) {
  ExpectWithinOnePercent(RouteUs(BareInput(1024)), 105.5);
  ExpectWithinOnePercent(RouteUs(BareInput(128)), 27);
  const struct {
    FabricConstants fabric;
    double us_at_256;  // probe + 559.1 kB / BW
  } fabrics[] = {{{16, 25e9}, 38.4},
                 {{1.2, 21e9}, 27.8},
                 {{1.6, 18e9}, 32.7},
                 {{4.8, 22e9}, 30.2},
                 {{8.7, 19e9}, 38.1}};
  for (const auto& [fabric, us] : fabrics) {
    DecisionInput input = BareInput(256);
    input.candidates[0].fabric = fabric;
    ExpectWithinOnePercent(RouteUs(input), us);
    // 8: more than 60 times below the splice on all of them.
    EXPECT_GT(kSpliceUs / us, 60);
  }
}

// 4.3, as the model has it.
TEST(PaperFigures, RoutingOneRowIs186TimesBelowTheSplice) {
  ExpectWithinOnePercent(kSpliceUs / RouteUs(BareInput(1)), 186);
}

// 8: NVLink 4 leads IBGDA on its probe up to about a thousand rows.
TEST(PaperFigures, NvLinkLeadsToAboutAThousandRows) {
  const auto leads = [](uint32_t rows) {
    DecisionInput nvlink = BareInput(rows);
    nvlink.candidates[0].fabric = FabricConstants{1.2, 21e9};
    return RouteUs(nvlink) < RouteUs(BareInput(rows));
  };
  EXPECT_TRUE(leads(880));
  EXPECT_FALSE(leads(900));
}

// 4.2, 5.1
TEST(PaperFigures, AFetchIsTransferAndSplice) {
  const DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  const CostBreakdown fetch = Decide(input).costs[kPaperFetch];
  ExpectWithinOnePercent(fetch.transfer_us, 63.7e6 / 25e9 * 1e6);
  ExpectWithinOnePercent(fetch.splice_us, 2910);
  ExpectWithinOnePercent(fetch.total_us, 5460);
}

// 5.2
TEST(PaperFigures, BreakEvenOnBytes) {
  const Geometry geometry = PublishedGeometry("deepseek-v2-lite");
  const auto rows = [&](uint64_t tokens) {  // c_t b_kv / (q + p)
    return tokens * geometry.row_bytes() /
           (geometry.query_row_bytes() + geometry.partial_row_bytes(/*f32=*/false));
  };
  EXPECT_EQ(rows(2048), 1080u);
  EXPECT_EQ(rows(512), 270u);
  const Decision decision = Decide(BareInput(256));
  ExpectWithinOnePercent(1 - double(decision.route_bytes) / double(decision.fetch_bytes), 0.763);
}

// 5.1: local is c_t L c, fetch overtakes it where that is the 3 ms splice. The paper rounds 74 and
// 222 tokens to "75 to 220".
TEST(PaperFigures, FetchOvertakesLocalAbove75To220Tokens) {
  for (const auto& [c_us, tokens] : {std::pair{0.5, 222.2}, std::pair{1.5, 74.07}}) {
    DecisionInput input = PaperInput("deepseek-v2-lite", 16);
    // The flat splice alone: no pull.
    input.candidates[0].fabric->bandwidth_bytes_per_s = 1e15;
    input.here.splice_per_token_layer_us = 0;
    input.here.splice_per_layer_us = kSpliceUs / 27;
    input.here.prefill_per_token_layer_us = c_us;
    const auto above = BreakEven(input, Knob::kTokens, Primitive::kFetch, Primitive::kLocal);
    ASSERT_TRUE(above.has_value());
    EXPECT_EQ(double(*above), std::ceil(tokens));
    // With the pull, too, at the 70 GB/s of figure 1, it stays near.
    input.candidates[0].fabric->bandwidth_bytes_per_s = 70e9;
    const auto with_prefetch =
        BreakEven(input, Knob::kTokens, Primitive::kFetch, Primitive::kLocal);
    EXPECT_NEAR(double(*with_prefetch), tokens, tokens * 0.04);
  }
}

// 5.5: where route stops being the cheapest at 25 GB/s: 3.4e4 rows against the splice alone, 6.3e4
// against splice and pull.
TEST(PaperFigures, ReproduceWhereTheRankingInverts) {
  DecisionInput input = OneLayerAgainstTheChunk(256, 25e9);
  const auto with_prefetch =
      BreakEven(input, Knob::kQueryRows, Primitive::kFetch, Primitive::kRoute);
  ASSERT_TRUE(with_prefetch.has_value());
  ExpectWithinOnePercent(double(*with_prefetch), 6.3e4);
  input.tokens = 1;
  const auto splice = BreakEven(input, Knob::kQueryRows, Primitive::kFetch, Primitive::kRoute);
  ExpectWithinOnePercent(double(*splice), 3.4e4);
}

// Figure 6(a): route is the cheapest from 0.2 to 1000 GB/s at M_q = 256, and a probe ten times as
// long leaves it an order of magnitude below (8, congestion).
TEST(PaperFigures, RouteIsTheCheapestOnEveryFabric) {
  for (double bandwidth = 0.2e9; bandwidth < 1.1e12; bandwidth *= 2) {
    const DecisionInput input = OneLayerAgainstTheChunk(256, bandwidth);
    EXPECT_EQ(Decide(input).choice, Primitive::kRoute) << bandwidth;
  }
  DecisionInput input = OneLayerAgainstTheChunk(256, 25e9);
  input.candidates[0].fabric->t_probe_us *= 10;
  EXPECT_GT(Decide(input).costs[kPaperFetch].total_us, 10 * RouteUs(input));
}

// A step is L dependent round trips: about 1 ms of V2-Lite, which a fetch of 5.5 ms amortises after
// 6 steps of a lone agent, after 3 of V3, whose token is 128 rows.
TEST(PaperFigures, ALoneAgentAmortisesAFetch) {
  ExpectWithinOnePercent(RouteUs(PaperInput("deepseek-v2-lite", 16)), 994);
  EXPECT_EQ(BreakEvenSteps(PaperInput("deepseek-v2-lite", 16)), 6u);
  EXPECT_EQ(BreakEvenSteps(PaperInput("deepseek-v3", 128)), 3u);
}

// 6.3: our constants can have the form of its curve, flat to 8 requesters and at most 0.4 ms at
// 256. In between, up to 16 requesters, the curve stays within the measured 15 to 37 us.
TEST(PaperFigures, AHolderServesEightRequestersForTheTimeOfOne) {
  DecisionInput input = PaperInput("deepseek-v2-lite", 16);
  input.geometry.layers = 1;
  ComputeConstants& compute = input.candidates[0].compute;
  compute.base_us = 15;
  compute.free_row_tokens = 8.0 * 16 * 2048;
  compute.per_row_token_us = (400 - 15) / (248.0 * 16 * 2048);
  const auto compute_us = [&](double requesters) {
    input.candidates[0].concurrent = requesters - 1;
    return Decide(input).costs[kPaperRoute].compute_us;
  };
  EXPECT_EQ(compute_us(1), 15);
  EXPECT_EQ(compute_us(8), 15);
  EXPECT_GT(compute_us(16), 15);
  EXPECT_LT(compute_us(16), 37);
  ExpectWithinOnePercent(compute_us(256), 400);
  EXPECT_LT(compute_us(256), kSpliceUs / 7);
}

// 5.4: fetching a selection from M holders grows with M, routing it stays flat, and a holder's cost
// is that of the budget whatever the store.
TEST(PaperFigures, UnderSelectionRouteIsFlatInTheHolders) {
  const auto over = [](uint32_t holders, uint64_t store) {
    DecisionInput input = PaperInput("deepseek-v3", 128);
    input.geometry.layers = 1;
    input.tokens = store;
    input.selected = 2048;
    input.candidates.resize(holders, input.candidates[0]);
    for (uint32_t i = 0; i < holders; ++i) {
      input.candidates[i].group = i;
      input.candidates[i].token_share = 1.0 / holders;
    }
    return Decide(input);
  };
  for (uint32_t holders = 2; holders <= 7; ++holders) {
    const Decision few = over(holders - 1, 1 << 15), more = over(holders, 1 << 15);
    EXPECT_GT(more.costs[kPaperFetch].total_us, few.costs[kPaperFetch].total_us);
    // One more partial to merge, 128 rows of 0.1 us: the paper's "at most 25 us" is not exceeded
    // by that, and each kernel has fewer rows.
    EXPECT_LT(more.costs[kPaperRoute].total_us, few.costs[kPaperRoute].total_us + 13);
  }
  EXPECT_EQ(over(1, 1 << 11).costs[kPaperRoute].total_us,
            over(1, 1 << 20).costs[kPaperRoute].total_us);
}

}  // namespace
}  // namespace ckv
