// The decision: three closed-form costs and their argmin, with every term kept for the explanation.
//
//   per layer:   T_route = max over holders (T_probe + M_q (q + p) / BW + T_compute + T_queue)
//                          + T_merge(holders)
//   per chunk:   T_fetch = sum over holders T_pull + T_splice(L, tokens) + T_evict
//   per chunk:   T_local = tokens x L x c + T_evict
//   over S steps of A agents that share the chunk here:
//                route  S x A x L x T_route
//                fetch  T_fetch + S x A x L x T_attend_here
//                local  T_local + S x A x L x T_attend_here
//
// Sources: arXiv:2606.01502 sections 4 and 5; client/cost_model.h has the terms of one holder. A
// step is L dependent round trips, because a layer's query needs the previous layer's merge, and
// M_q counts (token, head) rows: 16 for one token of V2-Lite, 128 of V3. Holders answer a query
// side by side, so the slowest of them tells its time; rows of several come one after another,
// since they share the requester's own link (section 5.4: a gather grows with its holders).
//
// Requester::Explain (client/requester.h) fills the input from what a requester measured and asks.
// To fill it yourself: a Candidate (client/cost_model.h) a holder and group, `here` of
// CalibrateHere (client/calibrate.h) or of a profile (client/profile_file.h), and
// cache_room_tokens, without which neither fetch nor local is offered. What would change a decision
// is in client/what_if.h.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/cost_model.h"
#include "client/profile.h"
#include "proto/geometry.h"

namespace ckv {

enum class Primitive : uint8_t { kRoute = 0, kFetch = 1, kLocal = 2 };  // ties break in this order
inline constexpr size_t kPrimitiveCount = 3;
std::string_view PrimitiveName(Primitive primitive);

// Rows that are in the local cache and would have to go.
struct Eviction {
  uint64_t capacity_tokens = 0;  // of the whole cache: what does not fit into it never will
  double per_token_us = 0;       // of what is thrown out: making it again, or pulling it again
};

// What is asked, and of whom. Keep one and fill it anew: its vector keeps its memory.
struct DecisionInput {
  Geometry geometry;
  uint64_t tokens = 0;      // of all chunks together
  uint64_t selected = 0;    // rows a query attends under selection; 0: dense
  uint32_t query_rows = 0;  // M_q of one layer
  uint32_t steps = 1;       // decode steps expected against the chunks
  uint32_t agents = 1;      // that share them here
  bool f32_partials = false;
  bool canonical = false;          // the chunks stand where they were made: a fetch rotates nothing
  uint64_t cache_room_tokens = 0;  // free in the local cache; 0 is none at all
  std::optional<Eviction> eviction;  // absent: what does not fit is not offered
  // Groups of replicas, side by side. None: no route and no fetch.
  std::vector<Candidate> candidates;
  // What calls are cut for: the requester's (RequesterOptions::lane_shape). Absent: one message,
  // however long, as in the paper's measurements.
  std::optional<LaneShape> lane_shape = LaneShape();
  std::string gone_holder;  // for people: the one that is not a member, if that is why
  RequesterConstants here;
};

// Terms in microseconds over all steps, agents and layers; a term a primitive lacks is 0.
struct CostBreakdown {
  bool offered = false;
  const char* why_not = "";  // a fixed text, if not offered
  double probe_us = 0;       // of a route the slowest holder's: it, transfer, compute and queue
  double transfer_us = 0;
  double compute_us = 0;  // at the holder for route, here for fetch and local
  double queue_us = 0;
  double merge_us = 0;
  double splice_us = 0;
  double prefill_us = 0;
  double evict_us = 0;
  double total_us = 0;
  uint32_t candidate = 0;  // that the terms are of (route), or the dearest to pull from (fetch)
};

struct Decision {
  std::optional<Primitive> choice;  // nothing is offered: nothing
  std::optional<Primitive> runner_up;
  std::array<CostBreakdown, kPrimitiveCount> costs;
  uint64_t route_bytes = 0;  // q + p over one layer and step, to and from each holder
  uint64_t fetch_bytes = 0;  // one layer of the chunks

  const CostBreakdown& cost(Primitive primitive) const { return costs[size_t(primitive)]; }
};

// Under selection a fetch moves only the chosen rows, every step and layer anew, and nothing is
// spliced; local is not offered. A query of several tokens chooses more rows than `selected`: what
// a fetch is charged is then too little, never too much. Under 1 us for 8 candidates; does not
// allocate.
Decision Decide(const DecisionInput& input) noexcept;

struct RankedCandidate {
  uint32_t index = 0;  // in input.candidates
  RoundCost cost;      // of a route's round, or of a pull
};

// Ranks candidates for route or fetch: groups in their order, in each the cheapest first, those
// that cannot be asked last, ties in the order given. Writes one entry a candidate, at most
// ranked.size(), in place; returns how many. Does not allocate.
size_t RankCandidates(const DecisionInput& input, Primitive primitive,
                      std::span<RankedCandidate> ranked) noexcept;

}  // namespace ckv
