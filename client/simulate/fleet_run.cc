// FleetRun holds the state of one run. Run takes the next event, of the queue or of the network.
// A context passes through Arrive, Admit, Start, then BeginStep to EndStep for each step. A part of
// a step is a visit: Send, flow of queries, batch at the holder, flow of partials, EndPart. A visit
// to the requester's own kernel has no flows.

#include "client/simulate/fleet_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/simulate/event_queue.h"
#include "client/simulate/fleet_kernel.h"
#include "client/simulate/fleet_placer.h"
#include "client/simulate/fleet_state.h"
#include "client/simulate/flow_network.h"
#include "client/simulate/random.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr double kFleetUs = 1e-6;

enum class FleetEvent : uint8_t { kArrive, kSend, kBatch, kRecomputed };
enum class FlowUse : uint8_t { kQueries, kPartials, kRows };

class FleetRun {
 public:
  FleetRun(const FleetSpec& spec, const FabricTree& tree, const FleetPlacement& placement,
           const std::vector<FleetRequest>& requests, absl::FunctionRef<void()> done)
      : spec_(spec),
        tree_(tree),
        placement_(placement),
        requests_(requests),
        done_(done),
        contexts_(requests.size()),
        placer_(&spec, &tree, &placement),
        loads_(spec.nodes),
        ecmp_(SimRandom::Mix(spec.seed) ^ 4),
        noise_(SimRandom::Mix(spec.seed) ^ 5),
        layers_(spec.geometry.layers),
        measured_from_(
            static_cast<size_t>(spec.warmup_share * static_cast<double>(requests.size()))) {
    for (uint32_t node = 0; node < spec.nodes; ++node)
      nodes_.push_back(std::make_unique<FleetNode>(&spec, &placement, node));
  }

  void Run();
  FleetStats Stats();

 private:
  void Arrive(uint32_t request);
  void Admit(uint32_t node);
  void Start(uint32_t index);
  void BeginStep(uint32_t index);
  void AddVisit(uint32_t index, const FleetPlacement::Group& group);
  void Send(uint32_t index);
  void StartBatches(uint32_t node);
  void EndBatch(uint32_t batch);
  void EndPart(uint32_t index);
  void EndStep(uint32_t index);
  void EndContext(uint32_t index);
  void StartCopies(uint32_t node);
  void EndCopy(uint32_t job);
  void Flow(uint32_t from, uint32_t to, double bytes, FlowUse use, uint32_t index);
  void EndFlow(FlowNetwork::FlowId flow);
  bool UsesCached(const FleetContext& context, uint32_t chunk) const;
  FleetStepCost CostOf(FleetContext& context);

  const FleetSpec& spec_;
  const FabricTree& tree_;
  const FleetPlacement& placement_;
  const std::vector<FleetRequest>& requests_;
  absl::FunctionRef<void()> done_;
  std::vector<std::unique_ptr<FleetNode>> nodes_;
  std::vector<FleetContext> contexts_;  // one for each request
  FleetPool<FleetVisit> visits_;
  FleetPool<FleetBatch> batches_;
  FleetPool<FleetCopyJob> copies_;
  FleetPlacer placer_;
  std::vector<FleetLoad> loads_;  // by node
  SimRandom ecmp_, noise_;
  FlowNetwork network_;
  EventQueue<FleetEvent> events_;
  std::vector<std::pair<FlowUse, uint32_t>> use_of_flow_;
  std::vector<KernelWork> work_;
  std::vector<std::pair<uint32_t, double>> scratch_;
  const double layers_;
  const size_t measured_from_;
  double now_s_ = 0;
  size_t open_ = 0;
  std::vector<float> token_ms_;
  uint64_t chunks_attended_ = 0, chunks_cached_ = 0, chunks_own_ = 0;
  FleetStats stats_;
};

void FleetRun::Run() {
  tree_.AddTo(network_);
  for (uint32_t i = 0; i < requests_.size(); ++i)
    events_.Push(requests_[i].arrival_s, FleetEvent::kArrive, i);
  open_ = requests_.size();
  while (open_ > 0) {
    ++stats_.events;
    const auto flow = network_.NextEnd();
    if (flow && (events_.empty() || flow->at_s <= events_.Next().at_s)) {
      now_s_ = std::max(now_s_, flow->at_s);
      EndFlow(flow->flow);
      continue;
    }
    CKV_CHECK(!events_.empty());
    const auto event = events_.Pop();
    now_s_ = event.at_s;
    switch (event.kind) {
      case FleetEvent::kArrive:
        Arrive(event.index);
        break;
      case FleetEvent::kSend:
        Send(event.index);
        break;
      case FleetEvent::kBatch:
        EndBatch(event.index);
        break;
      case FleetEvent::kRecomputed:
        EndCopy(event.index);
        break;
    }
  }
}

void FleetRun::Arrive(uint32_t request) {
  FleetContext& context = contexts_[request];
  context.node = placer_.Place(requests_[request].document, loads_);
  context.steps_left = context.watch.steps = requests_[request].steps;
  nodes_[context.node]->waiting.push_back(request);
  ++loads_[context.node].waiting;
  Admit(context.node);
}

void FleetRun::Admit(uint32_t id) {
  FleetNode& node = *nodes_[id];
  while (loads_[id].running < spec_.batch_max && !node.waiting.empty()) {
    const uint32_t index = node.waiting.front();
    FleetContext& context = contexts_[index];
    if (context.far_groups.empty() && context.own_chunks.empty()) {
      for (const auto& group : placement_.groups_of_document[requests_[index].document]) {
        const auto& holders = placement_.holders_of_group[group.id];
        if (std::ranges::find(holders, id) == holders.end()) {
          context.far_groups.push_back(group);
          context.watch.chunks.insert(context.watch.chunks.end(), group.chunks.begin(),
                                      group.chunks.end());
        } else {
          context.own_chunks.insert(context.own_chunks.end(), group.chunks.begin(),
                                    group.chunks.end());
        }
      }
      context.watch.own_share =
          static_cast<double>(context.own_chunks.size()) / spec_.document_chunks;
    }
    if (spec_.holds_first() && !node.prefetch.Hold(context.watch.chunks, now_s_)) break;
    node.waiting.pop_front();
    --loads_[id].waiting;
    ++loads_[id].running;
    Start(index);
  }
  StartCopies(id);
}

FleetStepCost FleetRun::CostOf(FleetContext& context) {
  if (context.far_groups.empty()) return {};
  return nodes_[context.node]->view.CostOf(context.far_groups, now_s_);
}

void FleetRun::Start(uint32_t index) {
  FleetContext& context = contexts_[index];
  FleetNode& node = *nodes_[context.node];
  if (spec_.holds_first() && !node.prefetch.AllCached(context.watch.chunks)) {
    node.loading.push_back(index);
    return;
  }
  if (spec_.policy == FleetPolicy::kAuto)
    node.prefetch.Update(context.watch, 0, CostOf(context), now_s_);
  BeginStep(index);
}

bool FleetRun::UsesCached(const FleetContext& context, uint32_t chunk) const {
  return spec_.policy != FleetPolicy::kRoute && context.watch.cached_pays &&
         nodes_[context.node]->prefetch.IsCached(chunk);
}

void FleetRun::AddVisit(uint32_t index, const FleetPlacement::Group& group) {
  FleetContext& context = contexts_[index];
  const uint32_t holder = nodes_[context.node]->view.ChooseRoute(group, now_s_);
  for (const uint32_t id : context.visits) {
    if (visits_[id].node != holder) continue;
    visits_[id].chunks.insert(visits_[id].chunks.end(), group.chunks.begin(), group.chunks.end());
    return;
  }
  const uint32_t id = visits_.Add();
  visits_[id] = {.context = index, .node = holder, .chunks = group.chunks};
  context.visits.push_back(id);
}

void FleetRun::BeginStep(uint32_t index) {
  FleetContext& context = contexts_[index];
  context.step_s = now_s_;
  context.wait_s = 0;
  context.visits.clear();
  std::vector<uint32_t> own = context.own_chunks;
  chunks_own_ += own.size();
  for (const FleetPlacement::Group& group : context.far_groups) {
    FleetPlacement::Group routed = {.id = group.id, .chunks = {}};
    for (const uint32_t chunk : group.chunks) {
      (UsesCached(context, chunk) ? own : routed.chunks).push_back(chunk);
    }
    if (!routed.chunks.empty()) AddVisit(index, routed);
  }
  chunks_attended_ += spec_.document_chunks;
  chunks_cached_ += own.size() - context.own_chunks.size();
  context.all_routed = own.size() == context.own_chunks.size();
  context.parts = static_cast<uint32_t>(context.visits.size()) + (own.empty() ? 0 : 1);
  if (!context.visits.empty()) {
    const double merge_us = static_cast<double>(context.visits.size()) * spec_.query_rows *
                            spec_.costs.here.merge_per_row_us;
    events_.Push(now_s_ + layers_ * (spec_.costs.probe_us + merge_us) * kFleetUs, FleetEvent::kSend,
                 index);
  }
  if (own.empty()) return;
  const uint32_t id = visits_.Add();
  visits_[id] = {
      .context = index, .node = context.node, .chunks = std::move(own), .queued_s = now_s_};
  nodes_[context.node]->kernel.Add({.visit = id, .own = true});
  StartBatches(context.node);
}

void FleetRun::Send(uint32_t index) {
  FleetContext& context = contexts_[index];
  const double bytes = layers_ * spec_.query_rows * spec_.geometry.query_row_bytes();
  for (const uint32_t id : context.visits) {
    nodes_[context.node]->view.Sent(visits_[id].node);
    Flow(context.node, visits_[id].node, bytes, FlowUse::kQueries, id);
    stats_.routed_bytes += bytes;
  }
}

void FleetRun::StartBatches(uint32_t id) {
  FleetNode& node = *nodes_[id];
  std::vector<FleetKernel::Job> jobs;
  while (node.kernel.Begin(jobs)) {
    work_.clear();
    for (const FleetKernel::Job& job : jobs) {
      FleetVisit& visit = visits_[job.visit];
      visit.wait_s = now_s_ - visit.queued_s;
      work_.push_back({static_cast<double>(spec_.query_rows), visit.chunks});
    }
    const bool own = jobs.front().own;
    const ComputeCurve& curve = own ? spec_.costs.here.attend : spec_.costs.compute;
    const uint32_t index = batches_.Add();
    FleetBatch& batch = batches_[index];
    batch.jobs = jobs;
    ListRuns(work_, spec_.chunk_tokens, scratch_, batch.runs);
    const double us = layers_ * BatchUs(curve, batch.rows(spec_), batch.runs);
    batch.node = id;
    batch.own = own;
    batch.busy_s = us * kFleetUs;
    events_.Push(now_s_ + us * kFleetUs, FleetEvent::kBatch, index);
  }
}

void FleetRun::EndBatch(uint32_t index) {
  FleetBatch& batch = batches_[index];
  const uint32_t id = batch.node;
  nodes_[id]->kernel.End(batch.busy_s);
  const double bytes = layers_ * spec_.query_rows * spec_.geometry.partial_row_bytes(false);
  // The time without the wait: LocalAttend measures from when the stream is idle.
  if (batch.own && spec_.learns_here) {
    nodes_[id]->view.AttendedHere(batch.rows(spec_), batch.runs, batch.busy_s / kFleetUs / layers_,
                                  now_s_);
  }
  for (const FleetKernel::Job& job : batch.jobs) {
    const FleetVisit& visit = visits_[job.visit];
    if (!batch.own) {
      Flow(id, contexts_[visit.context].node, bytes, FlowUse::kPartials, job.visit);
      stats_.routed_bytes += bytes;
      continue;
    }
    EndPart(job.visit);
  }
  batches_.Drop(index);
  StartBatches(id);
}

void FleetRun::EndPart(uint32_t id) {
  const uint32_t index = visits_[id].context;
  FleetContext& context = contexts_[index];
  context.wait_s = std::max(context.wait_s, visits_[id].wait_s);
  visits_.Drop(id);
  if (--context.parts == 0) EndStep(index);
}

void FleetRun::EndStep(uint32_t index) {
  FleetContext& context = contexts_[index];
  FleetNode& node = *nodes_[context.node];
  const double step_s = now_s_ - context.step_s;
  if (context.first_s == 0) context.first_s = now_s_;
  if (index >= measured_from_) token_ms_.push_back(static_cast<float>(step_s * 1e3));
  if (spec_.policy == FleetPolicy::kAuto) {
    if (context.all_routed && !context.visits.empty()) {
      // A context keeps the second least of 16 calls (BestWindow). Waits within a step are taken as
      // exponentially distributed, so the second least of them is 1/16 + 1/15 of their mean.
      const double least = noise_.Exponential(1.0 / 16) + noise_.Exponential(1.0 / 15);
      context.watch.routed_us = (step_s - context.wait_s * (1 - std::min(1.0, least))) / kFleetUs;
    }
    node.prefetch.Update(context.watch, 1, CostOf(context), now_s_);
    StartCopies(context.node);
  }
  if (--context.steps_left > 0) return BeginStep(index);
  EndContext(index);
}

void FleetRun::EndContext(uint32_t index) {
  FleetContext& context = contexts_[index];
  FleetNode& node = *nodes_[context.node];
  context.last_s = now_s_;
  if (spec_.policy == FleetPolicy::kAuto) node.prefetch.Close(context.watch);
  if (spec_.holds_first()) node.prefetch.Release(context.watch.chunks, now_s_);
  --loads_[context.node].running;
  --open_;
  done_();
  Admit(context.node);
}

void FleetRun::StartCopies(uint32_t id) {
  FleetNode& node = *nodes_[id];
  while (const std::optional<FleetCopy> copy = node.prefetch.NextCopy(now_s_)) {
    const uint32_t job = copies_.Add();
    copies_[job] = {.node = id, .copy = *copy, .begin_s = now_s_};
    ++loads_[id].copies;
    ++stats_.copies;
    if (copy->primitive == Primitive::kFetch) {
      const auto bytes = static_cast<double>(spec_.chunk_bytes());
      stats_.fetched_bytes += bytes;
      Flow(copy->holder, id, bytes, FlowUse::kRows, job);
      continue;
    }
    const double us = spec_.chunk_tokens * layers_ * *spec_.costs.here.prefill_per_token_layer_us;
    node.prefill_free_s = std::max(node.prefill_free_s, now_s_) + us * kFleetUs;
    stats_.recomputed_tokens += spec_.chunk_tokens;
    events_.Push(node.prefill_free_s, FleetEvent::kRecomputed, job);
  }
  for (const FleetPrefetch::Change& change : node.prefetch.changes())
    placer_.Changed(id, change.chunk, change.cached);
  node.prefetch.changes().clear();
}

void FleetRun::EndCopy(uint32_t index) {
  const FleetCopyJob job = copies_[index];
  copies_.Drop(index);
  FleetNode& node = *nodes_[job.node];
  --loads_[job.node].copies;
  if (job.copy.primitive == Primitive::kFetch) {
    node.view.Fetched(job.copy.holder, static_cast<double>(spec_.chunk_bytes()),
                      (now_s_ - job.begin_s) / kFleetUs);
  }
  node.prefetch.EndCopy(job.copy, now_s_);
  StartCopies(job.node);
  std::vector<uint32_t> ready;
  std::erase_if(node.loading, [&](uint32_t index_of_loading) {
    const bool all = node.prefetch.AllCached(contexts_[index_of_loading].watch.chunks);
    if (all) ready.push_back(index_of_loading);
    return all;
  });
  for (const uint32_t one : ready) BeginStep(one);
}

void FleetRun::Flow(uint32_t from, uint32_t to, double bytes, FlowUse use, uint32_t index) {
  std::array<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path{};
  const size_t links = tree_.Path(from, 0, to, 0, ecmp_, path);
  const auto flow = network_.Start(now_s_, bytes, std::span(path).first(links));
  if (flow >= use_of_flow_.size()) use_of_flow_.resize(flow + 1);
  use_of_flow_[flow] = {use, index};
}

void FleetRun::EndFlow(FlowNetwork::FlowId flow) {
  const auto [use, index] = use_of_flow_[flow];
  network_.End(now_s_, flow);
  if (use == FlowUse::kRows) return EndCopy(index);
  FleetVisit& visit = visits_[index];
  if (use == FlowUse::kQueries) {
    visit.queued_s = now_s_;
    nodes_[visit.node]->kernel.Add({.visit = index, .own = false});
    return StartBatches(visit.node);
  }
  nodes_[contexts_[visit.context].node]->view.Replied(visit.node, visit.wait_s / kFleetUs / layers_,
                                                      now_s_);
  EndPart(index);
}

FleetStats FleetRun::Stats() {
  std::vector<float> latency, first;
  for (size_t i = measured_from_; i < requests_.size(); ++i) {
    latency.push_back(static_cast<float>(1e3 * (contexts_[i].last_s - requests_[i].arrival_s)));
    first.push_back(static_cast<float>(1e3 * (contexts_[i].first_s - requests_[i].arrival_s)));
  }
  stats_.requests = latency.size();
  stats_.latency_ms = QuantilesOf(latency);
  stats_.first_ms = QuantilesOf(first);
  stats_.token_ms = QuantilesOf(token_ms_);
  stats_.seconds = now_s_;
  const double attended = std::max(1.0, static_cast<double>(chunks_attended_));
  stats_.cached_share = static_cast<double>(chunks_cached_) / attended;
  stats_.own_share = static_cast<double>(chunks_own_) / attended;
  for (const auto& node : nodes_) {
    stats_.evictions += node->prefetch.evictions();
    const double share = node->kernel.busy_s() / (spec_.workers * now_s_);
    stats_.kernel_share += share / spec_.nodes;
    stats_.kernel_share_max = std::max(stats_.kernel_share_max, share);
  }
  std::vector<FlowNetwork::LinkCapacity> links;
  tree_.AppendCapacities(1, 1, links);
  for (const FlowNetwork::LinkCapacity& link : links) {
    const double bytes = network_.BytesOf(link.link);
    const double share = bytes / (link.bytes_per_s * now_s_);
    stats_.link_bytes += bytes;
    stats_.nic_share += share / static_cast<double>(links.size());
    stats_.nic_share_max = std::max(stats_.nic_share_max, share);
  }
  return stats_;
}

}  // namespace

FleetQuantiles QuantilesOf(std::vector<float>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return static_cast<double>(values[std::clamp<size_t>(rank, 1, values.size()) - 1]);
  };
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) /
                  static_cast<double>(values.size()),
          .p50 = at(0.5),
          .p99 = at(0.99)};
}

absl::StatusOr<FleetStats> RunFleet(const FleetSpec& spec,
                                    const std::vector<FleetRequest>& requests,
                                    const FabricTree* tree, absl::FunctionRef<void()> done) {
  CKV_RETURN_IF_ERROR(ValidateFleet(spec));
  CKV_ASSIGN_OR_RETURN(const FleetPlacement placement, PlaceFleet(spec));
  CKV_ASSIGN_OR_RETURN(const FabricTree made, FabricTree::Create(FabricOf(spec)));
  if (tree == nullptr) tree = &made;
  if (tree->server_count() != spec.nodes) {
    return absl::InvalidArgumentError(absl::StrFormat("servers: %d, but the fleet has %d nodes",
                                                      tree->server_count(), spec.nodes));
  }
  FleetRun run(spec, *tree, placement, requests, done);
  run.Run();
  return run.Stats();
}

}  // namespace ckv
