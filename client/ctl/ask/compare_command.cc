// ckvctl agents compare: the same agents under route, near and auto, one policy after another.

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/ask/agents.h"
#include "client/ctl/ask/policy_run.h"
#include "client/ctl/checks.h"
#include "client/ctl/commands.h"
#include "client/ctl/corpus/token_lines.h"
#include "client/ctl/time_span.h"
#include "client/engine/reference_engine.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// The factor within which auto is to be of the fastest policy.
constexpr double kAutoFactor = 1.05;
constexpr uint32_t kRoundsMax = 100;

struct CompareOptions {
  std::string corpus;
  std::string text;
  std::vector<std::string> policies = PolicyNames();
  uint32_t count = 8;
  uint32_t tokens = 256;
  uint32_t rounds = 3;
  uint32_t near_mib = 1024;
  uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  uint32_t timeout_ms = 10'000;
};

// One policy over all rounds.
struct Compared {
  std::string policy;
  std::optional<PolicyResult> fastest = {};
  std::vector<Duration> rounds = {};
  size_t different = 0;  // the most agents of a round whose tokens differ

  double seconds() const { return static_cast<double>(fastest->elapsed.count()) / 1e9; }
  // The mean of all rounds. One that was fastest by luck says nothing of a prediction.
  double call_seconds() const { return call_s / static_cast<double>(rounds.size()); }
  double call_s = 0;
  std::optional<double> predicted_s = {};  // unset if the policy decides
};

// Every round has each policy once, and begins with another one.
absl::StatusOr<std::vector<Compared>> RunRounds(const Ctl& ctl, const CompareOptions& options,
                                                const PolicyRun& run,
                                                const PolicyAnswers& expected) {
  std::vector<Compared> compared;
  for (const std::string& policy : options.policies) compared.push_back({.policy = policy});
  uint64_t tokens = 0;
  for (const PolicyAgent& agent : run.agents) tokens += agent.token_count;
  const auto progress = ctl.StartProgress(absl::StrFormat("%d agents: decode", run.agents.size()),
                                          "tokens", tokens * compared.size() * options.rounds);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < compared.size(); ++i) {
      Compared& one = compared[(round + i) % compared.size()];
      auto result = RunPolicy(run, PolicyOf(one.policy), [&] { progress->Advance(1); });
      if (!result.ok()) return Annotate(result.status(), "policy " + one.policy);
      one.rounds.push_back(result->elapsed);
      one.call_s += static_cast<double>(result->in_calls.count()) / 1e9;
      one.different = std::max(one.different, CountDifferent(result->answers, expected));
      if (!one.fastest || result->elapsed < one.fastest->elapsed) one.fastest = *std::move(result);
    }
  }
  return compared;
}

// Every policy makes the same attends. The decisions of auto are not known before.
absl::Status Predict(const PolicyRun& run, std::vector<Compared>& compared) {
  CKV_ASSIGN_OR_RETURN(const PolicyPrediction predicted,
                       PredictPolicies(run, compared.front().fastest->calls));
  for (Compared& one : compared) {
    if (one.policy == "route") one.predicted_s = predicted.route_us / 1e6;
    if (one.policy == "near") one.predicted_s = predicted.near_us / 1e6;
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

// Says how auto did; "" if there is nothing to compare it with.
std::string DescribeAuto(std::span<const Compared> compared, const Compared& fastest) {
  const auto by_itself = std::find_if(compared.begin(), compared.end(),
                                      [](const Compared& one) { return one.policy == "auto"; });
  if (by_itself == compared.end() || compared.size() < 2) return "";
  if (&*by_itself == &fastest) return "auto: the fastest";
  const double factor = by_itself->seconds() / fastest.seconds();
  return absl::StrFormat("auto: took %.3f x the time of the fastest, %s; %s", factor,
                         fastest.policy,
                         factor <= kAutoFactor ? "within 5 %" : "more than 5 % above it");
}

void Report(const Ctl& ctl, const CompareOptions& options, const PolicyRun& run,
            const Corpus& corpus, std::span<const Compared> compared, const std::string& check) {
  const Compared& fastest = *std::min_element(
      compared.begin(), compared.end(),
      [](const Compared& a, const Compared& b) { return a.seconds() < b.seconds(); });
  Table table({{"POLICY"},
               {"TIME", true},
               {"OF FASTEST", true},
               {"IN CALLS", true},
               {"PREDICTED", true},
               {"ROUTED", true},
               {"PULLED", true},
               {"MAPPED", true},
               {"MEMORY", true},
               {"NEAR", true},
               {"CHECK"}});
  Json policies = Json::array();
  for (const Compared& one : compared) {
    const PolicyResult& result = *one.fastest;
    const double factor = one.seconds() / fastest.seconds();
    table.AddRow({one.policy, absl::StrFormat("%.2f s", one.seconds()),
                  absl::StrFormat("%.2f x", factor), absl::StrFormat("%.2f s", one.call_seconds()),
                  one.predicted_s ? absl::StrFormat("%.2f s", *one.predicted_s) : "-",
                  FormatBytes(result.routed_bytes), FormatBytes(result.pulled_bytes),
                  FormatBytes(result.mapped_bytes), FormatBytes(result.near_bytes),
                  absl::StrFormat("%.0f %%", 100 * result.near_share()),
                  one.different == 0 ? "equal" : "DIFFERS"});
    Json rounds = Json::array();
    for (const Duration round : one.rounds) rounds.push_back(double(round.count()) / 1e9);
    policies.push_back({{"policy", one.policy},
                        {"seconds", one.seconds()},
                        {"rounds_s", rounds},
                        {"of_fastest", factor},
                        {"call_seconds", one.call_seconds()},
                        {"predicted_seconds", one.predicted_s ? Json(*one.predicted_s) : Json()},
                        {"bytes_routed", result.routed_bytes},
                        {"bytes_pulled", result.pulled_bytes},
                        {"bytes_mapped", result.mapped_bytes},
                        {"bytes_memory", result.near_bytes},
                        {"near_share", result.near_share()},
                        {"equal", one.different == 0}});
  }
  const std::string verdict = DescribeAuto(compared, fastest);
  std::string text =
      RenderFields({{"corpus", absl::StrFormat("%s: %s in %s", corpus.name,
                                               FormatCount(corpus.token_count(), "token"),
                                               FormatCount(corpus.chunks.size(), "chunk"))},
                    {"agents", absl::StrFormat("%d, one after another", run.agents.size())},
                    {"time", absl::StrFormat("of all agents; the fastest of %s",
                                             FormatCount(options.rounds, "round"))}});
  text += "\n" + table.Render() + "\n";
  if (!verdict.empty()) text += verdict + "\n";
  text += "check: " + check + "\n";
  ctl.Print(text, {{"corpus", corpus.name},
                   {"agent_count", run.agents.size()},
                   {"round_count", options.rounds},
                   {"policies", policies},
                   {"fastest", fastest.policy},
                   {"auto", verdict},
                   {"equal", check == kAllEqual},
                   {"check", check}});
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
  run.near_bytes = uint64_t{options.near_mib} << 20;
  run.attend_timeout = std::chrono::milliseconds(options.timeout_ms);
  run.agents = agents;
  CKV_ASSIGN_OR_RETURN(const PolicyAnswers expected, Expect(ctl, options, run, corpus, tokens));
  CKV_ASSIGN_OR_RETURN(std::vector<Compared> compared, RunRounds(ctl, options, run, expected));
  CKV_RETURN_IF_ERROR(Predict(run, compared));
  std::string check = kAllEqual;
  for (const Compared& one : compared) {
    if (one.different == 0) continue;
    check = absl::StrFormat("under %s, %d of %d agents differ from single-instance decoding",
                            one.policy, one.different, agents.size());
  }
  Report(ctl, options, run, corpus, compared, check);
  return check == kAllEqual ? absl::OkStatus() : absl::InternalError(check);
}

}  // namespace

void AddCompareCommand(CLI::App& agents, Ctl& ctl) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* verb = AddVerb(
      agents, "compare", "Run the same agents under each policy, and compare",
      "  ckvctl agents compare --corpus gpl --text /usr/share/common-licenses/GPL-3\n"
      "  ckvctl agents compare --corpus gpl --text GPL-3 --policy near,auto --rounds 5\n\n"
      "Every fourth agent stays with a chunk and decodes --tokens tokens. Every second one "
      "looks at a\nchunk and decodes one token. The others read the whole corpus and decode "
      "a few. They run one\nafter another in this process. Each policy and round has a "
      "requester of its own, so no rows\nare near at its start. MEMORY is what its near "
      "store has taken at the end, mapped rows\nincluded.\n\n"
      "IN CALLS is the part of the time that opens and attends take, the mean of all rounds; the\n"
      "engine takes the rest. PREDICTED is what ckvctl explain says of them, summed over the same\n"
      "calls.");
  verb->add_option("--corpus", options->corpus, "A corpus made by corpus load --text")
      ->required()
      ->type_name("NAME");
  verb->add_option("--text", options->text, "The text it was loaded from, to check the tokens")
      ->required()
      ->type_name("FILE");
  verb->add_option("--policy", options->policies,
                   "Policies, with commas: route sends every query to holders; near pulls all rows "
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
  verb->add_option("--near-mib", options->near_mib, "Room for pulled rows, in MiB")
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
