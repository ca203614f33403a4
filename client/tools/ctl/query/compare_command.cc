// ckvctl agents compare: the same agents under route, cache and auto, one policy after another.
// RunCompare, in order: reads the corpus and checks the text; Expect decodes once in this process,
// to compare the tokens; RunRounds runs every policy once a round, each round beginning with
// another one; Predict computes what the cost model expects for the same calls; then it reports,
// and Conclude decides about the exit code.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/ctl/query/agents.h"
#include "client/tools/ctl/query/compare_report.h"
#include "client/tools/ctl/query/policy_run.h"
#include "client/tools/ctl/time_span.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "proto/host/control_groups.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kRoundsMax = 100;

struct CompareOptions {
  std::string corpus;
  std::string text;
  std::vector<std::string> policies = PolicyNames();
  uint32_t count = 8;
  uint32_t tokens = 256;
  uint32_t rounds = 3;
  uint32_t local_cache_mib = 1024;
  uint32_t threads = UsableProcessors();
  uint32_t timeout_ms = 10'000;
};

// Every round has each policy once, and begins with another one. A policy that does not fit has
// none, and one that fails has no further one: the others keep what they did.
std::vector<Compared> RunRounds(const Ctl& ctl, const CompareOptions& options, const PolicyRun& run,
                                const Corpus& corpus, const PolicyAnswers& expected) {
  std::vector<Compared> compared;
  for (const std::string& policy : options.policies) compared.push_back({.policy = policy});
  uint64_t tokens = 0;
  for (const PolicyAgent& agent : run.agents) tokens += agent.token_count;
  const uint64_t need = LocalCacheBytesNeeded(corpus, run.agents);
  const auto progress = ctl.StartProgress(absl::StrFormat("%d agents: decode", run.agents.size()),
                                          "tokens", tokens * compared.size() * options.rounds);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < compared.size(); ++i) {
      Compared& one = compared[(round + i) % compared.size()];
      uint64_t decoded = 0;
      if (one.failure.ok()) {
        auto result = RunPolicy(run, PolicyOf(one.policy), [&] {
          ++decoded;
          progress->Advance(1);
        });
        if (result.ok()) {
          one.rounds.push_back(result->elapsed);
          const std::shared_ptr<Requester> made = std::move(result->requester);
          if (one.first == nullptr) one.first = made;
          one.different = std::max(one.different, CountDifferent(result->answers, expected));
          if (!one.fastest || result->elapsed < one.fastest->elapsed)
            one.fastest = *std::move(result);
        } else {
          one.failure = Annotate(result.status(), "policy " + one.policy);
          if (one.policy == "cache" && need > run.local_cache_bytes) one.need_bytes = need;
        }
      }
      progress->Skip(tokens - decoded);
    }
  }
  return compared;
}

// Every policy makes the same attends. The decisions of auto are not known before.
absl::Status Predict(const PolicyRun& run, std::vector<Compared>& compared) {
  const std::vector<PolicyCalls>& calls = FastestOf(compared).fastest->calls;
  for (Compared& one : compared) {
    if (one.policy == "auto" || one.first == nullptr) continue;
    CKV_ASSIGN_OR_RETURN(const double us,
                         PredictPolicy(run, PolicyOf(one.policy), *one.first, calls));
    one.predicted_s = us / 1e6;
  }
  return absl::OkStatus();
}

absl::StatusOr<PolicyAnswers> Expect(const Ctl& ctl, const CompareOptions& options,
                                     const PolicyRun& run, const Corpus& corpus,
                                     std::span<const int32_t> tokens) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> prefilled,
                       PrefillAlone(ctl, *run.engine, tokens, options.threads));
  return RunPolicyAlone(run, corpus, *prefilled, [] {});
}

void Report(const Ctl& ctl, const CompareOptions& options, const PolicyRun& run,
            const Corpus& corpus, std::span<const Compared> compared, const std::string& check) {
  const CompareReport report = RenderPolicies(compared, run.local_cache_bytes);
  const std::optional<AutoVerdict> verdict = AutoVerdict::Of(compared);
  std::string text =
      RenderFields({{"corpus", absl::StrFormat("%s: %s in %s", corpus.name,
                                               FormatCount(corpus.token_count(), "token"),
                                               FormatCount(corpus.chunks.size(), "chunk"))},
                    {"agents", absl::StrFormat("%d, one after another", run.agents.size())},
                    {"time", absl::StrFormat("of all agents; the fastest of %s",
                                             FormatCount(options.rounds, "round"))}});
  text += "\n" + report.text + "\ncheck: " + check + "\n";
  Json json = {{"corpus", corpus.name},
               {"agent_count", run.agents.size()},
               {"round_count", options.rounds},
               {"policies", report.policies},
               {"fastest", FastestOf(compared).policy},
               {"auto", ""},
               {"auto_factor", nullptr},
               {"noise", nullptr},
               {"auto_saved", nullptr},
               {"equal", check == kAllEqual},
               {"check", check}};
  if (verdict.has_value()) {
    text += verdict->Describe() + "\n\n" + verdict->RenderSavings();
    json["auto"] = verdict->Describe();
    json["auto_factor"] = verdict->factor();
    if (verdict->noise().has_value()) json["noise"] = *verdict->noise();
    json["auto_saved"] = verdict->SavingsToJson();
  }
  ctl.Print(text, json);
}

// OK if tokens are equal and every policy ran that could.
absl::Status Conclude(std::span<const Compared> compared, const std::string& check) {
  if (check != kAllEqual) return absl::InternalError(check);
  for (const Compared& one : compared) {
    if (!one.failure.ok() && !one.need_bytes.has_value()) return one.failure;
  }
  return absl::OkStatus();
}

absl::Status RunCompare(const Ctl& ctl, const CompareOptions& options) {
  for (auto policy = options.policies.begin(); policy != options.policies.end(); ++policy) {
    if (std::find(options.policies.begin(), policy, *policy) != policy)
      return absl::InvalidArgumentError("--policy: " + *policy + " is named twice");
  }
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const auto engine, ReferenceEngine::Create({}));
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_RETURN_IF_ERROR(CheckEngine(corpus, *engine));
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                       ReadTextTokens(options.text, static_cast<uint32_t>(corpus.token_count())));
  CKV_ASSIGN_OR_RETURN(const TenantKey key, fleet.KeyOfTenant(/*make=*/false));
  CKV_RETURN_IF_ERROR(CheckText(corpus, tokens, key));

  DirectoryStub directory(fleet.directory_address(), ctl.clock);
  HolderStubFactory holders(ctl.clock);
  const std::vector<PolicyAgent> agents = MakePolicyAgents(corpus, options.count, options.tokens);
  PolicyRun run;
  run.engine = engine.get();
  run.directory = &directory;
  run.holders = &holders;
  run.clock = ctl.clock;
  run.corpus = options.corpus;
  run.tenant = ctl.fleet.tenant;
  run.local_cache_bytes = uint64_t{options.local_cache_mib} << 20;
  run.attend_timeout = std::chrono::milliseconds(options.timeout_ms);
  run.agents = agents;
  CKV_ASSIGN_OR_RETURN(const PolicyAnswers expected, Expect(ctl, options, run, corpus, tokens));
  std::vector<Compared> compared = RunRounds(ctl, options, run, corpus, expected);
  // The first one's, if there is nothing else to show.
  if (std::none_of(compared.begin(), compared.end(), [](auto& one) { return one.finished(); }))
    return compared.front().failure;
  // Without it there is no column of predictions, and all that was measured is shown.
  absl::Status predicted = Predict(run, compared);
  std::string check = kAllEqual;
  for (const Compared& one : compared) {
    if (one.different == 0) continue;
    check = absl::StrFormat("under %s, %d of %d agents differ from single-instance decoding",
                            one.policy, one.different, agents.size());
  }
  Report(ctl, options, run, corpus, compared, check);
  CKV_RETURN_IF_ERROR(Conclude(compared, check));
  return predicted;
}

}  // namespace

void AddCompareCommand(CLI::App& agents, Ctl& ctl) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* verb = AddVerb(
      agents, "compare", "Run the same agents under each policy, and compare",
      "  ckvctl agents compare --corpus gpl --text /usr/share/common-licenses/GPL-3\n"
      "  ckvctl agents compare --corpus gpl --text GPL-3 --policy cache,auto --rounds 5\n\n"
      "Every fourth agent stays with a chunk and decodes --tokens tokens. Every second one "
      "looks at a\nchunk and decodes one token. The others read the whole corpus and decode "
      "a few. They run one\nafter another in this process. Each policy and round has a "
      "requester of its own, so no rows\nare cached at its start. MEMORY is the size of its local "
      "row cache at the end, mapped\nrows included. Times are "
      "within noise if they differ by no more than the median round differs from\nthe fastest one. "
      "If a policy's rows do not fit, its line reports that.\n\n"
      "IN CALLS is the part of TIME spent in opens and attends; the engine\n"
      "takes the rest. PREDICTED is what ckvctl explain predicts for them, summed over the same\n"
      "calls, times the ratio that it reports of measured to predicted time. The requester of\n"
      "the policy's first round predicts, since it has learned from that round.");
  verb->add_option("--corpus", options->corpus, "A corpus made by corpus load --text")
      ->required()
      ->type_name("NAME");
  verb->add_option("--text", options->text, "The text it was loaded from, to check the tokens")
      ->required()
      ->type_name("FILE");
  verb->add_option(
          "--policy", options->policies,
          "Policies, with commas: route sends every query to holders; cache fetches all rows "
          "first; auto decides by itself (default: all)")
      ->delimiter(',')
      ->check(OneOf(PolicyNames()))
      ->type_name(JoinNames(PolicyNames()));
  verb->add_option("--count", options->count, "Agents")
      ->capture_default_str()
      ->check(InRange(1u, kAgentCountMax));
  verb->add_option("--tokens", options->tokens, "Tokens of an agent that stays")
      ->capture_default_str()
      ->check(InRange(1u, 1u << 16));
  verb->add_option("--rounds", options->rounds, "Runs of each policy; the fastest is shown")
      ->capture_default_str()
      ->check(InRange(1u, kRoundsMax));
  verb->add_option("--local-cache-mib", options->local_cache_mib,
                   "Room of the local row cache, in MiB")
      ->capture_default_str()
      ->check(InRange(1u, 1u << 20));
  verb->add_option("--threads", options->threads, "Threads of the single instance")
      ->capture_default_str()
      ->check(InRange(1u, WorkerPool::kThreadCountMax));
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of each open and attend");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunCompare(ctl, *options); }; });
}

}  // namespace ckv::ctl
