// The decision: three closed-form costs and their argmin, with every term kept for the explanation.
//
//   per layer:   T_route = T_probe + M_q (q + p) / BW + T_compute(M_q, tokens) + T_merge
//   per chunk:   T_fetch = tokens x L x b_kv / BW + T_splice(L, tokens)
//   per chunk:   T_local = tokens x L x c
//   over S steps of A agents that share the chunk here:
//                route  S x A x L x T_route
//                fetch  T_fetch + S x A x L x T_attend_here
//                local  T_local + S x A x L x T_attend_here
//
// Source: arXiv:2606.01502 sections 4 and 5. A step is L dependent round trips, because a layer's
// query needs the previous layer's merge, and M_q counts (token, head) rows: 16 for one token of
// V2-Lite, 128 of V3. Pure, total, no allocation but the explanation's text; under 1 us a
// candidate.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client/profile.h"
#include "proto/geometry.h"

namespace ckv {

enum class Primitive : uint8_t { kRoute = 0, kFetch = 1, kLocal = 2 };  // ties break in this order
inline constexpr size_t kPrimitiveCount = 3;
std::string_view PrimitiveName(Primitive primitive);

// What is asked, and of what.
struct DecisionInput {
  Geometry geometry;
  uint64_t tokens = 0;      // of the chunk (or of all of them on this holder)
  uint64_t selected = 0;    // rows a query attends under selection; 0: dense
  uint32_t query_rows = 0;  // M_q of one layer
  uint32_t steps = 1;       // decode steps expected against the chunk
  uint32_t agents = 1;      // that share it here
  bool f32_partials = false;
  uint64_t cache_room_tokens = 0;  // free in the local cache; 0: fetch and local are not offered
  std::optional<FabricConstants> fabric;  // absent: no holder reachable, so no route and no fetch
  std::string gone_holder;  // for people: the one that is not a member, if that is why
  ComputeConstants holder_compute;
  RequesterConstants here;
  double in_flight = 0;  // requests in flight on that fabric: they divide its bandwidth
  double queue_us = 0;   // the holder's queue, as its last reply told
};

// Terms in microseconds over all steps, agents and layers; a term a primitive lacks is 0.
struct CostBreakdown {
  bool offered = false;
  const char* why_not = "";  // a fixed text, if not offered
  double probe_us = 0;
  double transfer_us = 0;
  double compute_us = 0;  // at the holder for route, here for fetch and local
  double queue_us = 0;
  double merge_us = 0;
  double splice_us = 0;
  double prefill_us = 0;
  double total_us = 0;
};

struct Decision {
  std::optional<Primitive> choice;  // nothing is offered: nothing
  std::optional<Primitive> runner_up;
  std::array<CostBreakdown, kPrimitiveCount> costs;
  uint64_t route_bytes = 0;  // q + p over one layer and step
  uint64_t fetch_bytes = 0;  // one layer of the chunk
};

// Under selection a fetch would move only the chosen rows, every step and layer anew, and nothing
// is spliced; local is not offered.
Decision Decide(const DecisionInput& input) noexcept;

// The number of steps from which on fetch beats route, if any below 2^20; the query rows at which
// their bytes are equal (1080 at 2048 DeepSeek tokens).
std::optional<uint32_t> BreakEvenSteps(const DecisionInput& input) noexcept;
uint64_t BreakEvenQueryRows(const Geometry& geometry, uint64_t tokens, bool f32_partials) noexcept;

// "route: 1.9 ms against fetch 5.6 ms; fetch from 6 steps on".
std::string DescribeDecision(const Decision& decision, const DecisionInput& input);

}  // namespace ckv
