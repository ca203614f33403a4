// NetkvRun holds the state of one run. Run takes the next event, of the queue or of the network,
// until all requests have their first token. Each event has a function of its name.

#include "client/simulate/netkv_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <span>

#include "absl/status/status.h"
#include "client/simulate/block_cache.h"
#include "client/simulate/event_queue.h"
#include "client/simulate/flow_network.h"
#include "client/simulate/random.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr double kUs = 1e-6;

enum class NetkvEvent : uint8_t { kArrive, kPrefilled, kLanded, kStepEnd, kBackground, kOracle };

struct SimInstance {
  uint32_t server = 0, nic = 0;
};

struct PrefillInstance {
  SimInstance at;
  std::array<double, FabricTree::kTiersMax> in_flight{};
};

struct DecodeInstance {
  struct Running {
    uint32_t request = 0;
    double tokens_left = 0;
  };
  SimInstance at;
  double used_bytes = 0;  // reserved by requests that are coming or here
  double incoming = 0;    // requests whose transfer has begun
  BlockCache cache;
  std::deque<uint32_t> waiting;
  std::vector<Running> batch;
  size_t joined = 0;  // the last ones of `batch`, which have no token yet
  bool stepping = false;
};

struct RequestState {
  uint32_t prefill = 0, decode = 0, tier = 0;
  double bytes = 0;  // reserved
  double hit_tokens = 0;
  double sent_s = 0, transfer_s = 0, tbt_s = 0, ttft_s = 0;
  bool rejected = false;
};

double QuantileOf(const std::vector<double>& sorted, double share) {
  const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted.empty() ? 0 : sorted[std::clamp<size_t>(at, 1, sorted.size()) - 1];
}

double MeanOf(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

class NetkvRun {
 public:
  NetkvRun(const NetkvSpec& spec, const FabricTree& tree, const std::vector<SimRequest>& requests)
      : spec_(spec),
        system_(spec.system),
        tree_(tree),
        requests_(requests),
        states_(requests.size()),
        chooser_(spec.policy, spec.weights),
        ecmp_(SimRandom::Mix(spec.seed) ^ 2),
        noise_(SimRandom::Mix(spec.seed) ^ 3) {}

  absl::Status Place();
  void Run();
  NetkvStats Stats() const;

 private:
  double IterationS(size_t batch) const {
    return (system_.iteration_base_us + system_.iteration_request_us * static_cast<double>(batch)) *
           kUs;
  }
  void Handle(NetkvEvent kind, uint32_t index);
  void Arrive(uint32_t request);
  void Prefilled(uint32_t request);
  void Send(uint32_t request, size_t chosen);
  void Landed(uint32_t request);
  void StepBegin(uint32_t decode);
  void StepEnd(uint32_t decode);
  void Background();
  const std::vector<RankCandidate>& Candidates(uint32_t request);

  const NetkvSpec& spec_;
  const NetkvSystem& system_;
  const FabricTree& tree_;
  const std::vector<SimRequest>& requests_;
  std::vector<RequestState> states_;
  std::vector<PrefillInstance> prefills_;
  std::vector<DecodeInstance> decodes_;
  DecodeChooser chooser_;
  SimRandom ecmp_, noise_;
  FlowNetwork network_;
  EventQueue<NetkvEvent> events_;
  std::vector<uint32_t> request_of_flow_;
  std::vector<RankCandidate> candidates_;
  // By tier: what the background takes of the links of that tier, and what the oracle last said.
  std::array<double, FabricTree::kTiersMax> background_{}, oracle_{};
  double now_s_ = 0;
  size_t open_ = 0;  // requests without a first token
};

absl::Status NetkvRun::Place() {
  std::vector<uint32_t> racks;
  for (uint32_t server = 0; server < tree_.server_count(); ++server) {
    const uint32_t rack = tree_.GroupOf(server, tree_.tier_count() > 1 ? 1 : 0);
    // The servers of a rack may be listed in any order.
    const auto found = std::ranges::find(racks, rack);
    const auto number = static_cast<size_t>(found - racks.begin());
    if (found == racks.end()) racks.push_back(rack);
    const bool prefills = number % system_.racks_per_prefill_rack == 0;
    for (uint32_t nic = 0; nic < system_.instances_per_server; ++nic) {
      if (prefills)
        prefills_.push_back({.at = {server, nic}});
      else
        decodes_.emplace_back().at = {server, nic};
    }
  }
  if (prefills_.empty() || decodes_.empty()) {
    return absl::InvalidArgumentError(
        "the topology has one rack; prefill and decode need a rack each");
  }
  return absl::OkStatus();
}

void NetkvRun::Run() {
  tree_.AddTo(network_);
  open_ = requests_.size();
  Background();
  oracle_ = background_;
  events_.Push(system_.oracle_period_s, NetkvEvent::kOracle, 0);
  for (uint32_t i = 0; i < requests_.size(); ++i)
    events_.Push(requests_[i].arrival_s, NetkvEvent::kArrive, i);
  while (open_ > 0) {
    const auto end = network_.NextEnd();
    if (end && end->at_s <= events_.Next().at_s) {
      now_s_ = end->at_s;
      const uint32_t request = request_of_flow_[end->flow];
      network_.End(now_s_, end->flow);
      events_.Push(now_s_ + tree_.LatencyUs(states_[request].tier) * kUs, NetkvEvent::kLanded,
                   request);
      continue;
    }
    const auto event = events_.Pop();
    now_s_ = event.at_s;
    Handle(event.kind, event.index);
  }
}

void NetkvRun::Handle(NetkvEvent kind, uint32_t index) {
  switch (kind) {
    case NetkvEvent::kArrive:
      return Arrive(index);
    case NetkvEvent::kPrefilled:
      return Prefilled(index);
    case NetkvEvent::kLanded:
      return Landed(index);
    case NetkvEvent::kStepEnd:
      return StepEnd(index);
    case NetkvEvent::kBackground:
      return Background();
    case NetkvEvent::kOracle:
      oracle_ = background_;
      return events_.Push(now_s_ + system_.oracle_period_s, NetkvEvent::kOracle, 0);
  }
}

// The background of each tier moves by itself; that of tier t is on the links at level t.
void NetkvRun::Background() {
  std::vector<FlowNetwork::LinkCapacity> capacities;
  const double spread = std::min(system_.background_spread, system_.background);
  for (uint32_t tier = 1; tier < tree_.tier_count(); ++tier) {
    background_[tier] = system_.background + spread * (2 * noise_.Share() - 1);
    tree_.AppendCapacities(tier, 1 - background_[tier], capacities);
  }
  if (system_.background > 0) {
    network_.SetCapacities(now_s_, capacities);
    events_.Push(now_s_ + system_.background_period_s, NetkvEvent::kBackground, 0);
  }
}

void NetkvRun::Arrive(uint32_t request) {
  states_[request].prefill = request % static_cast<uint32_t>(prefills_.size());
  events_.Push(now_s_ + system_.prefill_base_s +
                   system_.prefill_s_per_token * requests_[request].input_tokens,
               NetkvEvent::kPrefilled, request);
}

const std::vector<RankCandidate>& NetkvRun::Candidates(uint32_t request) {
  const PrefillInstance& from = prefills_[states_[request].prefill];
  candidates_.clear();
  for (const DecodeInstance& decode : decodes_) {
    RankCandidate& one = candidates_.emplace_back();
    one.matched_tokens = std::min(
        requests_[request].input_tokens,
        static_cast<double>(decode.cache.Match(requests_[request].blocks) * kSimBlockTokens));
    one.free_bytes = system_.memory_bytes - decode.used_bytes;
    one.queued = static_cast<double>(decode.waiting.size()) + decode.incoming;
    one.batch = static_cast<double>(decode.batch.size());
    one.batch_max = system_.batch_max;
    one.iteration_base_us = system_.iteration_base_us;
    one.iteration_request_us = system_.iteration_request_us;
    const uint32_t tier = tree_.Tier(from.at.server, decode.at.server);
    one.path = {.tier = tier,
                .bandwidth_bytes_per_s = tree_.Bandwidth(from.at.server, decode.at.server),
                .latency_us = tree_.LatencyUs(tier),
                .congestion = oracle_[tier],
                .in_flight = from.in_flight[tier]};
  }
  return candidates_;
}

void NetkvRun::Prefilled(uint32_t request) {
  const double tokens = requests_[request].input_tokens;
  const auto chosen = chooser_.Choose({.tokens = tokens,
                                       .cache_bytes = tokens * system_.kv_bytes_per_token,
                                       .reserve_bytes = system_.reserve_bytes},
                                      Candidates(request));
  if (chosen) return Send(request, *chosen);
  states_[request].rejected = true;
  --open_;
}

void NetkvRun::Send(uint32_t request, size_t chosen) {
  RequestState& state = states_[request];
  PrefillInstance& from = prefills_[state.prefill];
  DecodeInstance& to = decodes_[chosen];
  const SimRequest& asked = requests_[request];
  state.decode = static_cast<uint32_t>(chosen);
  state.tier = candidates_[chosen].path.tier;
  state.hit_tokens = candidates_[chosen].matched_tokens;
  state.bytes = (asked.input_tokens + asked.output_tokens) * system_.kv_bytes_per_token;
  state.sent_s = now_s_;
  to.used_bytes += state.bytes;
  ++to.incoming;
  ++from.in_flight[state.tier];
  // Cached blocks get the memory that requests leave.
  const double block_bytes = kSimBlockTokens * system_.kv_bytes_per_token;
  to.cache.Shrink(
      static_cast<size_t>(std::max(0.0, system_.memory_bytes - to.used_bytes) / block_bytes));
  const double bytes = (asked.input_tokens - state.hit_tokens) * system_.kv_bytes_per_token;
  if (bytes <= 0) {
    return events_.Push(now_s_ + tree_.LatencyUs(state.tier) * kUs, NetkvEvent::kLanded, request);
  }
  std::array<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path{};
  const size_t links =
      tree_.Path(from.at.server, from.at.nic, to.at.server, to.at.nic, ecmp_, path);
  const auto flow = network_.Start(now_s_, bytes, std::span(path).first(links));
  if (flow >= request_of_flow_.size()) request_of_flow_.resize(flow + 1);
  request_of_flow_[flow] = request;
}

void NetkvRun::Landed(uint32_t request) {
  RequestState& state = states_[request];
  state.transfer_s = now_s_ - state.sent_s;
  --prefills_[state.prefill].in_flight[state.tier];
  DecodeInstance& decode = decodes_[state.decode];
  --decode.incoming;
  decode.cache.Use(requests_[request].blocks);
  decode.waiting.push_back(request);
  if (!decode.stepping) StepBegin(state.decode);
}

void NetkvRun::StepBegin(uint32_t index) {
  DecodeInstance& decode = decodes_[index];
  while (!decode.waiting.empty() && decode.batch.size() < system_.batch_max) {
    const uint32_t request = decode.waiting.front();
    decode.waiting.pop_front();
    decode.batch.push_back({request, requests_[request].output_tokens});
    states_[request].tbt_s = -1;
  }
  decode.stepping = !decode.batch.empty();
  if (!decode.stepping) return;
  const double step_s = IterationS(decode.batch.size());
  for (const DecodeInstance::Running& one : decode.batch) {
    if (states_[one.request].tbt_s < 0) states_[one.request].tbt_s = step_s;
  }
  events_.Push(now_s_ + step_s, NetkvEvent::kStepEnd, index);
}

void NetkvRun::StepEnd(uint32_t index) {
  DecodeInstance& decode = decodes_[index];
  std::erase_if(decode.batch, [&](DecodeInstance::Running& one) {
    RequestState& state = states_[one.request];
    if (state.ttft_s == 0) {
      state.ttft_s = now_s_ - requests_[one.request].arrival_s;
      --open_;
    }
    if (--one.tokens_left > 0) return false;
    decode.used_bytes -= state.bytes;
    return true;
  });
  StepBegin(index);
}

NetkvStats NetkvRun::Stats() const {
  NetkvStats stats;
  std::vector<double> ttft, tbt, transfer;
  double within = 0, tokens = 0, hits = 0, last_s = spec_.warmup_s;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const RequestState& state = states_[i];
    if (requests_[i].arrival_s < spec_.warmup_s) continue;
    last_s = std::max(last_s, requests_[i].arrival_s);
    ++stats.requests;
    if (state.rejected) {
      ++stats.rejected;
      continue;
    }
    ttft.push_back(1e3 * state.ttft_s);
    tbt.push_back(1e3 * state.tbt_s);
    transfer.push_back(1e3 * state.transfer_s);
    within += state.ttft_s <= spec_.slo_s ? 1 : 0;
    tokens += requests_[i].input_tokens;
    hits += state.hit_tokens;
    ++stats.tier_share[state.tier];
  }
  for (double& share : stats.tier_share) share /= std::max(1.0, static_cast<double>(ttft.size()));
  std::sort(ttft.begin(), ttft.end());
  std::sort(tbt.begin(), tbt.end());
  stats.ttft_ms_mean = MeanOf(ttft);
  stats.ttft_ms_p50 = QuantileOf(ttft, 0.5);
  stats.ttft_ms_p95 = QuantileOf(ttft, 0.95);
  stats.ttft_ms_p99 = QuantileOf(ttft, 0.99);
  stats.tbt_ms_mean = MeanOf(tbt);
  stats.tbt_ms_p95 = QuantileOf(tbt, 0.95);
  stats.transfer_ms_mean = MeanOf(transfer);
  stats.slo_share = within / std::max(1.0, static_cast<double>(stats.requests));
  stats.goodput_per_s = last_s > spec_.warmup_s ? within / (last_s - spec_.warmup_s) : 0;
  stats.hit_share = tokens > 0 ? hits / tokens : 0;
  for (uint32_t level = 1; level < tree_.tier_count(); ++level) {
    std::vector<FlowNetwork::LinkCapacity> links;
    tree_.AppendCapacities(level, 1, links);
    double carried = 0, capacity = 0;
    for (const FlowNetwork::LinkCapacity& link : links) {
      carried += network_.BytesOf(link.link);
      capacity += link.bytes_per_s;
    }
    stats.link_share[level] = now_s_ > 0 ? carried / capacity / now_s_ : 0;
  }
  return stats;
}

}  // namespace

absl::StatusOr<NetkvStats> RunNetkv(const NetkvSpec& spec, const FabricTree& tree,
                                    const std::vector<SimRequest>& requests) {
  NetkvRun run(spec, tree, requests);
  CKV_RETURN_IF_ERROR(run.Place());
  run.Run();
  return run.Stats();
}

}  // namespace ckv
