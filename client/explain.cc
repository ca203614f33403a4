#include "client/explain.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "proto/status.h"
#include "transport/probe.h"

namespace ckv {
namespace {

constexpr int kProbeCountMax = 3;    // a disturbed one may see no bandwidth
constexpr int kComputeRunCount = 3;  // the fastest counts
// A directory that is away is no word against a holder, and must not take the call's whole time.
constexpr Duration kMembersTimeout = std::chrono::seconds(1);
// One echo over a lane that works takes microseconds, or a kernel's time where the holder computes.
constexpr Duration kPingTimeout = std::chrono::milliseconds(200);
constexpr uint32_t kFewRows = 1, kManyRows = 16;

// Brings the link up for a probe, which wants the lane for itself: what was given up on and not
// answered must not disturb it.
absl::Status PrepareProbe(LinkTable& links, HolderLink& link, Instant deadline) {
  absl::Status status = links.EnsureUp(link, deadline);
  if (status.ok() && link.lane().in_flight() > 0) {
    link.Close();
    status = links.EnsureUp(link, deadline);
  }
  return status.ok() ? status : Annotate(status, link.peer().Describe());
}

ProbeOptions OptionsOf(const HolderLink& link, Instant deadline) {
  ProbeOptions options;
  options.deadline = deadline;
  options.session = link.session().value;
  options.epoch = link.epoch().value;
  return options;
}

// One echo: a lane may look up for a while after its holder died.
absl::Status Ping(LinkTable& links, HolderLink& link, Clock& clock, Instant deadline) {
  CKV_RETURN_IF_ERROR(PrepareProbe(links, link, deadline));
  ProbeOptions options = OptionsOf(link, deadline);
  options.warmup_count = options.bandwidth_round_count = 0;
  options.round_count = 1;
  const auto probe = Probe(link.lane(), clock, options);
  return probe.ok() ? absl::OkStatus() : HolderError(link, probe.status());
}

absl::Status ProbeFabric(LinkTable& links, HolderLink& link, Clock& clock, Instant deadline) {
  CKV_RETURN_IF_ERROR(PrepareProbe(links, link, deadline));
  const FabricKind kind = link.lane().kind();
  const bool over_memory = kind == FabricKind::kShm || kind == FabricKind::kLoopback;
  for (int i = 0; i < kProbeCountMax; ++i) {
    auto probe = Probe(link.lane(), clock, OptionsOf(link, deadline));
    if (!probe.ok()) return HolderError(link, probe.status());
    const double bandwidth = over_memory ? CopyBandwidth(clock) : probe->bandwidth_bytes_per_s;
    if (bandwidth > 0) {
      link.peer().fabric.Set({probe->t_probe_us_p50, bandwidth}, over_memory);
      link.peer().probed_ns.store(clock.Now().ns, std::memory_order_relaxed);
      return absl::OkStatus();
    }
  }
  return absl::UnavailableError(
      absl::StrFormat("%s: full slots came back no later than empty ones, so the bandwidth is not "
                      "known",
                      link.peer().Describe()));
}

absl::StatusOr<double> ComputeUs(const ExplainCall& call, uint32_t chunk, uint32_t row_count,
                                 Router& router) {
  const Geometry& geometry = call.corpus->geometry;
  const std::vector<uint16_t> q(size_t{row_count} * geometry.d_qk, Bf16FromFloat(0.125f));
  std::vector<float> o(size_t{row_count} * geometry.d_v), m(row_count), l(row_count);
  const ChunkUse use = {chunk, 0};
  AttendCall attend;
  attend.corpus = call.corpus;
  attend.chunks = {&use, 1};
  attend.q = {q.data(), row_count, geometry.d_qk};
  attend.deadline = call.deadline;
  const auto room = [&] { return PartialView{o.data(), m.data(), l.data(), PartialDtype::kF32}; };
  double fastest_us = 0;
  for (int i = 0; i < kComputeRunCount; ++i) {
    AttendReport report;
    bool stale = false;
    CKV_RETURN_IF_ERROR(router.Attend(attend, room, &report, &stale));
    const double us = double(report.compute_ns_max) / 1e3;
    fastest_us = i == 0 ? us : std::min(fastest_us, us);
  }
  return fastest_us;
}

absl::StatusOr<ComputeConstants> MeasureCompute(const ExplainCall& call, uint32_t chunk,
                                                Router& router) {
  CKV_ASSIGN_OR_RETURN(const double few_us, ComputeUs(call, chunk, kFewRows, router));
  CKV_ASSIGN_OR_RETURN(const double many_us, ComputeUs(call, chunk, kManyRows, router));
  const double tokens = call.corpus->chunks[chunk].token_count;
  ComputeConstants compute;
  compute.per_row_token_us = std::max(0.0, (many_us - few_us) / ((kManyRows - kFewRows) * tokens));
  compute.base_us = std::max(0.0, few_us - kFewRows * tokens * compute.per_row_token_us);
  return compute;
}

absl::Status MeasureHolder(const ExplainCall& call, HolderLink& link, uint32_t chunk,
                           Router& router, Clock& clock) {
  HolderPeer& peer = link.peer();
  LinkTable& links = router.links();
  const Duration age = clock.Now() - Instant{peer.probed_ns.load(std::memory_order_relaxed)};
  bool known = peer.fabric.Get().has_value() && age <= kFabricConstantsAgeMax;
  // A lane that broke since is opened anew once, perhaps to another life of the holder.
  if (known) {
    known = Ping(links, link, clock, std::min(call.deadline, clock.Now() + kPingTimeout)).ok();
    if (!known) link.Close();
  }
  if (!known) CKV_RETURN_IF_ERROR(ProbeFabric(links, link, clock, call.deadline));
  if (!peer.compute()) {
    CKV_ASSIGN_OR_RETURN(const ComputeConstants compute, MeasureCompute(call, chunk, router));
    peer.set_compute(compute);
  }
  return absl::OkStatus();
}

// All that needs no holder.
absl::StatusOr<DecisionInput> InputOf(const ExplainCall& call, const RequesterConstants& here) {
  if (call.corpus == nullptr || call.chunk_begin >= call.chunk_end ||
      call.chunk_end > call.corpus->chunks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("explain: chunks %d to %d of %d", call.chunk_begin, call.chunk_end,
                        call.corpus == nullptr ? 0 : call.corpus->chunks.size()));
  }
  if (call.query_rows == 0 || call.query_rows > kAttendRowCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("explain: %d query rows, 1 to %d can be",
                                                      call.query_rows, kAttendRowCountMax));
  }
  DecisionInput input;
  input.geometry = call.corpus->geometry;
  input.query_rows = call.query_rows;
  input.steps = std::max(1u, call.steps);
  input.selected = call.select;
  input.here = here;
  for (uint32_t i = call.chunk_begin; i < call.chunk_end; ++i)
    input.tokens += call.corpus->chunks[i].token_count;
  input.cache_room_tokens = input.tokens;
  return input;
}

// The first holder of these chunks that is not a member; null: all are.
const HolderPeer* GoneHolder(const ExplainCall& call, const LinkTable::Route& route) {
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    if (route.link_of_chunk[chunk] == LinkTable::kNoLink) continue;
    const HolderPeer& peer = route.links[route.link_of_chunk[chunk]]->peer();
    if (peer.gone()) return &peer;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<DecisionInput> MeasureDecisionInput(const ExplainCall& call,
                                                   const RequesterConstants& here, PeerTable& peers,
                                                   Router& router, Clock& clock) {
  CKV_ASSIGN_OR_RETURN(DecisionInput input, InputOf(call, here));
  {
    CKV_ASSIGN_OR_RETURN(const LinkTable::Route* route, router.links().RouteOf(call.corpus));
    peers.Refresh(std::min(call.deadline, clock.Now() + kMembersTimeout));
    if (const HolderPeer* gone = GoneHolder(call, *route)) {
      input.gone_holder = gone->Describe();
      return input;
    }
  }
  std::vector<const HolderLink*> seen;
  double slowest_us = -1;
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    // Asked anew each time: a route is valid until the next call of the router.
    CKV_ASSIGN_OR_RETURN(LinkTable::Route * route, router.links().RouteOf(call.corpus));
    if (route->link_of_chunk[chunk] == LinkTable::kNoLink) continue;
    HolderLink& link = *route->links[route->link_of_chunk[chunk]];
    if (std::find(seen.begin(), seen.end(), &link) != seen.end()) continue;
    seen.push_back(&link);
    CKV_RETURN_IF_ERROR(MeasureHolder(call, link, chunk, router, clock));
    DecisionInput candidate = input;
    const HolderPeer& peer = link.peer();
    candidate.fabric = peer.fabric.Get();
    candidate.holder_compute = peer.compute().value_or(ComputeConstants{});
    candidate.in_flight = peer.in_flight.load(std::memory_order_relaxed);
    candidate.queue_us = peer.queue_ns.load(std::memory_order_relaxed) / 1e3;
    const double route_us = Decide(candidate).costs[size_t(Primitive::kRoute)].total_us;
    if (route_us > slowest_us) {
      slowest_us = route_us;
      input.fabric = candidate.fabric;
      input.holder_compute = candidate.holder_compute;
      input.in_flight = candidate.in_flight;
      input.queue_us = candidate.queue_us;
    }
  }
  return input;
}

}  // namespace ckv
