// Everything about a fleet that does not change while it runs: constants, checks, the list of
// requests, the tree of links, and the places of chunks.

#include "client/simulate/fleet_spec.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/simulate/random.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"

namespace ckv {
namespace {

constexpr double kUsPerS = 1e6;

absl::Status CheckCount(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %g, must be %g to %g", name, value, least, most));
}

// Draws a rank with weight rank^-zipf, from 0.
class ZipfDraw {
 public:
  ZipfDraw(uint32_t count, double zipf) {
    double sum = 0;
    for (uint32_t i = 1; i <= count; ++i) sums_.push_back(sum += std::pow(i, -zipf));
  }
  uint32_t Draw(SimRandom& random) const {
    const double at = random.Share() * sums_.back();
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
    return static_cast<uint32_t>(
        std::min<ptrdiff_t>(found - sums_.begin(), static_cast<ptrdiff_t>(sums_.size()) - 1));
  }

 private:
  std::vector<double> sums_;
};

template <typename T>
void Shuffle(std::vector<T>& values, SimRandom& random) {
  for (size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[random.Below(static_cast<uint32_t>(i))]);
}

std::vector<uint32_t> StepsOf(const FleetSpec& spec, size_t count, SimRandom& random) {
  std::vector<uint32_t> steps;
  for (size_t i = 0; i < count; ++i) {
    const double u = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const double drawn = spec.steps_mean > 0 ? -spec.steps_mean * std::log1p(-u)
                                             : std::pow(spec.steps_max, u * u * u * u);
    steps.push_back(static_cast<uint32_t>(
        std::clamp(std::round(drawn), 1.0, static_cast<double>(kFleetStepsMax))));
  }
  Shuffle(steps, random);
  return steps;
}

}  // namespace

std::string_view FleetPolicyName(FleetPolicy policy) {
  constexpr std::string_view kNames[kFleetPolicyCount] = {"route", "fetch", "local", "auto"};
  return kNames[static_cast<size_t>(policy)];
}

FleetCosts GpuCosts(const Geometry& geometry) {
  constexpr double kMemoryBytesPerUs = 3000e3, kFlopPerUs = 660e6;
  const double row_us = 2.0 * (geometry.d_qk + geometry.d_v) / kFlopPerUs;
  FleetCosts costs;
  costs.probe_us = 16;
  costs.nic_bytes_per_s = 25e9;
  costs.compute.base_us = 15;
  costs.compute.floor.us_per_token = geometry.row_bytes() / kMemoryBytesPerUs;
  for (const double rows : {16.0, 128.0})
    costs.compute.anchors[costs.compute.anchor_count++] = {rows, rows * row_us};
  costs.here.attend = costs.compute;
  costs.here.merge_per_row_us = 25.0 / 1024;
  return costs;
}

FleetCosts CoreCosts(const Geometry& geometry) {
  const double scale = geometry.d_qk / 576.0;
  FleetCosts costs;
  costs.probe_us = 30;
  costs.nic_bytes_per_s = 25e9 / 8;
  costs.compute.base_us = 7;
  costs.compute.floor.us_per_token = 0.053 * scale;
  costs.compute.anchor_count = 2;
  costs.compute.anchors[0] = {1, 0.048 * scale};
  costs.compute.anchors[1] = {16, 0.132 * scale};
  costs.here.attend = costs.compute;
  costs.here.merge_per_row_us = 0.02;
  return costs;
}

absl::Status ValidateFleet(const FleetSpec& spec) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(spec.geometry));
  CKV_RETURN_IF_ERROR(CheckCount("nodes", spec.nodes, 1, kFleetNodesMax));
  CKV_RETURN_IF_ERROR(CheckCount("holders", spec.holders, 0, spec.nodes - 1));
  CKV_RETURN_IF_ERROR(CheckCount("query_rows", spec.query_rows, 1, 4096));
  CKV_RETURN_IF_ERROR(CheckCount("workers", spec.workers, 1, 64));
  CKV_RETURN_IF_ERROR(CheckCount("nodes_per_rack", spec.nodes_per_rack, 1, kFleetNodesMax));
  CKV_RETURN_IF_ERROR(CheckCount("oversubscription", spec.oversubscription, 0.01, 1000));
  CKV_RETURN_IF_ERROR(CheckCount("documents", spec.documents_per_holder, 1, 1024));
  CKV_RETURN_IF_ERROR(CheckCount("document_chunks", spec.document_chunks, 1, 256));
  CKV_RETURN_IF_ERROR(CheckCount("chunk_tokens", spec.chunk_tokens, 1, 1 << 20));
  CKV_RETURN_IF_ERROR(
      CheckCount("replicas", spec.replicas, 1, std::min(spec.holder_count(), kReplicaCountMax)));
  CKV_RETURN_IF_ERROR(CheckCount("batch_max", spec.batch_max, 1, 4096));
  CKV_RETURN_IF_ERROR(CheckCount("load", spec.load, 1e-6, 1e6));
  CKV_RETURN_IF_ERROR(CheckCount("requests", spec.requests_per_requester, 1,
                                 double{kFleetRequestsMax} / std::max(1u, spec.requester_count())));
  CKV_RETURN_IF_ERROR(CheckCount("zipf", spec.zipf, 0, 10));
  CKV_RETURN_IF_ERROR(CheckCount("steps_max", spec.steps_max, 1, kFleetStepsMax));
  CKV_RETURN_IF_ERROR(CheckCount("steps_mean", spec.steps_mean, 0, kFleetStepsMax));
  CKV_RETURN_IF_ERROR(CheckCount("warmup_share", spec.warmup_share, 0, 0.99));
  CKV_RETURN_IF_ERROR(CheckCount("probe_us", spec.costs.probe_us, 0, 1e9));
  CKV_RETURN_IF_ERROR(CheckCount("nic", spec.costs.nic_bytes_per_s, 1, 1e18));
  if (spec.costs.compute.empty() || spec.costs.here.attend.empty())
    return absl::InvalidArgumentError("costs: no kernel curve, of a holder or of a requester");
  if (spec.holds_first() && spec.cache_bytes / spec.chunk_bytes() < spec.document_chunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache_bytes: %d, but a document has %d. Give more, or use the policies route and auto",
        spec.cache_bytes, spec.document_chunks * spec.chunk_bytes()));
  }
  if (spec.policy == FleetPolicy::kLocal && !spec.costs.here.prefill_per_token_layer_us)
    return absl::InvalidArgumentError("local: the cost of prefill is not given");
  return absl::OkStatus();
}

std::vector<FleetRequest> MakeFleetRequests(const FleetSpec& spec) {
  const size_t count = size_t{spec.requests_per_requester} * spec.requester_count();
  SimRandom order(SimRandom::Mix(spec.seed) ^ 1), times(SimRandom::Mix(spec.seed) ^ 2),
      choice(SimRandom::Mix(spec.seed) ^ 3);
  const std::vector<uint32_t> steps = StepsOf(spec, count, order);
  const ZipfDraw draw(spec.document_count(), spec.zipf);
  // Neighbours in rank are not neighbours in the corpus, which share holders.
  std::vector<uint32_t> document_of_rank(spec.document_count());
  for (uint32_t i = 0; i < document_of_rank.size(); ++i) document_of_rank[i] = i;
  Shuffle(document_of_rank, choice);
  std::vector<FleetRequest> requests(count);
  for (size_t i = 0; i < count; ++i)
    requests[i] = {.document = document_of_rank[draw.Draw(choice)], .steps = steps[i]};
  const double gap_s = 1 / (FleetRequestsPerS(spec, requests) * spec.load);
  double at_s = 0;
  for (FleetRequest& one : requests) one.arrival_s = at_s += times.Exponential(gap_s);
  return requests;
}

double FleetRequestsPerS(const FleetSpec& spec, const std::vector<FleetRequest>& requests) {
  double steps = 0;
  for (const FleetRequest& one : requests) steps += one.steps;
  steps /= static_cast<double>(std::max<size_t>(1, requests.size()));
  const double tokens = static_cast<double>(spec.document_chunks) * spec.chunk_tokens;
  const double step_us = spec.geometry.layers * spec.costs.compute.Us(spec.query_rows, tokens);
  return static_cast<double>(spec.holder_count()) * spec.workers * kUsPerS / (steps * step_us);
}

FabricSpec FabricOf(const FleetSpec& spec) {
  FabricSpec fabric;
  fabric.server_bytes_per_s = spec.costs.nic_bytes_per_s;
  // T_probe has the latency of the links.
  fabric.tier_latency_us = {0, 0, 0};
  const uint32_t racks = (spec.nodes + spec.nodes_per_rack - 1) / spec.nodes_per_rack;
  for (uint32_t rack = 0; rack < racks; ++rack) {
    fabric.links.push_back({.from = absl::StrFormat("rack%d", rack),
                            .to = "core",
                            .bytes_per_s = spec.costs.nic_bytes_per_s / spec.oversubscription,
                            .count = spec.nodes_per_rack});
  }
  for (uint32_t node = 0; node < spec.nodes; ++node) {
    fabric.servers.push_back(absl::StrFormat("node%d", node));
    fabric.links.push_back({.from = fabric.servers.back(),
                            .to = absl::StrFormat("rack%d", node / spec.nodes_per_rack),
                            .bytes_per_s = spec.costs.nic_bytes_per_s});
  }
  return fabric;
}

absl::StatusOr<FleetPlacement> PlaceFleet(const FleetSpec& spec) {
  std::vector<HolderId> holders;
  std::vector<FailureDomain> domains;
  std::map<std::string, uint32_t> node_of_name;
  for (uint32_t node = 0; node < spec.holder_count(); ++node) {
    holders.push_back({absl::StrFormat("node%d", node)});
    domains.push_back({.host = holders.back().name,
                       .rack = absl::StrFormat("rack%d", node / spec.nodes_per_rack)});
    node_of_name[holders.back().name] = node;
  }
  const size_t chunk_count = size_t{spec.document_count()} * spec.document_chunks;
  CKV_ASSIGN_OR_RETURN(const auto placed,
                       PlaceChunks(chunk_count, holders, spec.replicas, domains));
  FleetPlacement placement;
  std::map<std::vector<uint32_t>, uint32_t> group_of_list;
  placement.groups_of_document.resize(spec.document_count());
  for (size_t chunk = 0; chunk < chunk_count; ++chunk) {
    std::vector<uint32_t> list;
    for (const HolderId& holder : placed[chunk]) list.push_back(node_of_name[holder.name]);
    const auto [at, fresh] =
        group_of_list.try_emplace(list, static_cast<uint32_t>(placement.holders_of_group.size()));
    if (fresh) placement.holders_of_group.push_back(list);
    placement.group_of_chunk.push_back(at->second);
    auto& groups = placement.groups_of_document[chunk / spec.document_chunks];
    auto found = std::ranges::find(groups, at->second, &FleetPlacement::Group::id);
    if (found == groups.end())
      found = groups.insert(groups.end(), {.id = at->second, .chunks = {}});
    found->chunks.push_back(static_cast<uint32_t>(chunk));
  }
  return placement;
}

}  // namespace ckv
