// Runs agents under one policy in this process. RunPolicy, in order: makes a requester without
// local rows; resolves the corpus; opens the lanes (BringLanesUp); measures the holders if the
// policy does not (Measure); lets the agents decode one after another. Only the last step is timed.
// PredictPolicy computes the time of the same calls by the cost model. RunPolicyAlone decodes
// without holders, for the tokens to compare with.

#include "client/tools/ctl/query/policy_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "client/prefetch/local_row_cache.h"
#include "client/requester.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// An agent that reads the whole corpus decodes a 32nd of the tokens of an agent that stays with one
// chunk. Their times are then similar over a corpus of some 8 to 32 chunks.
constexpr uint32_t kReaderTokensPart = 32;

// The context of one agent, attended together with the agent's own rows.
class PolicyContext {
 public:
  PolicyContext(const PolicyRun& run, Requester& requester, PolicyResult& result)
      : run_(run), requester_(requester), result_(result), agent_(result.answers.size()) {}

  absl::Status Open(const std::shared_ptr<const Corpus>& corpus, const PolicyAgent& agent,
                    ContextPolicy policy) {
    std::vector<ChunkUse> uses;
    for (const uint32_t chunk : agent.chunks) uses.push_back({chunk, 0});
    const ContextPart part = {corpus, uses};
    const Instant begin = run_.clock->Now();
    CKV_ASSIGN_OR_RETURN(context_, requester_.Open({.parts = {&part, 1}, .policy = policy},
                                                   begin + run_.attend_timeout));
    result_.in_calls += run_.clock->Now() - begin;
    return absl::OkStatus();
  }

  absl::Status Attend(uint32_t layer, const QueryView& q, const SequenceRows& sequence,
                      const PartialView& out) {
    const OwnRows own = {sequence.rows, sequence.visible};
    const Segment segment = {.row_count = q.count, .context = &context_, .own = {&own, 1}};
    LayerCall call;
    call.layer = layer;
    call.q = q;
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    const Instant begin = run_.clock->Now();
    call.deadline = begin + run_.attend_timeout;
    AttendReport report;
    CKV_RETURN_IF_ERROR(requester_.Attend(call, out, &report));
    result_.in_calls += run_.clock->Now() - begin;
    Count(q.count, sequence.rows.count);
    result_.routed_bytes += report.bytes_sent + report.bytes_received;
    result_.routed_pairs += report.routed_pairs;
    result_.cached_pairs += report.cached_pairs;
    return absl::OkStatus();
  }

 private:
  void Count(uint32_t query_rows, uint64_t own_tokens) {
    auto& calls = result_.calls;
    auto known = std::find_if(calls.begin(), calls.end(), [&](const PolicyCalls& of) {
      return of.agent == agent_ && of.query_rows == query_rows;
    });
    if (known == calls.end())
      known = calls.insert(calls.end(), {.agent = agent_, .query_rows = query_rows});
    ++known->count;
    known->own_tokens += own_tokens;
  }

  const PolicyRun& run_;
  Requester& requester_;
  PolicyResult& result_;
  const size_t agent_;
  Context context_;
};

absl::StatusOr<std::vector<GreedyChoice>> DecodeAgent(const PolicyRun& run,
                                                      const PolicyAgent& agent,
                                                      SequenceOptions options,
                                                      const TokenCallback& on_token) {
  WorkerPool pool(1);
  options.pool = &pool;
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> sequence,
                       run.engine->Start(std::move(options)));
  return DecodeGreedy(*sequence, run.engine->vocabulary(), agent.prompt, agent.token_count,
                      [&](const GreedyChoice&) {
                        on_token();
                        return absl::OkStatus();
                      });
}

// Opens an agent's context, decodes, and closes it.
absl::StatusOr<std::vector<GreedyChoice>> DecodeWith(const PolicyRun& run, Requester& requester,
                                                     const std::shared_ptr<const Corpus>& corpus,
                                                     const PolicyAgent& agent, ContextPolicy policy,
                                                     PolicyResult& result,
                                                     const TokenCallback& on_token) {
  PolicyContext context(run, requester, result);
  CKV_RETURN_IF_ERROR(context.Open(corpus, agent, policy));
  SequenceOptions sequence;
  sequence.position = corpus->token_count();
  sequence.whole = [&](uint32_t layer, const QueryView& q, const SequenceRows& own,
                       const PartialView& out) { return context.Attend(layer, q, own, out); };
  return DecodeAgent(run, agent, std::move(sequence), on_token);
}

absl::StatusOr<std::unique_ptr<Requester>> NewRequester(const PolicyRun& run) {
  RequesterOptions options;
  options.id = "ckvctl";
  options.clock = run.clock;
  options.local_cache_bytes = run.local_cache_bytes;
  return Requester::Create(options, run.directory, run.holders);
}

// Returns the time of one attend that is routed to the best replica of every group, together with
// own rows. Leaves out the merge, which is part of the measured ratio of attends to this time.
double RoutedUs(const DecisionInput& input, double own_us) {
  std::vector<RankedCandidate> ranked(input.candidates.size());
  RankCandidates(input, Primitive::kRoute, ranked);
  CallTime time(own_us);
  std::optional<uint32_t> group;
  for (const RankedCandidate& place : ranked) {
    const Candidate& candidate = input.candidates[place.index];
    if (group == candidate.group) continue;
    group = candidate.group;
    time.Add(candidate.seat, place.cost.total_us, place.cost.busy_us);
  }
  return time.Us();
}

// Routes one row to every chunk.
absl::Status BringLanesUp(const PolicyRun& run, Requester& requester,
                          const std::shared_ptr<const Corpus>& corpus) {
  const Geometry& geometry = corpus->geometry;
  const std::vector<uint16_t> q(geometry.d_qk);
  std::vector<float> o(geometry.d_v), m(1), l(1);
  AttendCall call;
  call.corpus = corpus;
  call.q = {q.data(), 1, geometry.d_qk};
  call.deadline = run.clock->Now() + run.attend_timeout;
  return requester.Attend(call, {o.data(), m.data(), l.data(), PartialDtype::kF32}, nullptr);
}

// Makes the requester measure the holders and this host. A fixed policy decides nothing, so it
// would measure nothing. Its calls would then have no constants to correct, and predictions no
// calls to learn from.
absl::Status Measure(const PolicyRun& run, Requester& requester,
                     const std::shared_ptr<const Corpus>& corpus) {
  ExplainCall question;
  question.corpus = corpus;
  question.query_rows = 1;
  question.deadline = run.clock->Now() + run.attend_timeout;
  return requester.Explain(question).status();
}

}  // namespace

const std::vector<std::string>& PolicyNames() {
  static const std::vector<std::string> names = {"route", "cache", "auto"};
  return names;
}

ContextPolicy PolicyOf(std::string_view name) {
  if (name == "route") return ContextPolicy::kRoute;
  return name == "cache" ? ContextPolicy::kCache : ContextPolicy::kAuto;
}

double PolicyResult::cached_share() const {
  const uint64_t all = routed_pairs + cached_pairs;
  return all == 0 ? 0 : static_cast<double>(cached_pairs) / static_cast<double>(all);
}

std::vector<PolicyAgent> MakePolicyAgents(const Corpus& corpus, uint32_t count,
                                          uint32_t token_count) {
  const auto chunk_count = static_cast<uint32_t>(corpus.chunks.size());
  std::vector<PolicyAgent> agents;
  for (uint32_t i = 0; i < count; ++i) {
    PolicyAgent agent;
    // The last token mostly determines the next one, so the agents' last tokens differ.
    agent.prompt = {'\n', static_cast<int32_t>('0' + i % 75)};
    agent.chunks = {i % chunk_count};
    if (i % 4 == 0) agent.token_count = token_count;
    if (i % 4 == 2) {
      agent.token_count = std::max(1u, token_count / kReaderTokensPart);
      agent.chunks.clear();
      for (uint32_t chunk = 0; chunk < chunk_count; ++chunk) agent.chunks.push_back(chunk);
    }
    agents.push_back(std::move(agent));
  }
  return agents;
}

uint64_t LocalCacheBytesNeeded(const Corpus& corpus, std::span<const PolicyAgent> agents) {
  uint64_t most = 0;
  for (const PolicyAgent& agent : agents) {
    uint64_t bytes = 0;
    for (const uint32_t chunk : agent.chunks)
      bytes += LocalRowCache::BytesOf(corpus.geometry, corpus.chunks[chunk].token_count);
    most = std::max(most, bytes);
  }
  return most;
}

absl::StatusOr<PolicyResult> RunPolicy(const PolicyRun& run, ContextPolicy policy,
                                       const TokenCallback& on_token) {
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<Requester> requester, NewRequester(run));
  CKV_ASSIGN_OR_RETURN(
      const std::shared_ptr<const Corpus> corpus,
      requester->Resolve(run.corpus, run.tenant, run.clock->Now() + run.attend_timeout));
  CKV_RETURN_IF_ERROR(BringLanesUp(run, *requester, corpus));
  if (policy != ContextPolicy::kAuto) CKV_RETURN_IF_ERROR(Measure(run, *requester, corpus));

  PolicyResult result;
  const Instant start = run.clock->Now();
  for (const PolicyAgent& agent : run.agents) {
    auto answer = DecodeWith(run, *requester, corpus, agent, policy, result, on_token);
    if (!answer.ok()) {
      return Annotate(answer.status(), absl::StrFormat("agent %d", result.answers.size()));
    }
    result.answers.push_back(*std::move(answer));
  }
  result.elapsed = run.clock->Now() - start;
  const LocalRowStats cache = requester->Stats().local_cache;
  result.prefetched_bytes = cache.prefetched_bytes;
  result.mapped_bytes = cache.mapped_bytes;
  result.local_cache_bytes = cache.bytes;
  result.requester = requester;
  return result;
}

absl::StatusOr<double> PredictPolicy(const PolicyRun& run, ContextPolicy policy,
                                     Requester& requester, std::span<const PolicyCalls> calls) {
  CKV_ASSIGN_OR_RETURN(
      const std::shared_ptr<const Corpus> corpus,
      requester.Resolve(run.corpus, run.tenant, run.clock->Now() + run.attend_timeout));
  ExplainCall question;
  question.corpus = corpus;
  question.wire = PartialDtype::kF32;
  const auto explain = [&](const std::vector<uint32_t>& chunks, uint32_t query_rows) {
    question.chunks = chunks;
    question.query_rows = query_rows;
    question.deadline = run.clock->Now() + run.attend_timeout;
    return requester.Explain(question);
  };
  double us = 0;
  for (const PolicyCalls& of : calls) {
    CKV_ASSIGN_OR_RETURN(const Explanation said,
                         explain(run.agents[of.agent].chunks, of.query_rows));
    const CostBreakdown& route = said.decision.cost(Primitive::kRoute);
    if (!route.offered) return absl::UnavailableError(route.why_not);
    const auto count = static_cast<double>(of.count);
    const double own_tokens = static_cast<double>(of.own_tokens) / count;
    const auto here_us = [&](double tokens) {
      return AttendHereTime(said.input.here, of.query_rows, tokens).Us();
    };
    us += count *
          (policy == ContextPolicy::kRoute
               ? said.route_ratio.value_or(1) * RoutedUs(said.input, here_us(own_tokens))
               : said.cached_ratio.value_or(1) * here_us(double(said.input.tokens) + own_tokens));
  }
  if (policy == ContextPolicy::kRoute) return us;
  // The query rows do not affect a prefetch. Rows that are cached by now were not at first.
  CKV_ASSIGN_OR_RETURN(Explanation whole, explain({}, 1));
  whole.input.cached_tokens = 0;
  const Decision decision = Decide(whole.input);
  const CostBreakdown& fetch = decision.cost(Primitive::kFetch);
  if (!fetch.offered) return absl::UnavailableError(fetch.why_not);
  return us + fetch.probe_us + fetch.transfer_us;
}

absl::StatusOr<PolicyAnswers> RunPolicyAlone(const PolicyRun& run, const Corpus& corpus,
                                             const Sequence& prefilled,
                                             const TokenCallback& on_token) {
  std::vector<uint32_t> begins;
  uint32_t end = 0;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    begins.push_back(end);
    end += chunk.token_count;
  }
  PolicyAnswers answers;
  WorkerPool pool(1);
  for (const PolicyAgent& agent : run.agents) {
    LocalContext context(run.engine->geometry(), &pool);
    for (const uint32_t chunk : agent.chunks) {
      context.AddCut(prefilled, begins[chunk], corpus.chunks[chunk].token_count);
    }
    SequenceOptions sequence;
    sequence.position = end;
    sequence.context = [&](uint32_t layer, const QueryView& q, const PartialView& out) {
      return context.Attend(layer, q, out);
    };
    CKV_ASSIGN_OR_RETURN(auto answer, DecodeAgent(run, agent, std::move(sequence), on_token));
    answers.push_back(std::move(answer));
  }
  return answers;
}

size_t CountDifferent(const PolicyAnswers& answers, const PolicyAnswers& expected) {
  size_t different = std::max(answers.size(), expected.size());
  for (size_t i = 0; i < std::min(answers.size(), expected.size()); ++i) {
    const bool equal = answers[i].size() == expected[i].size() &&
                       !FirstDifference(answers[i], expected[i]).has_value();
    different -= equal ? 1 : 0;
  }
  return different;
}

}  // namespace ckv::ctl
