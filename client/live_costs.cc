// Combines what is known about costs into inputs of the predicate. Three sources: Here measures
// this host once for each row widths, and keeps the lesser values of later measurements; GroupsOf
// groups chunks by holders; AddCandidates takes each holder's learned constants. Estimate and
// KnownInput use only what is known, and query no holder. ObservePrefetch and ObserveMap learn from
// finished fetches. Any thread.

#include "client/live_costs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/calls.h"
#include "client/holders/replica_choice.h"
#include "client/paged/calibrate_here.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr const char* kUnknownHere = "the speed of this host's kernels is not measured yet";
constexpr const char* kUnknownThere = "no holder of a chunk has been measured yet";

// A replica that was never measured would look free.
bool IsKnown(const Candidate& candidate) {
  const ComputeConstants& compute = candidate.compute;
  return candidate.fabric.has_value() &&
         (!compute.curve.empty() || compute.base_us > 0 || compute.per_row_token_us > 0);
}

// Records the time of a slice that was fetched from a holder, and its ratio to the expected time.
void ObserveSlice(HolderPeer& peer, const Geometry& geometry, uint64_t bytes, double took_us) {
  if (const auto known = peer.FabricFor(geometry); known && bytes >= LiveBandwidth::kBytesMin) {
    const double bandwidth = known->fetch_bandwidth_bytes_per_s > 0
                                 ? known->fetch_bandwidth_bytes_per_s
                                 : known->bandwidth_bytes_per_s;
    if (bandwidth > 0)
      peer.prefetch_ratios.Observe(known->t_probe_us + double(bytes) / bandwidth * 1e6, took_us);
  }
  peer.bandwidth.Observe(bytes, took_us);
}

// A later measurement counts if it is faster by this factor. Each replaces what LiveHere compares
// with.
constexpr double kFaster = 0.9;

// The less of two measurements of each constant.
RequesterConstants LeastOf(const RequesterConstants& before, const RequesterConstants& now) {
  RequesterConstants least = before;
  const auto take = [](double& of, double other) {
    if (other < of * kFaster) of = other;
  };
  take(least.merge_per_row_us, now.merge_per_row_us);
  take(least.attend_per_row_token_us, now.attend_per_row_token_us);
  take(least.attend_floor.us_per_token, now.attend_floor.us_per_token);
  // One line through two points: its two numbers belong together.
  constexpr double kSplicedTokens = 256;
  const auto splice_us = [](const RequesterConstants& of) {
    return of.splice_per_layer_us + kSplicedTokens * of.splice_per_token_layer_us;
  };
  if (splice_us(now) < splice_us(before) * kFaster) {
    least.splice_per_layer_us = now.splice_per_layer_us;
    least.splice_per_token_layer_us = now.splice_per_token_layer_us;
  }
  return least;
}

// Calls `visit` with each chunk of a call that has tokens.
template <typename Visit>
void ForEachChunk(const EstimateCall& call, Visit visit) {
  const std::vector<ChunkPlacement>& all = call.corpus->chunks;
  const auto count = static_cast<uint32_t>(call.chunks.empty() ? all.size() : call.chunks.size());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t chunk = call.chunks.empty() ? i : call.chunks[i];
    if (all[chunk].token_count > 0) visit(chunk);
  }
}

}  // namespace

absl::StatusOr<RequesterConstants> LiveCosts::Here(const Geometry& geometry) {
  const auto known = KnownHere(geometry);
  if (known && !IsOldHere(geometry.widths())) return *known;
  CKV_RETURN_IF_ERROR(MeasureHere(geometry));
  return KnownHere(geometry).value_or(RequesterConstants{});
}

std::optional<RequesterConstants> LiveCosts::KnownHere(const Geometry& geometry) {
  const RowWidths widths = geometry.widths();
  const Profile* const profile = peers_.seed().For(geometry);
  std::optional<RequesterConstants> constants;
  if (profile != nullptr) constants = HereFor(*profile, geometry);
  if (!constants || constants->attend.empty()) {
    absl::MutexLock lock(&mu_);
    const auto measured = here_.find(widths);
    if (measured == here_.end()) return std::nullopt;
    const RequesterConstants& here = measured->second.constants;
    if (!constants) constants = here;
    constants->attend_per_row_token_us = here.attend_per_row_token_us;
    constants->attend_floor = here.attend_floor;
  }
  if (const auto reported = prefill_.PerTokenLayerUs(geometry))
    constants->prefill_per_token_layer_us = *reported;
  live_here_.SetKnown(widths, *constants);
  return WithAttendFactors(*constants, live_here_.Factors(widths, clock_.Now()));
}

absl::Status LiveCosts::MeasureHere(const Geometry& geometry) {
  constexpr size_t kWidthsMax = LiveHere::kWidthsMax;
  CKV_ASSIGN_OR_RETURN(const RequesterConstants measured,
                       CalibrateHere(geometry, clock_, backend_));
  absl::MutexLock lock(&mu_);
  const auto known = here_.find(geometry.widths());
  if (known != here_.end()) {
    known->second = {LeastOf(known->second.constants, measured), clock_.Now()};
    return absl::OkStatus();
  }
  if (here_.size() >= kWidthsMax) here_.clear();
  here_.emplace(geometry.widths(), MeasuredHere{measured, clock_.Now()});
  return absl::OkStatus();
}

bool LiveCosts::IsOldHere(const RowWidths& widths) const {
  absl::MutexLock lock(&mu_);
  const auto known = here_.find(widths);
  return known != here_.end() && clock_.Now() - known->second.at > kHereAgeMax;
}

absl::StatusOr<std::shared_ptr<const ChunkGroups>> LiveCosts::GroupsOf(
    const std::shared_ptr<const Corpus>& corpus) {
  {
    absl::MutexLock lock(&mu_);
    const auto known = groups_.find(corpus.get());
    if (known != groups_.end() && known->second.corpus.lock() == corpus)
      return known->second.groups;
  }
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const ChunkGroups> groups,
                       ChunkGroups::Make(corpus, peers_));
  absl::MutexLock lock(&mu_);
  if (groups_.size() >= kCorpusCountMax) groups_.clear();
  groups_[corpus.get()] = {corpus, groups};
  return groups;
}

absl::Status LiveCosts::CheckCall(const EstimateCall& call) const {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("estimate: no corpus");
  if (call.query_rows == 0 || call.query_rows > kAttendRowCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("estimate: %d query rows, 1 to %d can be",
                                                      call.query_rows, kAttendRowCountMax));
  }
  for (const uint32_t chunk : call.chunks) {
    if (chunk < call.corpus->chunks.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("estimate: chunk %d of a corpus of %d", chunk, call.corpus->chunks.size()));
  }
  return absl::OkStatus();
}

DecisionInput LiveCosts::InputOf(const EstimateCall& call, const RequesterConstants& here) const {
  DecisionInput input;
  input.geometry = call.corpus->geometry;
  input.query_rows = call.query_rows;
  input.steps = std::max(1u, call.steps);
  input.agents = std::max(1u, call.agents);
  input.selected = call.select;
  input.f32_partials = call.wire == PartialDtype::kF32;
  input.canonical = !call.spliced;
  input.here = here;
  input.lane_shape = lane_shape_;
  return input;
}

// Until local rows have been attended here, assumes that this host is as fast as the fastest holder
// with its kernel target, if that is faster than its calibration. A calibration at a bad moment
// would otherwise never be corrected: if local rows look slow, none are prefetched. The assumption
// costs one prefetch at most.
void LiveCosts::HopeForHere(const ChunkGroups& groups, uint32_t group, size_t begin,
                            DecisionInput& input) const {
  if (!input.here.attend.empty() || live_here_.Learned(input.geometry.widths())) return;
  const KernelTargetId mine = KernelTargetIdOf(backend_.kernel_target());
  if (mine == KernelTargetId::kUnknown) return;  // it equals nothing
  for (size_t i = begin; i < input.candidates.size(); ++i) {
    const Candidate& candidate = input.candidates[i];
    const ComputeConstants& compute = candidate.compute;
    if (groups.PeersOf(group)[i - begin]->model.target() != mine) continue;
    if (!candidate.fabric || !compute.curve.empty() || !(compute.per_row_token_us > 0)) continue;
    input.here.attend_per_row_token_us = std::min(input.here.attend_per_row_token_us,
                                                  compute.per_row_token_us * compute.live.compute);
    if (!(compute.floor.us_per_token > 0)) continue;
    double& floor_us = input.here.attend_floor.us_per_token;
    floor_us = std::min(floor_us, compute.floor.us_per_token * compute.live.memory);
  }
}

bool LiveCosts::AddCandidates(const ChunkGroups& groups, uint32_t group, uint32_t ordinal,
                              DecisionInput& input) const {
  bool any = false;
  for (const HolderPeer* const peer : groups.PeersOf(group)) {
    Candidate candidate = CandidateOf(*peer, peers_, oracle_, input.geometry, clock_.Now());
    candidate.group = ordinal;
    if (!IsKnown(candidate) || peer->gone()) {
      candidate.fabric.reset();
      candidate.path.reset();
    } else {
      any = true;
    }
    input.candidates.push_back(candidate);
  }
  return any;
}

absl::StatusOr<std::vector<GroupEstimate>> LiveCosts::Estimate(
    const EstimateCall& call, const std::function<bool(uint32_t)>& is_cached) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const ChunkGroups> groups, GroupsOf(call.corpus));
  std::vector<GroupEstimate> estimates;
  std::vector<uint32_t> seen;  // the group of each quote
  ForEachChunk(call, [&](uint32_t chunk) {
    const uint32_t group = groups->Of(chunk);
    size_t i = 0;
    while (i < seen.size() && seen[i] != group) ++i;
    if (i == seen.size()) {
      seen.push_back(group);
      estimates.emplace_back().first_chunk = chunk;
    }
    const uint32_t tokens = call.corpus->chunks[chunk].token_count;
    ++estimates[i].chunk_count;
    estimates[i].tokens += tokens;
    if (is_cached(chunk)) estimates[i].cached_tokens += tokens;
  });
  const std::optional<RequesterConstants> here = KnownHere(call.corpus->geometry);
  DecisionInput input = InputOf(call, here.value_or(RequesterConstants{}));
  for (size_t i = 0; i < estimates.size(); ++i) {
    GroupEstimate& estimate = estimates[i];
    input.tokens = input.cache_room_tokens = estimate.tokens;
    input.cached_tokens = estimate.cached_tokens;
    input.candidates.clear();
    const bool known = AddCandidates(*groups, seen[i], /*ordinal=*/0, input);
    if (known && here) {
      estimate.decision = Decide(input);
      continue;
    }
    for (CostBreakdown& cost : estimate.decision.costs)
      cost.why_not = known ? kUnknownHere : kUnknownThere;
  }
  return estimates;
}

absl::StatusOr<DecisionInput> LiveCosts::KnownInput(const EstimateCall& call) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  const std::optional<RequesterConstants> here = KnownHere(call.corpus->geometry);
  if (!here) return absl::UnavailableError(kUnknownHere);
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const ChunkGroups> groups, GroupsOf(call.corpus));
  DecisionInput input = InputOf(call, *here);
  std::vector<uint64_t> tokens(groups->group_count());
  ForEachChunk(call, [&](uint32_t chunk) {
    tokens[groups->Of(chunk)] += call.corpus->chunks[chunk].token_count;
    input.tokens += call.corpus->chunks[chunk].token_count;
  });
  input.cache_room_tokens = input.tokens;
  uint32_t ordinal = 0;
  for (uint32_t group = 0; group < groups->group_count(); ++group) {
    if (tokens[group] == 0) continue;
    const size_t begin = input.candidates.size();
    if (!AddCandidates(*groups, group, ordinal++, input))
      return absl::UnavailableError(kUnknownThere);
    for (size_t i = begin; i < input.candidates.size(); ++i)
      input.candidates[i].token_share = double(tokens[group]) / double(input.tokens);
    HopeForHere(*groups, group, begin, input);
  }
  return input;
}

void LiveCosts::ObservePrefetch(const FetchCall& call, Duration took) {
  const auto groups = GroupsOf(call.corpus);
  if (!groups.ok()) return;
  uint64_t tokens = 0, token_bytes = 0;
  for (uint32_t i = call.chunk_begin; i < call.chunk_end; ++i)
    tokens += call.corpus->chunks[i].token_count;
  for (uint32_t t = call.tensor_begin; t < call.tensor_end; ++t)
    token_bytes += call.corpus->geometry.tensor_row_bytes(t);
  const uint64_t bytes = tokens * token_bytes;
  const uint32_t group = (*groups)->Of(call.chunk_begin);
  if (group == ChunkGroups::kNoGroup) return;
  for (HolderPeer* const peer : (*groups)->PeersOf(group))
    ObserveSlice(*peer, call.corpus->geometry, bytes, double(took.count()) / 1e3);
}

void LiveCosts::ObserveMap(const MapCall& call, Duration took) {
  const auto groups = GroupsOf(call.corpus);
  if (!groups.ok()) return;
  const uint32_t group = (*groups)->Of(call.chunk);
  if (group == ChunkGroups::kNoGroup) return;
  const uint64_t bytes =
      uint64_t{call.corpus->chunks[call.chunk].token_count} * call.corpus->geometry.token_bytes();
  // Replicas elsewhere cannot have been mapped.
  for (HolderPeer* const peer : (*groups)->PeersOf(group)) {
    if (peer->seat().host == kThisHost) peer->bandwidth.Observe(bytes, double(took.count()) / 1e3);
  }
}

bool LiveCosts::HaveTarget(const std::shared_ptr<const Corpus>& corpus, KernelTargetId target) {
  const auto groups = GroupsOf(corpus);
  if (!groups.ok() || target == KernelTargetId::kUnknown) return false;
  peers_.Hear();
  for (uint32_t group = 0; group < (*groups)->group_count(); ++group) {
    for (const HolderPeer* const peer : (*groups)->PeersOf(group)) {
      if (peer->model.target() != target) return false;
    }
  }
  return true;
}

}  // namespace ckv
