// Estimates and explanations, as JSON.
//
// ckv_estimate and ckv_explain work on the caller's thread, in the same order: Take checks and
// copies the arguments; Requester::Estimate or Requester::Explain computes; the result becomes
// JSON, in memory that ckv_text_free frees. After an error, the caller's pointer is null.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/bindings/c/caller_values.h"
#include "client/bindings/c/ckv_advice.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "client/cost/predicate.h"
#include "client/cost/what_if.h"
#include "client/estimate.h"
#include "client/explanation.h"
#include "client/live_prefill.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

using Json = nlohmann::json;

static_assert(std::has_unique_object_representations_v<ckv_advice_call>);

struct AdviceArguments {
  std::shared_ptr<const Corpus> corpus;
  std::vector<uint32_t> chunks;
  PartialDtype wire = PartialDtype::kBf16;
  ckv_advice_call call;

  absl::Status Take(const ckv_advice_call* from);
};

absl::Status AdviceArguments::Take(const ckv_advice_call* from) {
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_advice_call", from, call));
  if (call.corpus == nullptr) return Missing("ckv_advice_call: corpus");
  if ((call.chunks == nullptr) != (call.chunk_count == 0))
    return absl::InvalidArgumentError("ckv_advice_call: one of chunks and chunk_count alone");
  corpus = call.corpus->corpus;
  if (call.chunk_count > corpus->chunks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ckv_advice_call: %d chunks, the corpus has %d", call.chunk_count, corpus->chunks.size()));
  }
  // A list that is empty means all of them, to the requester too.
  chunks.assign(call.chunks, call.chunks + call.chunk_count);
  CKV_RETURN_IF_ERROR(ChunksOrAll(*corpus, chunks).status());
  if (call.query_rows == 0) call.query_rows = 1;
  return TakeWire(call.wire, wire);
}

Json NameOf(const std::optional<Primitive>& primitive) {
  return primitive ? Json(PrimitiveName(*primitive)) : Json(nullptr);
}

void AddDecision(const Decision& decision, Json& to) {
  to["choice"] = NameOf(decision.choice);
  to["runner_up"] = NameOf(decision.runner_up);
  to["route_bytes"] = decision.route_bytes;
  to["fetch_bytes"] = decision.fetch_bytes;
  Json& costs = to["costs"] = Json::array();
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    const CostBreakdown& cost = decision.costs[i];
    costs.push_back({{"primitive", PrimitiveName(static_cast<Primitive>(i))},
                     {"offered", cost.offered},
                     {"reason", cost.why_not},
                     {"total_us", cost.total_us},
                     {"terms_us",
                      {{"probe", cost.probe_us},
                       {"transfer", cost.transfer_us},
                       {"compute", cost.compute_us},
                       {"queue", cost.queue_us},
                       {"shared", cost.shared_us},
                       {"merge", cost.merge_us},
                       {"splice", cost.splice_us},
                       {"evict", cost.evict_us},
                       {"prefill", cost.prefill_us}}}});
  }
}

Json GroupOf(const GroupEstimate& estimate, const Corpus& corpus) {
  Json group = {{"first_chunk", estimate.first_chunk},
                {"chunk_count", estimate.chunk_count},
                {"tokens", estimate.tokens},
                {"cached_tokens", estimate.cached_tokens}};
  Json& holders = group["holders"] = Json::array();
  const ChunkPlacement& first = corpus.chunks[estimate.first_chunk];
  for (const HolderId& holder : first.holders()) holders.push_back(holder.name);
  for (const HolderId& holder : first.leased()) holders.push_back(holder.name);
  AddDecision(estimate.decision, group);
  return group;
}

Json InputsOf(const Explanation& explanation) {
  Json inputs = Json::array();
  for (size_t i = 0; i < kKnobCount; ++i) {
    const auto knob = static_cast<Knob>(i);
    const auto value = KnobValue(explanation.input, knob);
    if (!value) continue;
    Json input = {
        {"name", KnobName(knob)}, {"unit", KnobUnit(knob)}, {"value", *value}, {"flip", nullptr}};
    const auto flip = std::find_if(explanation.flips.begin(), explanation.flips.end(),
                                   [knob](const Flip& one) { return one.knob == knob; });
    if (flip != explanation.flips.end()) {
      input["flip"] = {
          {"value", flip->to}, {"choice", NameOf(flip->choice)}, {"sentence", DescribeFlip(*flip)}};
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

Json HoldersOf(const Explanation& explanation) {
  Json holders = Json::array();
  for (size_t i = 0; i < explanation.input.candidates.size(); ++i) {
    const Candidate& candidate = explanation.input.candidates[i];
    Json holder = {{"name", explanation.holders[i].name},
                   {"group", candidate.group},
                   {"token_share", candidate.token_share},
                   {"t_probe_us", nullptr},
                   {"bandwidth_bytes_per_s", nullptr}};
    if (candidate.fabric) {
      holder["t_probe_us"] = candidate.fabric->t_probe_us;
      holder["bandwidth_bytes_per_s"] = candidate.fabric->bandwidth_bytes_per_s;
    }
    holders.push_back(std::move(holder));
  }
  return holders;
}

absl::StatusOr<Json> EstimateOf(const Requester& requester, const AdviceArguments& arguments) {
  const ckv_advice_call& call = arguments.call;
  CKV_ASSIGN_OR_RETURN(const std::vector<GroupEstimate> estimates,
                       requester.Estimate({.corpus = arguments.corpus,
                                           .chunks = arguments.chunks,
                                           .query_rows = call.query_rows,
                                           .steps = call.steps,
                                           .agents = call.agents,
                                           .select = call.select,
                                           .wire = arguments.wire,
                                           .spliced = call.spliced != 0}));
  Json groups = Json::array();
  for (const GroupEstimate& estimate : estimates)
    groups.push_back(GroupOf(estimate, *arguments.corpus));
  return Json({{"groups", std::move(groups)}});
}

absl::StatusOr<Json> ExplanationOf(Requester& requester, const AdviceArguments& arguments) {
  ExplainCall call;
  call.corpus = arguments.corpus;
  call.chunks = arguments.chunks;
  call.query_rows = arguments.call.query_rows;
  call.steps = arguments.call.steps;
  call.agents = arguments.call.agents;
  call.select = arguments.call.select;
  call.wire = arguments.wire;
  call.spliced = arguments.call.spliced != 0;
  const uint64_t free = arguments.call.cache_free_tokens;
  if (free != 0) call.cache_room_tokens = free == CKV_CACHE_FULL ? 0 : free;
  call.deadline = AfterField(arguments.call.timeout_ns);
  CKV_ASSIGN_OR_RETURN(const Explanation explanation, requester.Explain(call));
  Json json = {{"summary", explanation.summary},
               {"tokens", explanation.input.tokens},
               {"cached_tokens", explanation.input.cached_tokens},
               {"route_ratio", nullptr},
               {"cached_ratio", nullptr},
               {"inputs", InputsOf(explanation)},
               {"holders", HoldersOf(explanation)},
               {"doubts", explanation.doubts}};
  if (explanation.route_ratio) json["route_ratio"] = *explanation.route_ratio;
  if (explanation.cached_ratio) json["cached_ratio"] = *explanation.cached_ratio;
  AddDecision(explanation.decision, json);
  return json;
}

template <typename Advise>
ckv_status GiveAdvice(ckv_requester* requester, const ckv_advice_call* call, char** json,
                      Advise&& advise) {
  if (json != nullptr) *json = nullptr;
  return Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return Missing("requester");
    if (json == nullptr) return Missing("json");
    AdviceArguments arguments;
    CKV_RETURN_IF_ERROR(arguments.Take(call));
    CKV_ASSIGN_OR_RETURN(const Json made, advise(*requester->requester, arguments));
    const std::string text = made.dump(-1, ' ', false, Json::error_handler_t::replace);
    *json = strdup(text.c_str());
    return *json == nullptr ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
  });
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_estimate(ckv_requester* requester, const ckv_advice_call* call,
                                   char** json) {
  return ckv::c::GiveAdvice(requester, call, json, ckv::c::EstimateOf);
}

extern "C" ckv_status ckv_explain(ckv_requester* requester, const ckv_advice_call* call,
                                  char** json) {
  return ckv::c::GiveAdvice(requester, call, json, ckv::c::ExplanationOf);
}

extern "C" ckv_status ckv_report_prefill(ckv_requester* requester, const ckv_corpus_facts* model,
                                         uint64_t token_count, uint64_t took_ns) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    ckv_corpus_facts facts;
    CKV_RETURN_IF_ERROR(ckv::c::TakeStruct("ckv_corpus_facts", model, facts));
    CKV_ASSIGN_OR_RETURN(const ckv::Geometry geometry, ckv::c::GeometryOf(facts));
    const auto took_max = static_cast<uint64_t>(ckv::LivePrefill::kTookMax.count()) + 1;
    const ckv::Duration took(static_cast<int64_t>(std::min(took_ns, took_max)));
    return requester->requester->ReportPrefill(geometry, token_count, took);
  });
}

extern "C" void ckv_text_free(char* text) { std::free(text); }
