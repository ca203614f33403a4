// ckvctl explain: what the requester would do with a query, and every cost it compared. RunExplain,
// in order: reads the corpus; makes the request; sends it to the requester, or explains in this
// process with a profile (ExplainHere); prints tables of costs, holders and inputs, or JSON.

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/explain_reply.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/query/alternatives.h"
#include "client/tools/ctl/query/profile_option.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// Lanes change from hour to hour, so a round trip is measured again and not kept.
constexpr char kProfileNote[] =
    "constants:    kernels, splice, prefill and fetch bandwidth of the profile;\n"
    "              T_PROBE and BANDWIDTH of a probe just now\n";

struct ExplainOptions {
  std::string profile;
  std::string corpus;
  std::string chunks;
  uint32_t query_rows = 16;
  uint32_t steps = 1;
  uint32_t agents = 1;
  uint32_t select = 0;
  std::optional<uint64_t> free_tokens;
  bool spliced = false;
};

std::string CostText(const v1::ExplainReply& reply) {
  Table table({{"PRIMITIVE"}, {"TOTAL", true}, {"TERMS"}});
  for (const v1::PrimitiveCost& cost : reply.costs()) {
    std::string terms;
    for (const v1::CostTerm& term : cost.terms()) {
      if (term.microseconds() == 0) continue;
      terms += (terms.empty() ? "" : " + ") + term.name() + " " +
               FormatMicroseconds(term.microseconds());
    }
    table.AddRow({cost.primitive(), cost.offered() ? FormatMicroseconds(cost.total_us()) : "-",
                  cost.offered() ? terms : "not offered"});
  }
  return table.Render();
}

Json CostJson(const v1::ExplainReply& reply) {
  Json json = Json::array();
  for (const v1::PrimitiveCost& cost : reply.costs()) {
    Json terms = Json::object();
    for (const v1::CostTerm& term : cost.terms()) terms[term.name()] = term.microseconds();
    json.push_back({{"primitive", cost.primitive()},
                    {"offered", cost.offered()},
                    {"reason", cost.reason()},
                    {"total_us", cost.total_us()},
                    {"terms_us", terms}});
  }
  return json;
}

std::string InputValue(const v1::ExplainInput& input) {
  if (input.unit() == "us") return FormatMicroseconds(input.value());
  if (input.unit() == "B/s") return FormatRate(input.value());
  return absl::StrFormat("%.0f", input.value());
}

// Lists what the chosen cost depends on, and what would flip the choice.
std::string InputText(const v1::ExplainReply& reply) {
  Table table({{"INPUT"}, {"NOW", true}, {"FLIPS"}});
  for (const v1::ExplainInput& input : reply.inputs()) {
    std::string flip = input.flips() ? input.sentence() : "at no value";
    // "steps: fetch from 6 on (now 1)": the row already contains the name.
    if (flip.starts_with(input.name() + ": ")) flip.erase(0, input.name().size() + 2);
    table.AddRow({input.name(), InputValue(input), std::move(flip)});
  }
  return table.Render();
}

Json InputJson(const v1::ExplainReply& reply) {
  Json json = Json::array();
  for (const v1::ExplainInput& input : reply.inputs()) {
    Json entry = {{"name", input.name()},
                  {"unit", input.unit()},
                  {"value", input.value()},
                  {"flip", nullptr}};
    if (input.flips()) {
      entry["flip"] = {{"value", input.flip_value()},
                       {"choice", input.flip_choice()},
                       {"sentence", input.sentence()}};
    }
    json.push_back(std::move(entry));
  }
  return json;
}

std::string HolderText(const v1::ExplainReply& reply) {
  Table table({{"HOLDER"},
               {.title = "GROUP", .right = true, .key = true},
               {"ASKED"},
               {"TOKENS", true},
               {"T_PROBE", true},
               {"BANDWIDTH", true},
               {"ROUND", true},
               {"OFF", true},
               {"TIER"}});
  for (const v1::ExplainHolder& holder : reply.holders()) {
    const char* const requested = holder.requested()     ? "yes"
                                  : holder.takes_turns() ? "in turn"
                                                         : "no";
    table.AddRow(
        {holder.name(), std::to_string(holder.group()), requested,
         absl::StrFormat("%.0f %%", 100 * holder.token_share()),
         FormatMicroseconds(holder.t_probe_us()), FormatRate(holder.bandwidth_bytes_per_s()),
         FormatMicroseconds(holder.route_us()),
         holder.has_model_error() ? absl::StrFormat("%.0f %%", 100 * holder.model_error()) : "-",
         holder.has_path() ? absl::StrFormat("%d: %s, %.0f %% taken", holder.tier(),
                                             FormatRate(holder.tier_bandwidth_bytes_per_s()),
                                             100 * holder.congestion())
                           : "-"});
  }
  return table.Render();
}

Json HolderJson(const v1::ExplainReply& reply) {
  Json json = Json::array();
  for (const v1::ExplainHolder& holder : reply.holders()) {
    Json entry = {{"name", holder.name()},
                  {"group", holder.group()},
                  {"asked", holder.requested()},
                  {"takes_turns", holder.takes_turns()},
                  {"token_share", holder.token_share()},
                  {"t_probe_us", holder.t_probe_us()},
                  {"bandwidth_bytes_per_s", holder.bandwidth_bytes_per_s()},
                  {"route_us", holder.route_us()},
                  {"compute_factor", holder.compute_factor()},
                  {"memory_factor", holder.memory_factor()},
                  {"model_error", nullptr},
                  {"path", nullptr}};
    if (holder.has_model_error()) entry["model_error"] = holder.model_error();
    if (holder.has_path()) {
      entry["path"] = {{"tier", holder.tier()},
                       {"bandwidth_bytes_per_s", holder.tier_bandwidth_bytes_per_s()},
                       {"congestion", holder.congestion()}};
    }
    json.push_back(std::move(entry));
  }
  return json;
}

// How far predictions of this requester's last attends were off, in words.
std::string TookText(const v1::ExplainReply& reply) {
  std::vector<std::string> took;
  if (reply.has_route_ratio())
    took.push_back(absl::StrFormat("%.2f x as long if routed", reply.route_ratio()));
  if (reply.has_cached_ratio())
    took.push_back(absl::StrFormat("%.2f x as long if cached", reply.cached_ratio()));
  return took.empty() ? "too few calls" : absl::StrJoin(took, ", ");
}

absl::StatusOr<v1::ExplainRequest> RequestOf(const Ctl& ctl, const ExplainOptions& options,
                                             const Corpus& corpus) {
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  v1::ExplainRequest request;
  request.set_corpus(options.corpus);
  request.set_tenant(ctl.fleet.tenant);
  request.set_query_rows(options.query_rows);
  request.set_steps(options.steps);
  request.set_agents(options.agents);
  request.set_select(options.select);
  request.set_spliced(options.spliced);
  if (options.free_tokens) request.set_cache_room_tokens(*options.free_tokens);
  SetChunks(ordinals, request);
  return request;
}

void Print(const Ctl& ctl, const ExplainOptions& options, const v1::ExplainReply& reply) {
  const bool offered = !reply.choice().empty();
  const std::vector<std::string> alternatives =
      DescribeAlternatives(reply, options.steps, options.select > 0);
  std::string text = RenderFields(
      {{"choice", offered ? reply.choice() : "none is offered"},
       {"runner-up", reply.runner_up().empty() ? "-" : reply.runner_up()},
       {"route moves",
        absl::StrFormat("%s a layer and step: %s to and from %s", FormatBytes(reply.route_bytes()),
                        FormatBytes(reply.route_bytes_per_holder()),
                        FormatCount(reply.route_holder_count(), "holder"))},
       {"fetch moves", FormatBytes(reply.fetch_bytes()) +
                           (options.select > 0 ? " a layer and step" : " a layer, once")},
       {"cached already",
        absl::StrFormat("%d of %d tokens", reply.cached_tokens(), reply.tokens())},
       {"calls took", TookText(reply)}});
  if (!options.profile.empty()) text += kProfileNote;
  text += "\n" + CostText(reply);
  text += "\n";
  for (const std::string& sentence : alternatives) text += Printable(sentence) + "\n";
  if (offered) {  // else no input of another value helps
    for (const std::string& doubt : reply.doubts()) text += Printable(doubt) + ".\n";
    for (const std::string& table : {HolderText(reply), InputText(reply)})
      if (!table.empty()) text += "\n" + table;
  }
  ctl.Print(text,
            {{"choice", reply.choice()},
             {"runner_up", reply.runner_up()},
             {"alternatives", alternatives},
             {"holder_count", reply.route_holder_count()},
             {"route_bytes", reply.route_bytes()},
             {"route_bytes_per_holder", reply.route_bytes_per_holder()},
             {"fetch_bytes", reply.fetch_bytes()},
             {"tokens", reply.tokens()},
             {"cached_tokens", reply.cached_tokens()},
             {"route_ratio", reply.has_route_ratio() ? Json(reply.route_ratio()) : Json()},
             {"cached_ratio", reply.has_cached_ratio() ? Json(reply.cached_ratio()) : Json()},
             {"costs", CostJson(reply)},
             {"doubts", std::vector<std::string>(reply.doubts().begin(), reply.doubts().end())},
             {"holders", HolderJson(reply)},
             {"inputs", InputJson(reply)}});
}

// Explains as a requester on this machine would, given the profile's constants.
absl::Status ExplainHere(const Ctl& ctl, const ExplainOptions& options,
                         const std::string& directory_address, const v1::ExplainRequest& request,
                         const Corpus& corpus, v1::ExplainReply& reply) {
  RequesterOptions requester_options;
  requester_options.id = "ckvctl";
  requester_options.clock = ctl.clock;
  CKV_ASSIGN_OR_RETURN(requester_options.profile, LoadProfileFor(options.profile, corpus.geometry));
  DirectoryStub directory(directory_address, ctl.clock);
  HolderStubFactory holders(ctl.clock);
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Requester> requester,
                       Requester::Create(requester_options, &directory, &holders));
  ExplainCall call;
  call.corpus = std::make_shared<const Corpus>(corpus);
  CKV_ASSIGN_OR_RETURN(
      call.chunks, ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  call.query_rows = request.query_rows();
  call.steps = request.steps();
  call.agents = request.agents();
  call.select = request.select();
  call.spliced = request.spliced();
  call.cache_room_tokens = options.free_tokens;
  call.deadline = ctl.clock->Now() + ctl.fleet.timeout;
  CKV_ASSIGN_OR_RETURN(const Requester::Explanation explanation, requester->Explain(call));
  FillExplainReply(explanation, requester->KnownHolders(), reply);
  return absl::OkStatus();
}

absl::Status RunExplain(const Ctl& ctl, const ExplainOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_ASSIGN_OR_RETURN(const v1::ExplainRequest request, RequestOf(ctl, options, corpus));
  v1::ExplainReply reply;
  if (options.profile.empty()) {
    grpc::ClientContext context;
    fleet.Prepare(context);
    CKV_RETURN_IF_ERROR(
        fleet.RequesterError(fleet.requester().Explain(&context, request, &reply), "Explain"));
  } else {
    CKV_RETURN_IF_ERROR(fleet.directory().status());
    CKV_RETURN_IF_ERROR(
        ExplainHere(ctl, options, fleet.directory_address(), request, corpus, reply));
  }
  Print(ctl, options, reply);
  if (reply.choice().empty()) return absl::FailedPreconditionError(reply.flips());
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* verb = AddVerb(
      app, "explain", "Compare route, fetch and local for a query, term by term",
      "  ckvctl explain --corpus docs --mq 256\n"
      "  ckvctl explain --corpus docs --chunks 0-3,9 --mq 16 --steps 200 --agents 8 -o json\n\n"
      "TOTAL is the time of all layers x steps. Its terms: probe, the round trips alone; "
      "transfer,\n"
      "the bytes; compute, the kernels; queue, waiting for others; shared, waiting for\n"
      "processors that holders of one host share; merge, of partials here; splice, rows put at\n"
      "their positions here; evict, freeing memory here; prefill, recomputing rows.\n\n"
      "Chunks with the same holders form a GROUP. The table has a line for each holder of each\n"
      "group, and a route asks one of them (ASKED). Holders of about the same cost take turns.\n"
      "TOKENS is the group's share of all tokens. T_PROBE is a round trip without payload.\n"
      "ROUND is one layer there and back. OFF is the recent error of predicted rounds; - if there\n"
      "were fewer than 16. TIER is the path's tier in the network oracle; - if it has "
      "none.\n\n"
      "FLIPS is the nearest value of that input alone that changes the choice.\n\n"
      "It predicts attends alone: an engine also computes between them, and waits for wake-ups.\n"
      "ckvctl agents compare shows the prediction next to the measured time. The table of ckvctl\n"
      "agents run compares bytes, so it may favour another choice.");
  verb->add_option("--corpus", options->corpus, "The corpus")->required()->type_name("NAME");
  verb->add_option("--chunks,--chunk", options->chunks, kChunksHelp)
      ->check(NotEmpty())
      ->type_name("LIST");
  verb->add_option("--mq", options->query_rows, "Query rows of a layer: tokens x heads")
      ->capture_default_str()
      ->check(InRange(1u, kAttendRowCountMax));
  verb->add_option("--steps", options->steps, "Decode steps expected against the chunks")
      ->capture_default_str()
      ->check(InRange(1u, 1u << 20));
  verb->add_option("--agents", options->agents, "Agents that share the chunks on that requester")
      ->capture_default_str()
      ->check(InRange(1u, 1u << 16));
  verb->add_option("--room", options->free_tokens,
                   "Tokens free in the engine's cache (default: the chunks fit)")
      ->check(WholeNumber());
  verb->add_option("--select", options->select, "Rows a query selects (default: dense)")
      ->check(WholeNumber());
  verb->add_flag(
      "--splice", options->spliced,
      "The engine keeps fetched rows at other positions than the corpus's own, so a fetch "
      "rotates each of them (default: at their own)");
  AddProfileOption(*verb, options->profile,
                   "Explain from this machine, with the constants that ckvctl calibrate --profile "
                   "wrote here (default: ask the requester); round trips and bandwidth of routes "
                   "are probed now all the same");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunExplain(ctl, *options); }; });
}

}  // namespace ckv::ctl
