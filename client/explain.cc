// Measures what the predicate needs to know about holders. MeasureDecisionInput, in order:
//   1. InputOf fills in what needs no holder.
//   2. Refresh reads the list of members, so that a holder that is gone is named.
//   3. AddGroup does the rest for each group of chunks and each of its holders: probes the fabric
//      (ProbeFabric), or only checks the lane if its constants are new (Ping); then MeasureCompute
//      and MeasureGather time attends if their costs are unknown.
// ExplanationOf runs the predicate on the result. MeasureDoubted repeats step 3 for holders whose
// constants are in doubt. Runs on the caller's thread, with the links of one call context.

#include "client/explain.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "client/cost/doubts.h"
#include "client/cost/what_if.h"
#include "client/holders/replica_choice.h"
#include "proto/base/status.h"
#include "transport/probe.h"

namespace ckv {
namespace {

constexpr int kProbeCountMax = 3;    // a disturbed one may see no bandwidth
constexpr int kComputeRunCount = 3;  // the fastest counts
// An unreachable directory does not count against a holder, and must not take the call's whole
// time.
constexpr Duration kMembersTimeout = std::chrono::seconds(1);
// One echo over a lane that works takes microseconds, or a kernel's time where the holder computes.
constexpr Duration kPingTimeout = std::chrono::milliseconds(200);
// With one query row, every kernel waits for memory. With 64, computing takes longer than reading
// the rows, even on matrix units: AMX takes 375 us for 2048 warm rows, and reads them in some 160
// to 320 us.
constexpr uint32_t kFewQueryRows = 1, kManyQueryRows = 64;
// Selections are for decoding: one token of the narrowest model.
constexpr uint32_t kGatherRows = 16;
// A kernel's selected path costs between these and its dense one; beyond is a disturbed
// measurement.
constexpr double kGatherFactorMin = 0.25, kGatherFactorMax = 16;

// Brings the link up for a probe, which needs the lane for itself: requests that were given up on
// and not answered must not disturb it.
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
  return probe.ok() ? absl::OkStatus() : links.Fail(link, probe.status());
}

absl::Status ProbeFabric(LinkTable& links, HolderLink& link, Clock& clock, Instant deadline) {
  CKV_RETURN_IF_ERROR(PrepareProbe(links, link, deadline));
  const FabricKind kind = link.lane().kind();
  const bool over_memory = SharesMemory(kind);
  FabricConstants best;
  for (int i = 0; i < kProbeCountMax; ++i) {
    const bool was_busy = link.peer().in_flight.Get() > 0;
    auto probe = Probe(link.lane(), clock, OptionsOf(link, deadline));
    if (!probe.ok()) return links.Fail(link, probe.status());
    const double bandwidth = over_memory ? CopyBandwidth(clock) : probe->bandwidth_bytes_per_s;
    if (bandwidth > best.bandwidth_bytes_per_s) best = {probe->t_probe_us_p50, bandwidth};
    // Next to this requester's own calls, a probe sees only what they leave: half of it, or a
    // twentieth.
    const bool disturbed = was_busy || link.peer().in_flight.Get() > 0;
    if (best.bandwidth_bytes_per_s > 0 && !disturbed) break;
  }
  if (best.bandwidth_bytes_per_s > 0) {
    link.peer().fabric.Set(best, over_memory);
    link.peer().probed_ns.store(clock.Now().ns, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrFormat("%s: full slots returned no later than empty ones, so the bandwidth is "
                      "unknown",
                      link.peer().Describe()));
}

// The holder's kernel time of one attend over `chunk`, or over its rows `selected` if there are
// any. `layer` counts the attends. Each takes the next layer, whose rows are where a call finds
// them. An attend of the same rows again would find them in a cache.
absl::StatusOr<double> ComputeUs(const ExplainCall& call, uint32_t chunk, uint32_t row_count,
                                 std::span<const int32_t> selected, uint32_t& layer,
                                 Router& router) {
  const Geometry& geometry = call.corpus->geometry;
  const std::vector<uint16_t> q(size_t{row_count} * geometry.d_qk, Bf16FromFloat(0.125f));
  std::vector<float> o(size_t{row_count} * geometry.d_v), m(row_count), l(row_count);
  const ChunkUse use = {chunk, 0};
  const ContextPart part = {call.corpus, {&use, 1}};
  CKV_ASSIGN_OR_RETURN(const auto context, ContextState::Make({&part, 1}));
  RouteSegment segment = {.row_count = row_count, .context = context.get()};
  if (!selected.empty())
    segment.selection = {selected.data(), static_cast<uint32_t>(selected.size()), row_count};
  RouteCall attend = {.q = {q.data(), row_count, geometry.d_qk},
                      .segments = {&segment, 1},
                      .deadline = call.deadline,
                      .is_trial = true};
  const auto buffers = [&] {
    return PartialView{o.data(), m.data(), l.data(), PartialDtype::kF32};
  };
  double fastest_us = 0;
  for (int i = 0; i < kComputeRunCount; ++i) {
    AttendReport report;
    attend.layer = layer++ % geometry.layers;
    CKV_RETURN_IF_ERROR(router.Attend(attend, buffers, &report));
    const double us = double(report.compute_ns_max) / 1e3;
    fastest_us = i == 0 ? us : std::min(fastest_us, us);
  }
  return fastest_us;
}

// Measures three costs: a base, of one query row over one row; a floor, on which a query row over
// all rows rests; and the cost of a query row where many exceed the floor. Two numbers of query
// rows alone separate the floor from the base only if there is no floor: the time that one query
// row waits for memory would count as a base, for short chunks and long ones alike.
absl::StatusOr<ComputeConstants> MeasureCompute(const ExplainCall& call, uint32_t chunk,
                                                uint32_t& layer, Router& router) {
  const double tokens = call.corpus->chunks[chunk].token_count;
  const int32_t first = 0;
  CKV_ASSIGN_OR_RETURN(const double few_us,
                       ComputeUs(call, chunk, kFewQueryRows, {}, layer, router));
  CKV_ASSIGN_OR_RETURN(const double many_us,
                       ComputeUs(call, chunk, kManyQueryRows, {}, layer, router));
  CKV_ASSIGN_OR_RETURN(const double least_us,
                       ComputeUs(call, chunk, kFewQueryRows, {&first, 1}, layer, router));
  ComputeConstants compute;
  compute.base_us = std::min(least_us, few_us);
  compute.per_row_token_us = std::max(0.0, (many_us - compute.base_us) / (kManyQueryRows * tokens));
  compute.floor.us_per_token = (few_us - compute.base_us) / tokens;
  return compute;
}

// Measures how much longer picked-out rows take than adjacent rows. It picks every second row of
// the chunk, so that no two are neighbours, up to the budget.
absl::StatusOr<double> MeasureGather(const ExplainCall& call, uint32_t chunk,
                                     const ComputeConstants& compute, uint32_t& layer,
                                     Router& router) {
  const uint32_t tokens = call.corpus->chunks[chunk].token_count;
  std::vector<int32_t> rows;
  for (uint32_t row = 0; row < tokens && rows.size() < call.select; row += 2)
    rows.push_back(static_cast<int32_t>(row));
  CKV_ASSIGN_OR_RETURN(const double us, ComputeUs(call, chunk, kGatherRows, rows, layer, router));
  const double picked = double(rows.size());
  const double dense_us =
      OverFloor(0, kGatherRows * picked * compute.per_row_token_us, compute.floor, picked).Us();
  if (!(dense_us > 0)) return 1;
  return std::clamp((us - compute.base_us) / dense_us, kGatherFactorMin, kGatherFactorMax);
}

absl::Status MeasureHolder(const ExplainCall& call, HolderLink& link, uint32_t chunk,
                           const ExplainTools& tools) {
  HolderPeer& peer = link.peer();
  const RowWidths widths = call.corpus->geometry.widths();
  LinkTable& links = tools.links;
  Clock& clock = tools.clock;
  const Duration age = clock.Now() - Instant{peer.probed_ns.load(std::memory_order_relaxed)};
  bool known =
      peer.fabric.Get().has_value() && age <= kFabricConstantsAgeMax && !peer.fabric.doubted();
  // A lane that broke since is reopened once, perhaps to another incarnation of the holder.
  if (known) {
    known = Ping(links, link, clock, std::min(call.deadline, clock.Now() + kPingTimeout)).ok();
    if (!known) link.Close();
  }
  if (!known) CKV_RETURN_IF_ERROR(ProbeFabric(links, link, clock, call.deadline));
  std::optional<ComputeConstants> compute = peer.compute(widths);
  const MeasuredOver over = {call.corpus, chunk};
  uint32_t layer = 0;
  if (!compute || peer.model.doubted(widths)) {
    CKV_ASSIGN_OR_RETURN(compute, MeasureCompute(call, chunk, layer, tools.router));
    peer.set_compute(widths, *compute, over);
  }
  if (call.select > 0 && compute->gather_factor == 0) {
    CKV_ASSIGN_OR_RETURN(compute->gather_factor,
                         MeasureGather(call, chunk, *compute, layer, tools.router));
    peer.set_compute(widths, *compute, over);
  }
  return absl::OkStatus();
}

// The same for a holder that has the chunk, whichever replica is chosen for it.
absl::Status MeasureOne(const ExplainCall& call, HolderLink& link, uint32_t chunk,
                        const ExplainTools& tools) {
  const LinkTable::Forced forced(&tools.links, &link.peer());
  CKV_ASSIGN_OR_RETURN(LinkTable::ChunkLinks * chunk_links, tools.links.LinksFor(call.corpus));
  (void)tools.links.Choose(*chunk_links, chunk);
  return MeasureHolder(call, link, chunk, tools);
}

// All that needs no holder.
absl::StatusOr<DecisionInput> InputOf(const ExplainCall& call, const RequesterConstants& here,
                                      const LaneShape& lane_shape) {
  if (call.query_rows == 0 || call.query_rows > kAttendRowCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("explain: %d query rows, 1 to %d can be",
                                                      call.query_rows, kAttendRowCountMax));
  }
  DecisionInput input;
  input.geometry = call.corpus->geometry;
  input.query_rows = call.query_rows;
  input.steps = std::max(1u, call.steps);
  input.agents = std::max(1u, call.agents);
  input.selected = call.select;
  input.f32_partials = call.wire == PartialDtype::kF32;
  input.here = here;
  input.lane_shape = lane_shape;
  for (const uint32_t chunk : call.chunks) input.tokens += call.corpus->chunks[chunk].token_count;
  input.cache_room_tokens = call.cache_room_tokens.value_or(input.tokens);
  return input;
}

// Returns a holder of these chunks whose group has no member left, or null if every group has one.
const HolderPeer* GoneHolder(const ExplainCall& call, const LinkTable::ChunkLinks& chunk_links) {
  for (const uint32_t chunk : call.chunks) {
    const uint32_t group = chunk_links.group_of_chunk[chunk];
    if (group == LinkTable::kNoLink) continue;
    const std::vector<uint32_t>& links = chunk_links.groups[group].links;
    if (std::all_of(links.begin(), links.end(),
                    [&](uint32_t link) { return chunk_links.links[link]->peer().gone(); })) {
      return &chunk_links.links[links.front()]->peer();
    }
  }
  return nullptr;
}

// Candidates for one group of chunks, of which `chunk` is one: each of its holders that can be
// measured.
absl::Status AddGroup(const ExplainCall& call, const ExplainTools& tools, uint32_t chunk,
                      uint32_t ordinal, MeasuredInput& measured) {
  LinkTable& links = tools.links;
  // Copied: the result of LinksFor is valid until the links are used again, while the links
  // themselves stay.
  std::vector<HolderLink*> replicas;
  {
    CKV_ASSIGN_OR_RETURN(const LinkTable::ChunkLinks* chunk_links, links.LinksFor(call.corpus));
    for (const uint32_t link : chunk_links->groups[chunk_links->group_of_chunk[chunk]].links)
      replicas.push_back(chunk_links->links[link]);
  }
  absl::Status first_error;
  size_t added = 0;
  for (HolderLink* link : replicas) {
    if (link->peer().gone()) continue;
    absl::Status status = MeasureOne(call, *link, chunk, tools);
    if (!status.ok()) {
      // A holder that does not answer is no candidate; another of its replicas may be one.
      first_error.Update(status);
      continue;
    }
    Candidate candidate = CandidateOf(link->peer(), tools.peers, tools.oracle,
                                      call.corpus->geometry, tools.clock.Now());
    candidate.group = ordinal;
    candidate.token_share = 0;
    measured.input.candidates.push_back(candidate);
    measured.holders.push_back(link->peer().id());
    ++added;
  }
  if (added > 0) return absl::OkStatus();
  // The directory's list was read again meanwhile. A sum without this group's chunks would be
  // wrong.
  if (first_error.ok()) {
    return absl::UnavailableError(absl::StrFormat("chunk %d: its holders are members no more, %s",
                                                  chunk, replicas.front()->peer().Describe()));
  }
  return first_error;
}

// The same, by the peer.
absl::Status MeasureAt(const ExplainCall& call, uint32_t chunk, const HolderPeer& peer,
                       const ExplainTools& tools) {
  HolderLink* its = nullptr;
  {
    CKV_ASSIGN_OR_RETURN(const LinkTable::ChunkLinks* chunk_links,
                         tools.links.LinksFor(call.corpus));
    for (HolderLink* const link : chunk_links->links) {
      if (&link->peer() == &peer) its = link;
    }
  }
  if (its == nullptr) return absl::NotFoundError(peer.Describe() + " has no chunk of the corpus");
  return MeasureOne(call, *its, chunk, tools);
}

}  // namespace

absl::StatusOr<MeasuredInput> MeasureDecisionInput(ExplainCall call, const RequesterConstants& here,
                                                   const ExplainTools& tools) {
  MeasuredInput measured;
  if (call.corpus == nullptr) return absl::InvalidArgumentError("explain: no corpus");
  CKV_ASSIGN_OR_RETURN(call.chunks, ChunksOrAll(*call.corpus, std::move(call.chunks)));
  CKV_ASSIGN_OR_RETURN(measured.input, InputOf(call, here, tools.router.shape()));
  DecisionInput& input = measured.input;
  {
    CKV_ASSIGN_OR_RETURN(const LinkTable::ChunkLinks* chunk_links,
                         tools.links.LinksFor(call.corpus));
    tools.peers.Refresh(std::min(call.deadline, tools.clock.Now() + kMembersTimeout));
    if (const HolderPeer* gone = GoneHolder(call, *chunk_links)) {
      input.gone_holder = gone->Describe();
      return measured;
    }
  }
  std::vector<uint32_t> seen;  // groups, in the order of their candidates
  for (const uint32_t chunk : call.chunks) {
    // Looked up again each time: the result is valid until the links are used again.
    CKV_ASSIGN_OR_RETURN(const LinkTable::ChunkLinks* chunk_links,
                         tools.links.LinksFor(call.corpus));
    const uint32_t group = chunk_links->group_of_chunk[chunk];
    if (group == LinkTable::kNoLink) continue;
    const auto known = std::find(seen.begin(), seen.end(), group);
    const auto ordinal = static_cast<uint32_t>(known - seen.begin());
    if (known == seen.end()) {
      seen.push_back(group);
      CKV_RETURN_IF_ERROR(AddGroup(call, tools, chunk, ordinal, measured));
    }
    const double share = double(call.corpus->chunks[chunk].token_count) / double(input.tokens);
    for (Candidate& candidate : input.candidates) {
      if (candidate.group == ordinal) candidate.token_share += share;
    }
  }
  return measured;
}

Explanation ExplanationOf(const ExplainCall& call, MeasuredInput measured, PeerTable& peers,
                          const LiveCalls& calls,
                          absl::FunctionRef<bool(const ChunkPlacement&)> is_cached) {
  Explanation explanation;
  DecisionInput& input = explanation.input = std::move(measured.input);
  explanation.holders = std::move(measured.holders);
  input.canonical = !call.spliced;
  const auto add = [&](const ChunkPlacement& chunk) {
    if (is_cached(chunk)) input.cached_tokens += chunk.token_count;
  };
  const std::vector<ChunkPlacement>& chunks = call.corpus->chunks;
  if (call.chunks.empty()) std::for_each(chunks.begin(), chunks.end(), add);
  for (const uint32_t chunk : call.chunks) add(chunks[chunk]);
  explanation.decision = Decide(input);
  explanation.flips = Flips(input);
  explanation.summary = DescribeDecision(explanation.decision, input);
  std::vector<DoubtedHolder> holders;
  for (const HolderId& id : explanation.holders) {
    DoubtedHolder& holder = holders.emplace_back();
    holder.name = id.name;
    const auto peer = peers.Find(id);
    if (!peer.ok()) continue;
    holder.target = (*peer)->model.target();
    holder.model_error = (*peer)->model.error();
  }
  explanation.doubts = Doubts(input, holders);
  explanation.route_ratio = calls.routed.Ratio();
  explanation.cached_ratio = calls.cached.Ratio();
  return explanation;
}

absl::Status MeasureDoubted(
    HolderPeer& peer,
    absl::FunctionRef<absl::Status(const Corpus& corpus, const Remeasure& measure)> run) {
  absl::Status status;
  for (const MeasuredOver& over : peer.Doubted()) {
    ExplainCall call;
    call.corpus = over.corpus.lock();
    if (call.corpus == nullptr) {
      status.Update(
          absl::NotFoundError("the corpus that it was measured with is no longer in use"));
      continue;
    }
    status.Update(run(*call.corpus, [&](const ExplainTools& tools, Instant deadline) {
      call.deadline = deadline;
      return MeasureAt(call, over.chunk, peer, tools);
    }));
  }
  return status;
}

}  // namespace ckv
