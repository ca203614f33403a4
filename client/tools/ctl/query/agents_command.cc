// ckvctl agents run: many agents decode against one corpus by routing, compared with one instance.
// RunAgents, in order: reads the corpus, the prompts and the text, and checks that they match;
// decodes all agents by routing; prefills and decodes them here (RunAlone); compares the tokens;
// reports. It fails if a token differs by more than the precision explains.

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/ctl/query/agents.h"
#include "client/tools/ctl/query/policy_run.h"
#include "client/tools/ctl/time_span.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "proto/host/control_groups.h"

namespace ckv::ctl {
namespace {

struct AgentsOptions {
  std::string corpus;
  std::string text;
  std::string prompts;
  uint32_t count = 8;
  uint32_t tokens = 64;
  uint32_t max_tokens = 0;
  std::string wire = "f32";
  bool no_check = false;
  uint32_t threads = UsableProcessors();
  uint32_t timeout_ms = 10'000;
  std::string policy = "route";
};

// The result of comparing the two decodes of one agent.
struct Verdict {
  bool equal = false;
  bool allowed = false;  // equal, or parted at a margin that rounding explains
  std::string text;
};

Verdict Judge(const AgentRun& run, const AgentResult& routed, const AgentResult& alone) {
  const auto difference = FirstDifference(routed.choices, alone.choices);
  if (!difference) {
    const bool whole = routed.choices.size() == alone.choices.size();
    return {whole, whole, whole ? "equal" : "fewer tokens"};
  }
  Verdict verdict;
  verdict.allowed = difference->margin <= MarginMax(run);
  verdict.text = absl::StrFormat("token %d: %d, alone %d, margin %.2g%s", difference->token,
                                 difference->routed, difference->alone, difference->margin,
                                 verdict.allowed ? " (rounding)" : "");
  return verdict;
}

absl::StatusOr<std::vector<AgentResult>> RunAlone(const Ctl& ctl, const AgentsOptions& options,
                                                  const AgentRun& run,
                                                  std::span<const Prompt> prompts,
                                                  std::span<const int32_t> tokens) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> prefilled,
                       PrefillAlone(ctl, *run.engine, tokens, options.threads));
  const auto progress = ctl.StartProgress("single instance: decode", "tokens",
                                          prompts.size() * uint64_t{options.tokens});
  auto results = DecodeAlone(run, prompts, *prefilled, options.threads, *ctl.clock,
                             [&] { progress->Advance(1); });
  for (const AgentResult& result : results) CKV_RETURN_IF_ERROR(result.status);
  return results;
}

struct Comparison {
  std::vector<Verdict> verdicts;
  bool all_equal = true;
  bool all_allowed = true;
  std::string summary;
};

Comparison Compare(const AgentRun& run, std::span<const AgentResult> routed,
                   std::span<const AgentResult> alone) {
  Comparison comparison;
  size_t different = 0;
  for (size_t agent = 0; agent < routed.size(); ++agent) {
    comparison.verdicts.push_back(Judge(run, routed[agent], alone[agent]));
    comparison.all_equal &= comparison.verdicts.back().equal;
    comparison.all_allowed &= comparison.verdicts.back().allowed;
    different += comparison.verdicts.back().equal ? 0 : 1;
  }
  if (comparison.all_equal) {
    comparison.summary = kAllEqual;
  } else if (comparison.all_allowed) {
    comparison.summary = absl::StrFormat(
        "%d of %d agents part from single-instance decoding, each at a margin below %.2g, which "
        "rounding on the wire explains",
        different, routed.size(), MarginMax(run));
  } else {
    comparison.summary = absl::StrFormat("%d of %d agents differ from single-instance decoding",
                                         different, routed.size());
  }
  return comparison;
}

// Says where the two columns of bytes meet: routing pays per token, a fetch once per agent.
std::string DescribeBytes(std::span<const Prompt> prompts, std::span<const AgentResult> routed,
                          uint64_t fetch_bytes) {
  uint64_t bytes = 0, tokens = 0;
  for (size_t agent = 0; agent < routed.size(); ++agent) {
    bytes += routed[agent].bytes_routed;
    tokens += prompts[agent].size() + routed[agent].choices.size() - 1;  // queries sent
  }
  if (bytes == 0 || tokens == 0) return "";
  const uint64_t per_token = std::max<uint64_t>(1, bytes / tokens);
  return absl::StrFormat(
      "bytes: a routed token moves %s on all layers; an agent that fetches moves %s first and\n"
      "       keeps it, so it has moved fewer bytes from token %d of an agent on. That compares\n"
      "       bytes; ckvctl explain compares time, and may choose otherwise\n",
      FormatBytes(per_token), FormatBytes(fetch_bytes), fetch_bytes / per_token + 1);
}

// How many agents decoded something of their own: the check says little where all answers are one.
size_t DistinctAnswers(std::span<const AgentResult> routed) {
  std::set<std::string> hashes;
  for (const AgentResult& result : routed) hashes.insert(TokensHash(result.choices));
  return hashes.size();
}

// The part of what an agent attended that the requester attended itself.
double CachedShare(const AgentResult& result) {
  const uint64_t all = result.routed_pairs + result.cached_pairs;
  return all == 0 ? 0 : static_cast<double>(result.cached_pairs) / static_cast<double>(all);
}

void Report(const Ctl& ctl, const AgentsOptions& options, const AgentRun& run,
            std::span<const Prompt> prompts, std::span<const AgentResult> routed,
            const Comparison& comparison, Duration elapsed) {
  const uint64_t fetch_bytes = run.corpus.token_count() * run.corpus.geometry.token_bytes();
  Table table({{"AGENT", true},
               {"PROMPT", true},
               {"TOKENS", true},
               {"FIRST", true},
               {"MS/TOKEN", true},
               {"ROUTED", true},
               {"FETCH", true},
               {"HOLDERS", true},
               {"CACHED", true},
               {"TOKENS HASH"},
               {"CHECK"}});
  Json agents = Json::array();
  for (size_t agent = 0; agent < routed.size(); ++agent) {
    const AgentResult& r = routed[agent];
    const std::string check = options.no_check ? "-" : comparison.verdicts[agent].text;
    table.AddRow({std::to_string(agent), std::to_string(prompts[agent].size()),
                  std::to_string(r.choices.size()), FormatDuration(r.first_token),
                  absl::StrFormat("%.1f", r.decode_ms_per_token()), FormatBytes(r.bytes_routed),
                  FormatBytes(fetch_bytes), std::to_string(r.holder_count),
                  absl::StrFormat("%.0f %%", 100 * CachedShare(r)), TokensHash(r.choices), check});
    Json tokens = Json::array();
    for (const GreedyChoice& choice : r.choices) tokens.push_back(choice.token);
    agents.push_back({{"agent", agent},
                      {"prompt_tokens", prompts[agent].size()},
                      {"tokens", tokens},
                      {"tokens_hash", TokensHash(r.choices)},
                      {"first_token_ms", static_cast<double>(r.first_token.count()) / 1e6},
                      {"ms_per_token", r.decode_ms_per_token()},
                      {"bytes_routed", r.bytes_routed},
                      {"bytes_fetch", fetch_bytes},
                      {"holder_count", r.holder_count},
                      {"cached_share", CachedShare(r)},
                      {"check", check}});
  }
  std::string text = RenderFields(
      {{"corpus", absl::StrFormat("%s: %s in %s", run.corpus.name,
                                  FormatCount(run.corpus.token_count(), "token"),
                                  FormatCount(run.corpus.chunks.size(), "chunk"))},
       {"geometry", run.corpus.geometry.ToString()},
       {"wire", run.f32 ? "f32 partials" : "bf16 partials"},
       {"policy", options.policy},
       {"routed decode", FormatDuration(elapsed)},
       {"answers", absl::StrFormat("%d different of %d", DistinctAnswers(routed), routed.size())}});
  text += "\n" + table.Render() + "\n" + DescribeBytes(prompts, routed, fetch_bytes);
  if (!options.no_check) text += "check: " + comparison.summary + "\n";
  ctl.Print(text, {{"corpus", run.corpus.name},
                   {"token_count", run.corpus.token_count()},
                   {"chunk_count", run.corpus.chunks.size()},
                   {"wire", run.f32 ? "f32" : "bf16"},
                   {"policy", options.policy},
                   {"seconds", static_cast<double>(elapsed.count()) / 1e9},
                   {"agents", agents},
                   {"distinct_answers", DistinctAnswers(routed)},
                   {"checked", !options.no_check},
                   {"equal", !options.no_check && comparison.all_equal},
                   {"check", options.no_check ? "" : comparison.summary}});
}

absl::StatusOr<AgentRun> Prepare(const AgentsOptions& options, const ReferenceEngine& engine,
                                 Fleet& fleet) {
  AgentRun run;
  run.engine = &engine;
  CKV_ASSIGN_OR_RETURN(run.corpus, fleet.GetCorpus(options.corpus));
  run.token_count = options.tokens;
  run.f32 = options.wire == "f32";
  run.timeout_ms = options.timeout_ms;
  run.policy = options.policy == "cache"  ? v1::CONTEXT_POLICY_CACHE
               : options.policy == "auto" ? v1::CONTEXT_POLICY_AUTO
                                          : v1::CONTEXT_POLICY_ROUTE;
  CKV_RETURN_IF_ERROR(CheckEngine(run.corpus, engine));
  return run;
}

absl::Status RunAgents(const Ctl& ctl, const AgentsOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  if (!options.no_check && options.text.empty()) {
    return absl::InvalidArgumentError(
        "--text: name the file the corpus was loaded from, or compare nothing with --no-check");
  }
  CKV_ASSIGN_OR_RETURN(const auto engine, ReferenceEngine::Create({}));
  CKV_ASSIGN_OR_RETURN(const AgentRun run, Prepare(options, *engine, fleet));
  CKV_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                       MakePrompts(options.prompts, options.count));
  std::vector<int32_t> tokens;
  if (!options.no_check) {
    const auto corpus_tokens = static_cast<uint32_t>(run.corpus.token_count());
    CKV_ASSIGN_OR_RETURN(
        tokens, ReadTextTokens(options.text, options.max_tokens == 0
                                                 ? corpus_tokens
                                                 : std::min(options.max_tokens, corpus_tokens)));
    CKV_ASSIGN_OR_RETURN(const TenantKey key, fleet.KeyOfTenant(/*make=*/false));
    CKV_RETURN_IF_ERROR(CheckText(run.corpus, tokens, key));
  }

  std::vector<AgentResult> routed;
  const Instant start = ctl.clock->Now();
  {
    const auto progress =
        ctl.StartProgress(absl::StrFormat("%d agents: routed decode", options.count), "tokens",
                          prompts.size() * uint64_t{options.tokens});
    routed = DecodeRouted(run, prompts, fleet.requester(), fleet, [&] { progress->Advance(1); });
  }
  const Duration elapsed = ctl.clock->Now() - start;
  for (size_t agent = 0; agent < routed.size(); ++agent) {
    CKV_RETURN_IF_ERROR(Annotate(routed[agent].status, absl::StrFormat("agent %d", agent)));
  }
  Comparison comparison;
  if (!options.no_check) {
    CKV_ASSIGN_OR_RETURN(const auto alone, RunAlone(ctl, options, run, prompts, tokens));
    comparison = Compare(run, routed, alone);
  }
  Report(ctl, options, run, prompts, routed, comparison, elapsed);
  if (!comparison.all_allowed) return absl::InternalError(comparison.summary);
  return absl::OkStatus();
}

}  // namespace

void AddAgentsCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* agents = AddVerb(app, "agents", "Decode with the reference engine over a corpus",
                             "  ckvctl agents run --corpus gpl --text GPL-3 --count 8 --tokens 64\n"
                             "  ckvctl agents compare --corpus gpl --text GPL-3");
  agents->require_subcommand(1);
  AddCompareCommand(*agents, ctl);
  const auto options = std::make_shared<AgentsOptions>();
  CLI::App* verb =
      AddVerb(*agents, "run",
              "Let agents decode a corpus by routing, and compare with single-instance decoding",
              "  ckvctl agents run --corpus gpl --text /usr/share/common-licenses/GPL-3\n"
              "  ckvctl agents run --corpus gpl --no-check --count 16 --tokens 32 -o json\n"
              "  ckvctl agents run --corpus gpl --no-check --policy auto\n"
              "  ckvctl agents run --corpus gpl --text GPL-3 --prompts questions.txt --wire bf16");
  verb->add_option("--corpus", options->corpus, "A corpus made by corpus load --text")
      ->required()
      ->type_name("NAME");
  verb->add_option("--text", options->text, "The text it was loaded from, for the comparison")
      ->type_name("FILE");
  verb->add_option("--max-tokens", options->max_tokens, "Take only so many tokens of the text")
      ->check(InRange(1u, kChunkTokenCountMax));
  verb->add_option("--prompts", options->prompts, "A file with a prompt a line, used in turn")
      ->type_name("FILE");
  verb->add_option("--count", options->count, "Agents that decode at once")
      ->capture_default_str()
      ->check(InRange(1u, kAgentCountMax));
  verb->add_option("--tokens", options->tokens, "Tokens each agent decodes")
      ->capture_default_str()
      ->check(InRange(1u, 1u << 16));
  const std::vector<std::string> dtypes = {"bf16", "f32"};
  verb->add_option("--wire", options->wire,
                   "Partials between holder and requester (default: f32); with bf16 a token may "
                   "differ at a margin below 0.1")
      ->check(OneOf(dtypes))
      ->type_name(JoinNames(dtypes));
  verb->add_option(
          "--policy", options->policy,
          "How the requester attends the corpus: routes every query; fetches all rows first; "
          "or decides by itself")
      ->capture_default_str()
      ->check(OneOf(PolicyNames()))
      ->type_name(JoinNames(PolicyNames()));
  verb->add_flag("--no-check", options->no_check, "Do not compare with single-instance decoding");
  verb->add_option("--threads", options->threads, "Threads of the single instance")
      ->capture_default_str()
      ->check(InRange(1u, WorkerPool::kThreadCountMax));
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of each attend");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunAgents(ctl, *options); }; });
}

}  // namespace ckv::ctl
