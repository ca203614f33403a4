// Decides between route, fetch and recompute (`local`): three closed-form costs, their argmin, and
// every term.
//
//   per layer:   T_route = max over holders (T_probe + M_q (q + p) / BW + T_compute + T_queue)
//                          + T_shared + T_merge(holders)
//   per chunk:   T_fetch = sum over holders T_transfer + T_splice(L, tokens) + T_evict
//   per chunk:   T_local = tokens x L x c + T_evict
//   over S steps of A agents that share the chunk here:
//                route  S x A x L x T_route
//                fetch  T_fetch + S x A x L x T_attend_here
//                local  T_local + S x A x L x T_attend_here
//
// The formulas are for one frame per holder and for dense queries. Decide also counts frames. Under
// selection, it fetches the chosen rows again in every round.
//
//   S, A, L, M_q    steps, agents, geometry.layers, query_rows
//   q, p, b_kv      geometry.query_row_bytes(), .partial_row_bytes(f32_partials), .row_bytes()
//   T_shared        how much longer the holders of a host take than the slowest, because they share
//                   its processors; 0 if they have enough processors
//   T_merge         holders x M_q x here.merge_per_row_us; each group of candidates is one holder
//   T_splice        L x (here.splice_per_layer_us + tokens x here.splice_per_token_layer_us);
//                   0 if `canonical` or under selection
//   T_attend_here   here.attend for M_q rows over the tokens; if that curve is empty,
//                   tokens x max(M_q x here.attend_per_row_token_us, here.attend_floor)
//   c               here.prefill_per_token_layer_us
//   tokens          under selection, T_attend_here and T_evict count at most `selected` of them.
//                   T_transfer, T_local and T_evict exclude rows that are already cached locally
//   T_evict         (tokens - cache_room_tokens) x eviction->per_token_us, if they do not fit
//
// Sources: arXiv:2606.01502 sections 4 and 5. client/cost/cost_model.h has the terms of one
// holder. A step is L dependent round trips, because a layer's query needs the previous layer's
// merge. M_q counts (token, head) rows: 16 for one token of V2-Lite, 128 of V3.
//
// Holders answer a query in parallel, so the slowest of them sets the time of a route. Holders on a
// host with fewer processors take turns. Rows fetched from several holders arrive one after
// another, because they share the requester's own link (section 5.4: a gather grows with its
// holders).
//
// Requester::Explain (client/requester.h) fills the input from measurements. To fill it yourself,
// you need:
//   geometry, tokens, query_rows, and steps and agents if they are not 1
//   candidates            one Candidate (client/cost/cost_model.h) per holder and group. Those of
//                         a group are adjacent. The token_share of each is the group's part of the
//                         tokens, so the groups' shares add up to 1
//   here                  from CalibrateHere (client/paged/calibrate_here.h) or from a profile
//                         (client/cost/profile_file.h)
//   cache_room_tokens     if 0 and `eviction` is unset, fetch and local are offered only if all
//                         rows are already cached locally
//
// tests/consumer/predicate_example.cc is a complete program to copy: it fills the input and
// decides. client/cost/what_if.h reports which changes would flip a decision.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/cost/cost_model.h"
#include "client/cost/profile.h"
#include "proto/geometry.h"

namespace ckv {

enum class Primitive : uint8_t { kRoute = 0, kFetch = 1, kLocal = 2 };  // ties break in this order
inline constexpr size_t kPrimitiveCount = 3;
std::string_view PrimitiveName(Primitive primitive);

// Allows rows in the local cache to be evicted to make room.
struct Eviction {
  uint64_t capacity_tokens = 0;  // the whole cache; more tokens than this never fit
  double per_token_us = 0;       // cost per evicted token of recomputing or fetching it again
};

// The question and the candidates. Reuse one object: its vector keeps its memory.
struct DecisionInput {
  Geometry geometry;
  uint64_t tokens = 0;  // tokens of all chunks together
  // The part of `tokens` whose rows are cached locally: neither a fetch nor local moves or
  // recomputes them.
  uint64_t cached_tokens = 0;
  uint64_t selected = 0;    // rows a query attends under selection; 0 if dense
  uint32_t query_rows = 0;  // M_q of one layer
  uint32_t steps = 1;       // decode steps expected against the chunks
  uint32_t agents = 1;      // agents that share the chunks here
  // Partials are sent as f32 instead of bf16.
  bool f32_partials = false;
  // The chunks are at the positions they were made for, so a fetch rotates nothing.
  bool canonical = false;
  // Free tokens in the local cache. 0 means none.
  uint64_t cache_room_tokens = 0;
  // If unset, fetch and local are not offered if they need more than cache_room_tokens.
  std::optional<Eviction> eviction;
  // Groups of replicas; the groups are queried in parallel. If empty, route and fetch are not
  // offered.
  std::vector<Candidate> candidates;
  // The lane shape that determines how calls are cut into frames: the requester's own
  // (RequesterOptions::lane_shape). If unset, a call of any length is one message, as in the
  // paper's measurements.
  std::optional<LaneShape> lane_shape = LaneShape();
  // Describes a holder that is not registered at the directory, for people. Unless empty, route and
  // fetch are not offered.
  std::string gone_holder;
  // Constants of this requester: merging, splicing, attending and prefill.
  RequesterConstants here;
};

// One primitive's cost in microseconds over all steps, agents and layers. Unused terms are 0.
struct CostBreakdown {
  bool offered = false;
  const char* why_not = "";  // a constant text if not offered
  // For a route, probe, transfer, compute and queue are those of the slowest holder.
  double probe_us = 0;
  double transfer_us = 0;
  double compute_us = 0;  // at the holder for route, here for fetch and local
  double queue_us = 0;
  // How much longer the holders of a host take than the slowest holder, because they share
  // processors.
  double shared_us = 0;
  double merge_us = 0;
  double splice_us = 0;
  double prefill_us = 0;
  double evict_us = 0;
  double total_us = 0;
  // Index in input.candidates. For a route, the slowest holder, which the terms above describe. For
  // a fetch, the holder that is the most expensive to fetch from.
  uint32_t candidate = 0;
};

struct Decision {
  std::optional<Primitive> choice;  // unset if no primitive is offered
  // The second cheapest. Unset if fewer than two primitives are offered.
  std::optional<Primitive> runner_up;
  std::array<CostBreakdown, kPrimitiveCount> costs;
  uint64_t route_bytes = 0;  // q + p of one layer and step, to and from one holder
  uint64_t fetch_bytes = 0;  // one layer of the chunks; under selection, of the selected rows

  const CostBreakdown& cost(Primitive primitive) const { return costs[size_t(primitive)]; }
};

// Returns the costs of all primitives and the cheapest one offered. Under selection, a fetch moves
// only the chosen rows, again for every step and layer. Nothing is spliced, and local is not
// offered. A query of several tokens may choose more rows than `selected`; its fetch then costs
// more than the result shows. Takes under 1 us for 8 candidates and does not allocate.
Decision Decide(const DecisionInput& input) noexcept;

struct RankedCandidate {
  uint32_t index = 0;  // index in input.candidates
  RoundCost cost;      // one round of a route, or one fetch
};

// Ranks the candidates for route or fetch. Groups keep their order. Within a group, the cheapest is
// first, unreachable ones are last, and ties keep the given order. Writes one entry per candidate
// to `ranked`, at most ranked.size(), and returns the number written. Does not allocate.
size_t RankCandidates(const DecisionInput& input, Primitive primitive,
                      std::span<RankedCandidate> ranked) noexcept;

}  // namespace ckv
