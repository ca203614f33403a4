// The cost model: the time that one holder takes for a request, term by term.
//
//   route, a round   T_probe + M_q (q + p) / BW + T_compute(M_q x rows x requesters) + T_queue
//   fetch, a chunk   tokens x L x b_kv / BW + splice_share x T_splice
//   fetch, a round   T_probe + k x b_kv / BW          for a selection, which changes every step
//   BW               min(measured, B (1 - c)) / (1 + n)
//
// T_compute grows with the query rows of all requesters. It never falls below the floor, the time
// to read the tokens' rows from memory, which requesters share (client/cost/compute_curve.h).
//
// A call with more rows than a lane's slot holds is cut into F frames (FrameRowsOf). While one
// frame is computed, the next is on its way out and the previous one on its way back. For one frame
// of f rows, let u = f q / BW, d = f p / BW and c = T_compute. Let U, D and C be the same for all
// M_q rows. A round then has three stages, and each processes the frames one after another:
//
//   out     s U              the wire towards the holder
//   holder  C + (1 - s)(U + D)   its processor: the kernel, and the bytes it copies itself
//   back    s D              the wire from it; links are full duplex, so the two do not share one
//
//   route, a round   T_probe + T_queue + longest stage of all rows + other two stages of one frame
//
// This is the usual fill + F x max of a pipeline. The first frame passes the stages before the
// longest one, the last frame the stages after it. s is the share of a transfer that the wire does
// by itself (Candidate::wire_share, measured). It is 0 over memory and over loopback, where both
// ends' processors copy every byte, and near 1 on a slow link. If s = 0 or F = 1, this equals the
// first formula.
//
// A rate limiter is a token bucket, as of tc-tbf(8) and of virtual machines' network cards. After a
// rest, it lets b bytes of a direction pass at once (Candidate::burst_bytes, measured):
//
//   one direction    max(bytes - b, 0) / BW
//   rounds           follow each other, so none is faster than the longer direction's bytes / BW
//
// Without b, the model of a link of 1 Gbit/s behind a bucket of 16 KB was 43 to 58 % too high. That
// was at 16 query rows. A link whose rate is that of its wire has no b.
//
// A kernel that reads more rows than a cache holds leaves the exchanged bytes in no cache, and
// callers that waited long are woken (ColdExchange). It is part of the transfer:
//
//   share       1 - exp(-(tokens x b_kv / cache)^2)
//   transfer    + share x (T_cold + what the round takes longer at min(BW, BW_cold))
//
// Without it, calls of 512 query rows and more over 2048 tokens took 7 to 20 % longer than the
// model. LaneCalibrator measures it.
//
// Holders of one host share its processors (HostLoads). A call to n holders of a host with P
// processors takes as long as ceil(n / P) of them one after another.
//
// Sources: arXiv:2606.01502 sections 4.2 (route, and fetch, which it calls pull), 5.4 (selection)
// and 6.3 (requesters that share a holder). B, c and n of the network are from arXiv:2606.03910
// equation 4. Frames are ours (client/plan/attend_plan.h): the paper sends one message. A round is
// one layer of one step of one agent, because a layer's query needs the previous layer's merge.
//
// All functions are pure and total. Constants are measured or received from peers, so a negative or
// NaN one counts as 0. Every cost is a number or infinity. Nothing allocates. Units are
// microseconds and bytes per second.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/cost/profile.h"
#include "proto/geometry.h"
#include "transport/fabric.h"

namespace ckv {

// The path to a holder, as the operator describes it (client/cost/network_oracle.h).
struct PathCost {
  uint32_t tier = 0;                 // 0 is the same node; rises with distance
  double bandwidth_bytes_per_s = 0;  // B of the tier; 0 if unknown
  double latency_us = 0;             // one way
  double congestion = 0;             // c: the share of B used by others, [0, 1)
  double in_flight = 0;              // n: this requester's own transfers on that tier
};

// Upper limit of the counter n, because this many flows saturate a network card. A larger value
// would only distort an estimate that is not used (arXiv:2606.03910 section V-C).
inline constexpr double kInFlightMax = 16;

// The host and processors on which a holder computes. Holders of one host share its processors:
// three of them on two processors do not compute in parallel.
struct HostSeat {
  // Identifies the host. 0 means unknown: the holder is assumed to have its processors to itself. 1
  // is the requester's own host.
  uint16_t host = 0;
  uint16_t threads = 1;     // threads of its kernels
  uint32_t processors = 0;  // processors that the holder may use; 0 if unknown

  bool known() const { return host != 0 && processors != 0; }
  friend bool operator==(const HostSeat&, const HostSeat&) = default;
};
inline constexpr uint16_t kThisHost = 1;
inline constexpr size_t kHostCountMax = 16;  // hosts that are distinguished

// The time that the holders of each host take for a round that all of them begin at once. With n
// holders of W processor time each and P processors, each processor serves ceil(n / P) of them one
// after another. That takes ceil(n / P) x W.
class HostLoads {
 public:
  // Adds a holder whose round keeps processors of its host busy for `busy_us` (BusyUs).
  void Add(const HostSeat& seat, double busy_us) noexcept;
  // Returns the time of the whole host of `seat`; 0 if the host is unknown.
  double Us(const HostSeat& seat) const noexcept;
  // Returns the longest time of all hosts.
  double LongestUs() const noexcept;

 private:
  struct Load {
    double busy_us = 0, holders = 0, processors = 0;
    double Us() const noexcept;
  };
  std::array<Load, kHostCountMax + 1> loads_{};
  uint16_t hosts_ = 0;  // loads_ beyond this are empty
};

// The time of one attend: its holders compute in parallel, while its caller attends the rows that
// it has locally. All that compute on one host share its processors.
class CallTime {
 public:
  // `here_us` is the time in which the caller attends its local rows, on one thread.
  explicit CallTime(double here_us) noexcept : here_us_(here_us) {}
  // Adds a queried holder: the time of its round, and how long that keeps processors of its host
  // busy.
  void Add(const HostSeat& seat, double round_us, double busy_us) noexcept;
  double Us() const noexcept;

 private:
  const double here_us_;
  double slowest_us_ = 0;
  uint32_t processors_here_ = 0;  // 0 if no holder is on the caller's host
  HostLoads loads_;
};

// A holder that can serve some of a call's chunks.
struct Candidate {
  // The group of the candidate. Candidates of one group are replicas of the same chunks: they are
  // adjacent, and one of them is used. Groups are queried in parallel.
  uint32_t group = 0;
  double token_share = 1;  // the group's share of the call's tokens, [0, 1]
  // Measured constants of the lane to the holder. If unset, nothing was measured yet, and `path` is
  // used instead, with twice its latency as T_probe. If `path` is also unset, the holder cannot be
  // reached.
  std::optional<FabricConstants> fabric;
  std::optional<PathCost> path;
  // s, [0, 1], of `fabric`, as measured by LaneCalibrator. Without a measurement it is 0, which
  // never assumes any overlap.
  double wire_share = 0;
  // b of `fabric`, as measured by LaneCalibrator. Without a measurement it is 0.
  double burst_bytes = 0;
  // As measured by LaneCalibrator. Without a measurement it adds nothing.
  ColdExchange cold_exchange = {};
  // The share of the splice that the transfer from this holder does not hide, [0, 1].
  // LaneCalibrator measures it. Without a measurement it is 1: T_fetch = T_transfer + T_splice.
  double splice_share = 1;
  ComputeConstants compute;
  // This requester's other requests to the holder, which share the bandwidth.
  double in_flight = 0;
  // Requests like this one that the holder's kernel computes together with it, sharing the kernel.
  double concurrent = 0;
  // How long a request waits at the holder, according to the holder's last reply.
  double queue_us = 0;
  // Requests waiting ahead, if only their number is known. Each is assumed to take as long as this
  // one.
  double queue_requests = 0;
  HostSeat seat = {};
};

// How many query rows of a dense call over one chunk fit into one frame of a lane, as
// AttendPlan::Cut cuts them. Up to `whole` rows fit into one frame. More rows are cut into frames
// of `block` rows, which are whole kernel tiles, and a remainder. Selection lists and additional
// chunks also take room. Frames are then shorter, and more overlaps than is assumed here.
struct FrameRows {
  uint32_t whole = 0;  // 0 if a frame may have any length
  uint32_t block = 0;
};
FrameRows FrameRowsOf(const Geometry& geometry, bool f32_partials, const LaneShape& shape) noexcept;

// The work requested from a holder, and how often.
struct Workload {
  double rounds = 0;     // S x A x L
  double rows = 0;       // M_q
  double tokens = 0;     // tokens of all chunks
  double far_share = 1;  // the share of them that a fetch moves; the rest is cached locally
  double attended = 0;   // tokens attended; fewer under selection
  double layers = 0;
  double row_bytes = 0;       // b_kv, one layer
  double exchange_bytes = 0;  // q + p
  double query_bytes = 0;     // q
  double splice_us = 0;       // splice of all tokens and layers; 0 if nothing is rotated
  FrameRows frame;
  bool selected = false;
};

// The cost of one round at one candidate. In a pipeline, the longest stage counts in full. The
// other stages count only as far as they are not hidden behind it.
struct RoundCost {
  const char* why_not = nullptr;  // a static text; null if the holder can be used
  double probe_us = 0;
  double transfer_us = 0;
  double compute_us = 0;
  double queue_us = 0;
  double splice_us = 0;
  double total_us = 0;
  // The part of total_us in which processors of the holder's host are busy.
  double busy_us = 0;
};

// Returns how long processors of the seat's host are busy in a round: the kernel's time, on each of
// its threads. On the requester's own host, adds the exchange, whose bytes processors copy.
double BusyUs(const HostSeat& seat, double compute_us, double exchange_us) noexcept;

// Returns the cost of one round trip of a route.
RoundCost RouteRound(const Workload& work, const Candidate& candidate) noexcept;
// Returns the cost of a fetch from the candidate: its probe, its transfer, and the rest of the
// splice that the transfer does not hide. Covers all layers once, or one round if `work.selected`.
RoundCost FetchRound(const Workload& work, const Candidate& candidate) noexcept;

// Returns value > 0 ? value : 0, so NaN also becomes 0.
inline double CleanCost(double value) noexcept { return value > 0 ? value : 0; }
// Returns a x b, with 0 x infinity = 0: moving nothing costs nothing, however slow the link.
inline double TimesCost(double a, double b) noexcept { return a == 0 || b == 0 ? 0 : a * b; }

}  // namespace ckv
