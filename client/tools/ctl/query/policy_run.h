// Runs the same agents under one policy or another, each time with a fresh requester in this
// process.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/requester.h"
#include "client/tools/ctl/query/agents.h"
#include "client/tools/reference_engine/decode.h"
#include "client/tools/reference_engine/engine.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "transport/control.h"

namespace ckv::ctl {

// The names of the policies as --policy takes them: route, cache, auto.
const std::vector<std::string>& PolicyNames();
// `name` must be one of PolicyNames().
ContextPolicy PolicyOf(std::string_view name);

// An agent's work.
struct PolicyAgent {
  std::vector<uint32_t> chunks;  // ordinals of the corpus chunks that it reads, ascending
  Prompt prompt;
  uint32_t token_count = 1;
};

// Makes `count` agents. Every fourth one keeps one chunk and decodes `token_count` tokens. Every
// second one reads one chunk and decodes one token. The others read the whole corpus and decode a
// part of `token_count`, at least one token. The agents use the chunks of the corpus in turn.
// Prompts have two tokens: a long prompt would be most of the work, and cost the same under every
// policy.
std::vector<PolicyAgent> MakePolicyAgents(const Corpus& corpus, uint32_t count,
                                          uint32_t token_count);

// Returns the capacity that policy cache needs: the rows of the agent that reads the most. Agents
// run one after another, and each releases its rows.
uint64_t LocalCacheBytesNeeded(const Corpus& corpus, std::span<const PolicyAgent> agents);

// The inputs that all runs share. All pointers are borrowed.
struct PolicyRun {
  const Engine* engine = nullptr;
  DirectoryControl* directory = nullptr;
  HolderControlFactory* holders = nullptr;
  Clock* clock = nullptr;
  std::string corpus;
  std::string tenant;
  uint64_t local_cache_bytes = 0;  // capacity of each requester's local row cache
  Duration attend_timeout{};       // limit of each open and attend
  std::span<const PolicyAgent> agents;
};

// The tokens of each agent.
using PolicyAnswers = std::vector<std::vector<GreedyChoice>>;

// The attends that an agent made with this number of query rows.
struct PolicyCalls {
  size_t agent = 0;
  uint32_t query_rows = 0;
  uint64_t count = 0;
  uint64_t own_tokens = 0;  // the agent's own rows, summed over all attends
};

struct PolicyResult {
  Duration elapsed{0};   // all agents, one after another
  Duration in_calls{0};  // the part spent in opens and attends; the rest is the engine's
  std::vector<PolicyCalls> calls;
  uint64_t routed_bytes = 0;       // queries and partials, with the headers of their frames
  uint64_t prefetched_bytes = 0;   // rows copied to the local row cache
  uint64_t mapped_bytes = 0;       // rows of holders on this host, mapped without a copy
  uint64_t local_cache_bytes = 0;  // memory that the local row cache uses at the end
  // Pairs of a query row and a corpus row that it attended, at holders and in this process.
  uint64_t routed_pairs = 0, cached_pairs = 0;
  PolicyAnswers answers;
  std::shared_ptr<Requester> requester;  // the one that made the calls

  // The share of the pairs that were attended in this process.
  double cached_share() const;
};

// Runs the agents once, one after another, with a requester that has no locally cached rows yet.
// Its lanes are connected before timing starts. The constants that policy auto measures are timed.
//   Errors of Requester::Resolve, Open and Attend, with the agent that failed.
absl::StatusOr<PolicyResult> RunPolicy(const PolicyRun& run, ContextPolicy policy,
                                       const TokenCallback& on_token);

// Returns the microseconds that the opens and attends of `calls` take under a fixed policy,
// according to `requester`'s explain of each. `requester` must have made calls like them. Under
// kRoute everything is routed. Under kCached the corpus is copied here once, and everything is
// attended in this process.
//   Errors of Requester::Resolve and Explain.
absl::StatusOr<double> PredictPolicy(const PolicyRun& run, ContextPolicy policy,
                                     Requester& requester, std::span<const PolicyCalls> calls);

// Returns the answers of the same agents over the rows of `prefilled`, which is all of `corpus`.
absl::StatusOr<PolicyAnswers> RunPolicyAlone(const PolicyRun& run, const Corpus& corpus,
                                             const Sequence& prefilled,
                                             const TokenCallback& on_token);

// Returns how many agents decoded different tokens, or a different number of them.
size_t CountDifferent(const PolicyAnswers& answers, const PolicyAnswers& expected);

}  // namespace ckv::ctl
