// The formulas of cost_model.h. Both entry points take one candidate:
//   RouteRound  the time of one round: probe, transfer, kernel and queue. CandidateRound computes
//               it for one message and for a pipeline of frames, and takes the shorter
//   FetchRound    the time to copy rows: transfer, and the part of the splice that shows
// CallTime and HostLoads add up candidates of one host, whose processors are shared. Inputs may be
// NaN or infinite: CleanCost turns them into 0, so that no result is NaN.

#include "client/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "transport/wire_attend.h"

namespace ckv {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;

// Returns the bandwidth that others leave of the tier, before this requester's own transfers.
double ResidualBandwidth(const PathCost& path) {
  return TimesCost(CleanCost(path.bandwidth_bytes_per_s),
                   1 - std::min(CleanCost(path.congestion), 1.0));
}

// Returns 0 if the bandwidth is not known.
double BytesPerUs(const Candidate& candidate, bool fetch) {
  double bandwidth = 0, in_flight = CleanCost(candidate.in_flight);
  if (candidate.fabric) {
    bandwidth = CleanCost(candidate.fabric->bandwidth_bytes_per_s);
    if (fetch && candidate.fabric->fetch_bandwidth_bytes_per_s > 0)
      bandwidth = candidate.fabric->fetch_bandwidth_bytes_per_s;
  }
  if (candidate.path && candidate.path->bandwidth_bytes_per_s > 0) {
    const double residual = ResidualBandwidth(*candidate.path);
    bandwidth = candidate.fabric ? std::min(bandwidth, residual) : residual;
    in_flight = std::max(in_flight, std::min(CleanCost(candidate.path->in_flight), kInFlightMax));
  }
  return CleanCost(bandwidth / (1 + in_flight)) / kMicrosecondsPerSecond;
}

double ProbeUs(const Candidate& candidate) {
  if (candidate.fabric) return CleanCost(candidate.fabric->t_probe_us);
  return candidate.path ? 2 * CleanCost(candidate.path->latency_us) : 0;
}

double TransferUs(double bytes, double bytes_per_us) {
  if (bytes == 0) return 0;
  if (!(bytes_per_us > 0)) return std::numeric_limits<double>::infinity();
  return CleanCost(bytes / bytes_per_us);  // an infinity over another: no time
}

// The rows of the tokens are read once, for all query rows of all requesters.
double ComputeUs(const ComputeConstants& compute, const Workload& work, double attended,
                 double requesters) {
  const double gather = work.selected && compute.gather_factor > 0 ? compute.gather_factor : 1;
  const double rows = TimesCost(work.rows, requesters);
  const double tokens = TimesCost(attended, gather);
  if (!compute.curve.empty()) return compute.curve.Time(rows, tokens).Us(compute.live);
  const double load = TimesCost(TimesCost(TimesCost(work.rows, attended), requesters), gather);
  const double paid = CleanCost(load - CleanCost(compute.free_row_tokens));
  const double compute_us = TimesCost(paid, CleanCost(compute.per_row_token_us));
  return OverFloor(compute.base_us, compute_us, compute.floor, rows > 0 ? tokens : 0)
      .Us(compute.live);
}

bool OneFrameTakes(const Geometry& geometry, bool f32_partials, const LaneShape& shape,
                   uint32_t rows) {
  return LayOutAttend(/*segment_count=*/1, /*piece_count=*/1, rows, /*index_count=*/0,
                      geometry.d_qk)
                 .total_bytes <= shape.request_bytes_max &&
         sizeof(ReplyHeader) + LayOutPartial(rows, geometry.d_v, f32_partials).total_bytes <=
             shape.reply_bytes_max;
}

// Whole tiles of the kernel, as AttendPlan cuts: 64 rows, else 16.
uint32_t BlockRows(uint32_t whole) {
  for (const uint32_t tile : {64u, 16u}) {
    if (whole >= tile) return whole / tile * tile;
  }
  return whole;
}

// The time of a round without its probe and its wait.
struct RoundTime {
  double transfer_us = 0;
  double compute_us = 0;
  double total_us() const { return transfer_us + compute_us; }
};

// The three stages that frames pass, in turn.
struct Stages {
  double out_us = 0, copy_us = 0, compute_us = 0, back_us = 0;
  double holder_us() const { return copy_us + compute_us; }
};

// One candidate's exchange, by rows.
class CandidateRound {
 public:
  CandidateRound(const Workload& work, const Candidate& candidate, double bytes_per_us)
      : work_(work),
        candidate_(candidate),
        bytes_per_us_(bytes_per_us),
        wire_share_(std::min(CleanCost(candidate.wire_share), 1.0)),
        burst_bytes_(CleanCost(candidate.burst_bytes)),
        attended_(TimesCost(work.attended, CleanCost(candidate.token_share))) {}

  // All in one message.
  RoundTime Whole(double rows) const {
    const double compute_us = Compute(rows);
    if (burst_bytes_ == 0)
      return {TransferUs(rows * work_.exchange_bytes, bytes_per_us_), compute_us};
    const double out = rows * work_.query_bytes;
    const double back = rows * (work_.exchange_bytes - work_.query_bytes);
    const double refill_us = TransferUs(std::max(out, back), bytes_per_us_) - compute_us;
    return {std::max(WireUs(out) + WireUs(back), refill_us), compute_us};
  }

  // In frames.
  RoundTime Cut() const {
    const Stages all = Of(work_.rows), one = Of(work_.frame.block);
    // By the longest stage; of equals any.
    const RoundTime holder = {all.copy_us + one.out_us + one.back_us, all.compute_us};
    const RoundTime out = {all.out_us + one.copy_us + one.back_us, one.compute_us};
    const RoundTime back = {all.back_us + one.out_us + one.copy_us, one.compute_us};
    RoundTime slowest = holder;
    for (const RoundTime& other : {out, back}) {
      if (other.total_us() > slowest.total_us()) slowest = other;
    }
    // A frame of a block is a little shorter than the longest there can be: a call that just does
    // not fit one frame is not thought cheaper than one that does.
    const RoundTime least = Whole(work_.frame.whole);
    return least.total_us() > slowest.total_us() ? least : slowest;
  }

  RoundTime Best() const {
    const bool cut = work_.frame.whole > 0 && work_.rows > work_.frame.whole;
    return cut && wire_share_ > 0 ? Cut() : Whole(work_.rows);
  }
  // The share of the exchange that the kernel's rows have evicted. Not measured for selections.
  double ColdShare() const {
    if (work_.selected) return 0;
    return candidate_.cold_exchange.Share(TimesCost(attended_, work_.row_bytes));
  }
  double ComputeAlone() const { return ComputeUs(candidate_.compute, work_, attended_, 1); }

 private:
  // One direction of the wire.
  double WireUs(double bytes) const {
    return TransferUs(std::max(0.0, bytes - burst_bytes_), bytes_per_us_);
  }
  double Compute(double rows) const {
    Workload part = work_;
    part.rows = rows;
    return ComputeUs(candidate_.compute, part, attended_, 1 + CleanCost(candidate_.concurrent));
  }
  Stages Of(double rows) const {
    const double out = rows * work_.query_bytes;
    const double back = rows * (work_.exchange_bytes - work_.query_bytes);
    const double copy_us = TransferUs(out, bytes_per_us_) + TransferUs(back, bytes_per_us_);
    return {.out_us = TimesCost(wire_share_, WireUs(out)),
            .copy_us = TimesCost(1 - wire_share_, copy_us),
            .compute_us = Compute(rows),
            .back_us = TimesCost(wire_share_, WireUs(back))};
  }

  const Workload& work_;
  const Candidate& candidate_;
  const double bytes_per_us_;
  const double wire_share_;
  const double burst_bytes_;
  const double attended_;
};

// How much longer the exchange is because a share of it is in no cache (ColdExchange).
double ColdUs(const Workload& work, const Candidate& candidate, const CandidateRound& exchanged,
              double bytes_per_us, double warm_us) {
  const double share = exchanged.ColdShare();
  if (share == 0) return 0;
  const ColdExchange& cold = candidate.cold_exchange;
  const RoundTime all_cold = CandidateRound(work, candidate, cold.Rate(bytes_per_us)).Best();
  return TimesCost(share, CleanCost(cold.fixed_us) + CleanCost(all_cold.total_us() - warm_us));
}

// Returns why the holder cannot be queried at all, or null if it can.
const char* WhyNot(const Candidate& candidate, double bytes_per_us) {
  if (!candidate.fabric && !candidate.path) return "no holder reachable";
  return bytes_per_us > 0 ? nullptr : "bandwidth not measured";
}

}  // namespace

FrameRows FrameRowsOf(const Geometry& geometry, bool f32_partials,
                      const LaneShape& shape) noexcept {
  // Near it by division; what is rounded up in a frame is taken off row by row.
  const uint32_t by_bytes =
      std::min(shape.request_bytes_max / std::max(1u, geometry.query_row_bytes()),
               shape.reply_bytes_max / std::max(1u, geometry.partial_row_bytes(f32_partials)));
  uint32_t whole = std::clamp(by_bytes, 1u, kQueryRowCountMax);
  while (whole > 1 && !OneFrameTakes(geometry, f32_partials, shape, whole)) --whole;
  return {whole, BlockRows(whole)};
}

void HostLoads::Add(const HostSeat& seat, double busy_us) noexcept {
  if (!seat.known() || seat.host > kHostCountMax) return;
  Load& load = loads_[seat.host];
  load.busy_us += CleanCost(busy_us);
  load.holders += 1;
  load.processors = std::max(load.processors, static_cast<double>(seat.processors));
  hosts_ = std::max(hosts_, seat.host);
}

double HostLoads::Load::Us() const noexcept {
  if (!(holders > 0)) return 0;
  return TimesCost(std::ceil(holders / processors), busy_us / holders);
}

double HostLoads::Us(const HostSeat& seat) const noexcept {
  return seat.known() && seat.host <= kHostCountMax ? loads_[seat.host].Us() : 0;
}

double HostLoads::LongestUs() const noexcept {
  double longest_us = 0;
  for (uint16_t host = 1; host <= hosts_; ++host)
    longest_us = std::max(longest_us, loads_[host].Us());
  return longest_us;
}

void CallTime::Add(const HostSeat& seat, double round_us, double busy_us) noexcept {
  slowest_us_ = std::max(slowest_us_, round_us);
  if (seat.host == kThisHost) processors_here_ = std::max(processors_here_, seat.processors);
  loads_.Add(seat, busy_us);
}

double CallTime::Us() const noexcept {
  HostLoads loads = loads_;
  if (here_us_ > 0) loads.Add({.host = kThisHost, .processors = processors_here_}, here_us_);
  return std::max({slowest_us_, CleanCost(here_us_), loads.LongestUs()});
}

double BusyUs(const HostSeat& seat, double compute_us, double exchange_us) noexcept {
  const double threads = std::max(1u, std::min(uint32_t{seat.threads}, seat.processors));
  return TimesCost(threads, CleanCost(compute_us)) +
         (seat.host == kThisHost ? CleanCost(exchange_us) : 0);
}

RoundCost RouteRound(const Workload& work, const Candidate& candidate) noexcept {
  RoundCost cost;
  const double bytes_per_us = BytesPerUs(candidate, /*fetch=*/false);
  cost.why_not = WhyNot(candidate, bytes_per_us);
  if (cost.why_not != nullptr) return cost;
  const CandidateRound exchanged(work, candidate, bytes_per_us);
  const RoundTime exchange = exchanged.Best();
  cost.probe_us = ProbeUs(candidate);
  cost.transfer_us =
      exchange.transfer_us + ColdUs(work, candidate, exchanged, bytes_per_us, exchange.total_us());
  cost.compute_us = exchange.compute_us;
  const double ahead_us = TimesCost(CleanCost(candidate.queue_requests), exchanged.ComputeAlone());
  cost.queue_us = CleanCost(candidate.queue_us) + ahead_us;
  cost.total_us = cost.probe_us + cost.transfer_us + cost.compute_us + cost.queue_us;
  cost.busy_us = BusyUs(candidate.seat, cost.compute_us, cost.probe_us + cost.transfer_us);
  return cost;
}

RoundCost FetchRound(const Workload& work, const Candidate& candidate) noexcept {
  RoundCost cost;
  const double bytes_per_us = BytesPerUs(candidate, /*fetch=*/true);
  cost.why_not = WhyNot(candidate, bytes_per_us);
  if (cost.why_not != nullptr) return cost;
  const double share = CleanCost(candidate.token_share);
  if (work.selected) cost.probe_us = ProbeUs(candidate);
  const double rows = work.selected ? work.attended : TimesCost(work.tokens, work.layers);
  cost.transfer_us =
      TransferUs(TimesCost(rows, share * CleanCost(work.far_share)) * work.row_bytes, bytes_per_us);
  const double shown = std::min(CleanCost(candidate.splice_share), 1.0);
  cost.splice_us = TimesCost(TimesCost(work.splice_us, share), shown);
  cost.total_us = cost.probe_us + cost.transfer_us + cost.splice_us;
  return cost;
}

}  // namespace ckv
