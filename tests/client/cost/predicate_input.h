// Inputs of the predicate for its tests: the paper's constants (arXiv:2606.01502), and random ones.

#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string_view>

#include "client/cost/predicate.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"

namespace ckv::test {

inline Geometry PublishedGeometry(std::string_view name) {
  auto geometry = NamedGeometry(name);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  geometry->revision = "r";
  return *geometry;
}

// Of H100s over IBGDA: T_probe 16 us and 25 GB/s (table 2), splice 2.91 ms a 2048-token chunk of 27
// layers (section 7), 15 to 37 us of compute at decode (section 6.3), merge at most 25 us.
inline DecisionInput PaperInput(std::string_view model, uint32_t query_rows) {
  DecisionInput input;
  input.geometry = PublishedGeometry(model);
  input.tokens = 2048;
  input.query_rows = query_rows;
  input.cache_room_tokens = 1 << 20;
  input.candidates.resize(1);
  input.candidates[0].fabric = FabricConstants{16, 25e9};
  // 17.8 us at 16 rows, 37 us at 128.
  input.candidates[0].compute = {15, 22.0 / (128 * 2048)};
  input.here.merge_per_row_us = 0.1;
  input.here.splice_per_token_layer_us = 2910.0 / (2048 * 27);
  return input;
}

// Only what the formula of section 4.2 has, for one layer: probe and transfer.
inline DecisionInput BareInput(uint32_t query_rows) {
  DecisionInput input = PaperInput("deepseek-v2-lite", query_rows);
  input.geometry.layers = 1;
  input.candidates[0].compute = {};
  input.here = {};
  return input;
}

inline double AnyScale(std::mt19937& rng) {
  return std::pow(10, std::uniform_real_distribution<double>(-3, 6)(rng));
}

inline Candidate RandomCandidate(std::mt19937& rng) {
  Candidate candidate;
  if (rng() % 8 != 0) candidate.fabric = FabricConstants{AnyScale(rng), AnyScale(rng) * 1e6};
  if (rng() % 2) {
    candidate.path = PathCost{static_cast<uint32_t>(rng() % 4), AnyScale(rng) * 1e6, AnyScale(rng),
                              double(rng() % 100) / 100, double(rng() % 20)};
  }
  candidate.compute.base_us = AnyScale(rng);
  candidate.compute.per_row_token_us = AnyScale(rng) * 1e-5;
  candidate.compute.free_row_tokens = double(rng() % 3) * 1e5;
  candidate.compute.curve.base_us = double(rng() % 4);
  if (rng() % 2) candidate.compute.floor = {AnyScale(rng) * 1e-5, double(rng() % 101) / 100};
  if (rng() % 4 == 0) {
    const double us = AnyScale(rng) * 1e-3;
    candidate.compute.curve = {AnyScale(rng),
                               AnyScale(rng) * 1e-2,
                               2,
                               {{{1, us}, {64, us * double(1 + rng() % 64)}}},
                               {AnyScale(rng) * 1e-3, double(rng() % 101) / 100}};
  }
  if (rng() % 4 == 0) candidate.compute.live = {AnyScale(rng) * 1e-2, AnyScale(rng) * 1e-2};
  if (rng() % 2) candidate.wire_share = double(rng() % 101) / 100;
  if (rng() % 4 == 0) candidate.burst_bytes = double(rng() % (1 << 18));
  if (rng() % 4 == 0)
    candidate.cold_exchange = {AnyScale(rng), AnyScale(rng) * 1e-4, double(1 + rng() % (4 << 20))};
  if (rng() % 2) candidate.splice_share = double(rng() % 101) / 100;
  candidate.in_flight = double(rng() % 10);
  candidate.concurrent = double(rng() % 10);
  candidate.queue_us = AnyScale(rng);
  candidate.queue_requests = double(rng() % 4);
  return candidate;
}

inline void ForAll(DecisionInput& input, const std::function<void(Candidate&)>& change) {
  for (Candidate& candidate : input.candidates) change(candidate);
}

// Of one to four groups of one to three replicas.
inline DecisionInput RandomInput(std::mt19937& rng) {
  DecisionInput input = PaperInput(rng() % 2 ? "deepseek-v2-lite" : "deepseek-v3", rng() % 70000);
  input.tokens = rng() % (1 << 20);
  input.selected = rng() % 3 == 0 ? rng() % 4096 : 0;
  input.steps = 1 + rng() % 1000;
  input.agents = 1 + rng() % 64;
  input.f32_partials = rng() % 2;
  input.canonical = rng() % 4 == 0;
  input.cache_room_tokens = rng() % (1 << 21);
  if (rng() % 3 == 0) input.eviction = Eviction{rng() % (1 << 21), AnyScale(rng)};
  input.candidates.clear();
  const uint32_t groups = 1 + rng() % 4;
  for (uint32_t group = 0; group < groups; ++group) {
    for (uint32_t replica = 0; replica <= rng() % 3; ++replica) {
      input.candidates.push_back(RandomCandidate(rng));
      input.candidates.back().group = group;
      input.candidates.back().token_share = 1.0 / groups;
    }
  }
  input.here.merge_per_row_us = AnyScale(rng) * 1e-3;
  input.here.splice_per_token_layer_us = AnyScale(rng) * 1e-3;
  input.here.splice_per_layer_us = AnyScale(rng);
  input.here.attend_per_row_token_us = AnyScale(rng) * 1e-5;
  if (rng() % 2) input.here.attend_floor = {AnyScale(rng) * 1e-5, double(rng() % 101) / 100};
  if (rng() % 2) input.here.prefill_per_token_layer_us = AnyScale(rng);
  return input;
}

}  // namespace ckv::test
