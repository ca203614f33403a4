// The cost model: what asking one holder takes, term by term.
//
//   route, a round   T_probe + M_q (q + p) / BW + T_compute(M_q x rows x requesters) + T_queue
//   pull, a chunk    tokens x L x b_kv / BW + splice_share x T_splice
//   pull, a round    T_probe + k x b_kv / BW          of a selection, which changes every step
//   BW               min(measured, B (1 - c)) / (1 + n)
//
// A call of more rows than a lane's slot takes is cut into F frames (FrameRowsOf), and while one is
// computed the next is on its way and the one before on its way back. With u = f q / BW,
// d = f p / BW and c = T_compute of one frame of f rows, and U, D and C those of all M_q rows, a
// round has three stages, each of which takes the frames one after another:
//
//   out     s U              the wire towards the holder
//   holder  C + (1 - s)(U + D)   its processor: the kernel, and what it copies itself
//   back    s D              the wire from it; links are full duplex, so the two do not share one
//
//   route, a round   T_probe + T_queue + the longest stage of all rows + the two others of one
//   frame
//
// which is the usual fill + F x max of a pipeline: the first frame passes the stages before the
// longest, the last one those behind it. s is the share of a transfer that the wire does by itself
// (Candidate::wire_share, measured): 0 over memory and over loopback, where both ends' processors
// copy every byte, near 1 on a slow link. Where s = 0 or F = 1 this is the first formula, exactly.
//
// Sources: arXiv:2606.01502 sections 4.2 (route, pull), 5.4 (selection), 6.3 (requesters that share
// a holder); arXiv:2606.03910 equation 4 (B, c and n of the network). Frames are ours
// (client/attend_plan.h): the paper sends one message. A round is one layer of one step of one
// agent: a layer's query needs the previous layer's merge.
//
// Pure and total: constants come from measurements and peers, so a negative or NaN one counts as 0,
// and every cost is a number or infinity. No allocation. Microseconds, bytes per second.

#pragma once

#include <cstdint>
#include <optional>

#include "client/profile.h"
#include "proto/geometry.h"
#include "transport/fabric.h"

namespace ckv {

// What an operator tells of the way to a holder (client/network_oracle.h).
struct PathCost {
  uint32_t tier = 0;                 // 0: the same node, rising with distance
  double bandwidth_bytes_per_s = 0;  // B of the tier; 0: not told
  double latency_us = 0;             // one way
  double congestion = 0;             // c: the share of B that others use, [0, 1)
  double in_flight = 0;              // n: this requester's own transfers on that tier
};

// The counter n stops here: a network card is saturated by so many flows, and more would only drive
// an estimate away that is not used (arXiv:2606.03910 section V-C).
inline constexpr double kInFlightMax = 16;

// B (1 - c) / (1 + n), bytes per second. c is taken within [0, 1], n within [0, kInFlightMax].
double EffectiveBandwidth(const PathCost& path) noexcept;

// By how much telemetry of congestion may err before it ranks the slower of two tiers first:
// (B (1 - c) - B' (1 - c')) / (B + B'). Negative: it may not err at all, for `slower` has more
// left. Source: arXiv:2606.03910 equation 9.
double StalenessTolerance(const PathCost& faster, const PathCost& slower) noexcept;

// A holder that could answer for some of a call's chunks.
struct Candidate {
  // Candidates of one group are replicas of the same chunks, of which one is asked; they stand next
  // to each other. Groups are asked side by side.
  uint32_t group = 0;
  double token_share = 1;  // of the call's tokens: those of its group's chunks
  // Measured, of the lane to it. Absent: there is none yet, and `path` stands in for it, with twice
  // its latency as T_probe; with neither the holder cannot be reached.
  std::optional<FabricConstants> fabric;
  std::optional<PathCost> path;
  // s, [0, 1], of `fabric`: measured by LaneCalibrator; 0 where nobody did, which never promises
  // that anything overlaps.
  double wire_share = 0;
  // Of the splice of rows fetched from it, what the transfer does not hide, [0, 1]: measured by
  // LaneCalibrator. 1 where nobody did: T_fetch = T_pull + T_splice.
  double splice_share = 1;
  ComputeConstants compute;
  double in_flight = 0;       // this requester's requests to it: they share the bandwidth
  double concurrent = 0;      // requests like this one that its kernel takes along: they share it
  double queue_us = 0;        // what a request waits there, as its last reply told
  double queue_requests = 0;  // waiting ahead, where only their number is known: each as long as
                              // this one
};

// How many query rows of a dense call over one chunk go into one frame of a lane, as
// AttendPlan::Cut has it: up to `whole` are one frame, more are cut into frames of `block`, which
// are whole tiles of the kernel, and what is left. The lists of a selection, and more chunks, take
// room too: frames are then shorter, and there is more to overlap than is counted on.
struct FrameRows {
  uint32_t whole = 0;  // 0: frames of any length
  uint32_t block = 0;
};
FrameRows FrameRowsOf(const Geometry& geometry, bool f32_partials, const LaneShape& shape) noexcept;

// What is asked of a holder, and how often.
struct Workload {
  double rounds = 0;    // S x A x L
  double rows = 0;      // M_q
  double tokens = 0;    // of all chunks
  double attended = 0;  // of them; fewer under selection
  double layers = 0;
  double row_bytes = 0;       // b_kv, one layer
  double exchange_bytes = 0;  // q + p
  double query_bytes = 0;     // q
  double splice_us = 0;       // of all tokens and layers; 0 where nothing is rotated
  FrameRows frame;
  bool selected = false;
};

// Of one candidate and round. Of a pipeline, the longest stage counts as what it is, and of the
// others what does not hide behind it.
struct RoundCost {
  const char* why_not = nullptr;  // a fixed text; null: it can be asked
  double probe_us = 0;
  double transfer_us = 0;
  double compute_us = 0;
  double queue_us = 0;
  double splice_us = 0;
  double total_us = 0;
};

// A route's round trip.
RoundCost RouteRound(const Workload& work, const Candidate& candidate) noexcept;
// What a fetch takes from it: over all layers once, or every round where `work.selected`; probe,
// transfer, and what that does not hide of the splice.
RoundCost PullFrom(const Workload& work, const Candidate& candidate) noexcept;

// value > 0 ? value : 0, so that NaN is 0 too.
inline double CleanCost(double value) noexcept { return value > 0 ? value : 0; }
// 0 x infinity is 0 here: nothing to move costs nothing, however slow the link.
inline double TimesCost(double a, double b) noexcept { return a == 0 || b == 0 ? 0 : a * b; }

}  // namespace ckv
