// Decides with numbers typed in here: one holder, one chunk of 2048 tokens, 1 and 20 decode steps.
// Exits with 0 if the predicate chooses and costs what client/cost/predicate.h says.

#include <cmath>
#include <cstdio>

#include "client/cost/predicate.h"

int main() {
  ckv::DecisionInput input;
  input.geometry.layers = 27;
  input.geometry.d_qk = 576;
  input.geometry.d_v = 512;
  input.tokens = input.cache_room_tokens = 2048;
  input.query_rows = 16;
  ckv::Candidate& holder = input.candidates.emplace_back();
  holder.fabric = {.t_probe_us = 10, .bandwidth_bytes_per_s = 1e9};
  holder.compute = {.base_us = 5, .per_row_token_us = 0.01};
  input.here.merge_per_row_us = 0.5;
  input.here.splice_per_token_layer_us = 0.1;
  input.here.attend_per_row_token_us = 0.005;

  const double exchange_us = 16 * (576 * 2 + 512 * 2 + 8) / 1e3;  // 1e9 B/s is 1e3 B/us
  const double route_us = 27 * (10 + exchange_us + 5 + 16 * 2048 * 0.01 + 16 * 0.5);
  const double fetch_us = 2048 * 27 * (576 * 2 / 1e3 + 0.1), here_us = 27 * 16 * 2048 * 0.005;
  bool as_expected = true;
  for (const uint32_t steps : {1u, 20u}) {
    input.steps = steps;
    const ckv::Decision decision = ckv::Decide(input);
    const double route = decision.costs[0].total_us, fetch = decision.costs[1].total_us;
    const ckv::Primitive expected = steps == 1 ? ckv::Primitive::kRoute : ckv::Primitive::kFetch;
    std::printf("%u steps: %s (route %.0f us, fetch %.0f us; local: %s)\n", steps,
                decision.choice ? ckv::PrimitiveName(*decision.choice).data() : "nothing", route,
                fetch, decision.costs[2].why_not);
    as_expected &= std::abs(route / (steps * route_us) - 1) < 1e-9;
    as_expected &= std::abs(fetch / (fetch_us + steps * here_us) - 1) < 1e-9;
    as_expected &= decision.choice == expected;
  }
  return as_expected ? 0 : 1;
}
