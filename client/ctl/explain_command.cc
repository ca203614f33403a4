// ckvctl explain: what the requester would do with a query, and every cost it compared.

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/alternatives.h"
#include "client/ctl/checks.h"
#include "client/ctl/chunk_range.h"
#include "client/ctl/commands.h"
#include "proto/status.h"

namespace ckv::ctl {
namespace {

struct ExplainOptions {
  std::string corpus;
  std::string chunks;
  uint32_t query_rows = 16;
  uint32_t steps = 1;
  uint32_t select = 0;
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
                  cost.offered() ? terms : "not offered: " + cost.reason()});
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

// The holders that a query over these chunks goes to.
size_t CountHolders(const Corpus& corpus, ChunkRun run) {
  std::set<std::string> names;
  for (uint32_t i = run.begin; i < run.end; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    if (chunk.token_count > 0 && !chunk.holders.empty()) names.insert(chunk.holders[0].name);
  }
  return names.size();
}

absl::Status RunExplain(const Ctl& ctl, const ExplainOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  v1::ExplainRequest request;
  request.set_corpus(options.corpus);
  request.set_tenant(ctl.fleet.tenant);
  request.set_query_rows(options.query_rows);
  request.set_steps(options.steps);
  request.set_select(options.select);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_ASSIGN_OR_RETURN(const ChunkRun run,
                       ParseChunkRun(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  request.set_chunk_begin(run.begin);
  request.set_chunk_end(run.end);

  grpc::ClientContext context;
  fleet.Prepare(context);
  v1::ExplainReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.RequesterError(fleet.requester().Explain(&context, request, &reply), "Explain"));
  // The requester tells the bytes of one holder: each gets all query rows, and answers for each.
  const size_t holders = CountHolders(corpus, run);
  const std::vector<std::string> alternatives =
      DescribeAlternatives(reply, options.steps, options.select > 0);
  std::string text = RenderFields(
      {{"choice", reply.choice().empty() ? "none is offered" : reply.choice()},
       {"runner-up", reply.runner_up().empty() ? "-" : reply.runner_up()},
       {"route moves",
        absl::StrFormat("%s a layer and step: %s to and from %s",
                        FormatBytes(reply.route_bytes() * holders),
                        FormatBytes(reply.route_bytes()), FormatCount(holders, "holder"))},
       {"fetch moves", FormatBytes(reply.fetch_bytes()) +
                           (options.select > 0 ? " a layer and step" : " a layer, once")}});
  text += "\n" + CostText(reply) + "\n";
  for (const std::string& sentence : alternatives) text += Printable(sentence) + "\n";
  ctl.Print(text, {{"choice", reply.choice()},
                   {"runner_up", reply.runner_up()},
                   {"alternatives", alternatives},
                   {"holder_count", holders},
                   {"route_bytes", reply.route_bytes() * holders},
                   {"route_bytes_per_holder", reply.route_bytes()},
                   {"fetch_bytes", reply.fetch_bytes()},
                   {"costs", CostJson(reply)}});
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* verb = AddVerb(
      app, "explain", "Compare route, fetch and local for a query, term by term",
      "  ckvctl explain --corpus docs --mq 256\n"
      "  ckvctl explain --corpus docs --chunks 0-3 --mq 16 --steps 200 -o json\n\n"
      "It compares time, from costs that were measured; the table of ckvctl agents run compares\n"
      "bytes, so the two may favour different ones.");
  verb->add_option("--corpus", options->corpus, "The corpus")->required();
  verb->add_option("--chunks", options->chunks, "One run of ordinals, like 2-5 (default: all)")
      ->check(NotEmpty());
  verb->add_option("--mq", options->query_rows, "Query rows of a layer: tokens x heads")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 16));
  verb->add_option("--steps", options->steps, "Decode steps expected against the chunks")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  verb->add_option("--select", options->select, "Rows a query selects (default: dense)")
      ->check(WholeNumber());
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunExplain(ctl, *options); }; });
}

}  // namespace ckv::ctl
