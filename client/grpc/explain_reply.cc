#include "client/grpc/explain_reply.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "client/holders/replica_choice.h"

namespace ckv {
namespace {

void SetCost(const CostBreakdown& cost, Primitive primitive, v1::PrimitiveCost* message) {
  message->set_primitive(std::string(PrimitiveName(primitive)));
  message->set_offered(cost.offered);
  message->set_reason(cost.why_not);
  message->set_total_us(cost.total_us);
  const std::pair<const char*, double> terms[] = {
      {"probe", cost.probe_us},   {"transfer", cost.transfer_us}, {"compute", cost.compute_us},
      {"queue", cost.queue_us},   {"shared", cost.shared_us},     {"merge", cost.merge_us},
      {"splice", cost.splice_us}, {"evict", cost.evict_us},       {"prefill", cost.prefill_us}};
  for (const auto& [name, microseconds] : terms) {
    v1::CostTerm* term = message->add_terms();
    term->set_name(name);
    term->set_microseconds(microseconds);
  }
}

// Sets the choice, the runner-up and every cost of either reply.
template <typename Reply>
void SetDecision(const Decision& decision, Reply& reply) {
  if (decision.choice) reply.set_choice(std::string(PrimitiveName(*decision.choice)));
  if (decision.runner_up) reply.set_runner_up(std::string(PrimitiveName(*decision.runner_up)));
  for (size_t i = 0; i < kPrimitiveCount; ++i)
    SetCost(decision.costs[i], static_cast<Primitive>(i), reply.add_costs());
}

void AddInputs(const Explanation& explanation, v1::ExplainReply& reply) {
  for (size_t i = 0; i < kKnobCount; ++i) {
    const auto knob = static_cast<Knob>(i);
    const auto value = KnobValue(explanation.input, knob);
    if (!value) continue;
    v1::ExplainInput* message = reply.add_inputs();
    message->set_name(std::string(KnobName(knob)));
    message->set_unit(std::string(KnobUnit(knob)));
    message->set_value(*value);
    const auto flip = std::find_if(explanation.flips.begin(), explanation.flips.end(),
                                   [knob](const Flip& f) { return f.knob == knob; });
    if (flip == explanation.flips.end()) continue;
    message->set_flips(true);
    message->set_flip_value(flip->to);
    if (flip->choice) message->set_flip_choice(std::string(PrimitiveName(*flip->choice)));
    message->set_sentence(DescribeFlip(*flip));
  }
}

void AddHolders(const Explanation& explanation, std::span<const HolderView> holders,
                v1::ExplainReply& reply) {
  const std::vector<Candidate>& candidates = explanation.input.candidates;
  std::vector<RankedCandidate> ranked(candidates.size());
  RankCandidates(explanation.input, Primitive::kRoute, ranked);
  // The query is sent to the first holder of each group, and only once to one that is first in
  // several.
  absl::flat_hash_set<std::string> requested;
  std::optional<uint32_t> group;
  double least_us = 0;
  for (const RankedCandidate& place : ranked) {
    const Candidate& candidate = candidates[place.index];
    const bool first = group != candidate.group;
    if (first) least_us = place.cost.total_us;
    if (first) requested.insert(explanation.holders[place.index].name);
    group = candidate.group;
    v1::ExplainHolder* message = reply.add_holders();
    message->set_group(candidate.group);
    message->set_requested(first && place.cost.why_not == nullptr);
    message->set_takes_turns(!first && place.cost.why_not == nullptr &&
                             place.cost.total_us <= least_us * (1 + ReplicaChooser::kEqualMax));
    message->set_name(explanation.holders[place.index].name);
    message->set_token_share(candidate.token_share);
    if (candidate.fabric) {
      message->set_t_probe_us(candidate.fabric->t_probe_us);
      message->set_bandwidth_bytes_per_s(candidate.fabric->bandwidth_bytes_per_s);
    }
    message->set_route_us(place.cost.total_us);
    message->set_compute_factor(candidate.compute.live.compute);
    message->set_memory_factor(candidate.compute.live.memory);
    const auto view = std::find_if(holders.begin(), holders.end(), [&](const HolderView& holder) {
      return holder.member.id == explanation.holders[place.index];
    });
    if (view != holders.end() && view->model_error) message->set_model_error(*view->model_error);
    if (!candidate.path) continue;
    message->set_has_path(true);
    message->set_tier(candidate.path->tier);
    message->set_tier_bandwidth_bytes_per_s(candidate.path->bandwidth_bytes_per_s);
    message->set_congestion(candidate.path->congestion);
  }
  // Each gets all query rows, and answers for each.
  reply.set_route_holder_count(static_cast<uint32_t>(requested.size()));
  reply.set_route_bytes_per_holder(explanation.decision.route_bytes);
  reply.set_route_bytes(explanation.decision.route_bytes * requested.size());
}

}  // namespace

void FillExplainReply(const Explanation& explanation, std::span<const HolderView> holders,
                      v1::ExplainReply& reply) {
  const Decision& decision = explanation.decision;
  SetDecision(decision, reply);
  reply.set_tokens(explanation.input.tokens);
  reply.set_cached_tokens(explanation.input.cached_tokens);
  reply.set_flips(explanation.summary);
  if (explanation.route_ratio) reply.set_route_ratio(*explanation.route_ratio);
  if (explanation.cached_ratio) reply.set_cached_ratio(*explanation.cached_ratio);
  for (const std::string& doubt : explanation.doubts) reply.add_doubts(doubt);
  reply.set_fetch_bytes(decision.fetch_bytes);
  AddInputs(explanation, reply);
  AddHolders(explanation, holders, reply);
}

void FillEstimateReply(std::span<const GroupEstimate> estimates, const Corpus& corpus,
                       v1::EstimateReply& reply) {
  for (const GroupEstimate& estimate : estimates) {
    v1::GroupEstimate& group = *reply.add_groups();
    const ChunkPlacement& first = corpus.chunks[estimate.first_chunk];
    for (const HolderId& holder : first.holders()) group.add_holders(holder.name);
    for (const HolderId& holder : first.leased()) group.add_holders(holder.name);
    group.set_first_chunk(estimate.first_chunk);
    group.set_chunk_count(estimate.chunk_count);
    group.set_tokens(estimate.tokens);
    group.set_cached_tokens(estimate.cached_tokens);
    SetDecision(estimate.decision, group);
  }
}

}  // namespace ckv
