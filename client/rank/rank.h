// Ranks the requesters (decode instances) that could take a request.
//
// Source: arXiv:2606.03910 (NetKV), Algorithm 1 and equations 2 to 7:
//
//   s_eff      = s * (1 - lambda / l)             bytes of KV cache that must be brought there
//   B_eff      = B * (1 - c) / (1 + n)            of the path: tier, congestion, own transfers
//   T_transfer = s_eff / B_eff + L
//   T_queue    = max(0, q - (b_max - b)) * t(b)   t(b) = base + per_request * b: an iteration
//   T_decode   = t(b + 1)
//
// Pure functions: no I/O, no locks, and no allocation but the result's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/cost/cost_model.h"

namespace ckv {

struct RankRequest {
  double tokens = 0;       // l, of the whole prompt; above 0
  double cache_bytes = 0;  // s, the KV cache of all its tokens
  // Bytes that stay free on an instance, for activations and one more step.
  double reserve_bytes = 0;
};

struct RankCandidate {
  double matched_tokens = 0;  // lambda: tokens of the prompt whose rows are there
  double free_bytes = 0;      // m
  double queued = 0;          // q, requests that wait
  double batch = 0;           // b, requests that are decoded now
  double batch_max = 0;       // b_max
  // t(b). Rank takes both as they are; AssumeIterationTimes takes two zeros as unknown.
  double iteration_base_us = 0, iteration_request_us = 0;
  // From where the prompt's rows are. `in_flight` counts the caller's own transfers on that tier. A
  // bandwidth of 0 is unknown: the transfer then costs nothing, as if all candidates were near.
  PathCost path;
};

// One candidate's cost, with every term.
struct CandidateRank {
  bool has_room = false;             // without room it is not chosen
  double missing_bytes = 0;          // s_eff
  double bandwidth_bytes_per_s = 0;  // B_eff; 0 if unknown
  double transfer_us = 0, queue_us = 0, decode_us = 0;
  double total_us = 0;
};

struct Ranking {
  std::vector<CandidateRank> candidates;  // in the order of the input
  // The index of the cheapest with room; ties go to the lower index. Nothing if none has room.
  std::optional<size_t> best;
};

// Gives each candidate whose iteration time is unknown the mean of the known ones, each number by
// itself. An engine that has just started cannot report one yet, and must not count as the fastest.
// If none is known, all stay at 0. The directory calls this before Rank.
void AssumeIterationTimes(std::span<RankCandidate> candidates);

// Takes O(candidates). `out` keeps its memory from call to call.
void Rank(const RankRequest& request, std::span<const RankCandidate> candidates, Ranking& out);

// How far each tier's congestion may be off, in either direction, before the chosen candidate is no
// longer the cheapest. The choice tolerates an oracle that is stale by no more than that. Infinity
// if no error of congestion changes it, because the others have no transfer, or there is no other.
// 0 for a tie. Needs a `best`.
double ToleratedCongestionError(std::span<const RankCandidate> candidates, const Ranking& ranking);

// Proposition 2: the same for the order of two tiers alone, of bandwidths B and congestions c.
// `fast` has the larger B * (1 - c). Negative if it has not.
//
//   epsilon < (B_f (1 - c_f) - B_s (1 - c_s)) / (B_f + B_s)                          (9)
double ToleratedTierError(const PathCost& fast, const PathCost& slow);

// Proposition 1: by how much a near candidate with fewer cached tokens is ahead of a far one, as
// the difference of both sides of
//
//   1 - rho_1 < k (1 - c_1) / (1 - c_3) (1 - rho_2) + B_1 (1 - c_1) / s (T_queue_2 - T_queue_1) (8)
//
// with k = B_1 / B_3. Positive: a scheduler that looks at caches alone chooses the slower one.
struct NearAgainstFar {
  double near_hit = 0, far_hit = 0;  // rho: shares of the prompt that are cached
  PathCost near, far;
  double near_queue_us = 0, far_queue_us = 0;
  double cache_bytes = 0;  // s
};
double LeadOfNear(const NearAgainstFar& input);

}  // namespace ckv
