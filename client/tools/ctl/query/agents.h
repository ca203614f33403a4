// Agents that decode against a shared corpus: by routing, and single-instance to compare with.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet.h"
#include "client/tools/reference_engine/decode.h"
#include "client/tools/reference_engine/engine.h"
#include "proto/corpus.h"

namespace ckv::ctl {

inline constexpr uint32_t kAgentCountMax = 256;

// The inputs that all agents of a run share.
struct AgentRun {
  const Engine* engine = nullptr;
  Corpus corpus;
  uint32_t token_count = 64;
  bool f32 = true;
  uint32_t timeout_ms = 10'000;  // limit of each attend
  v1::ContextPolicy policy = v1::CONTEXT_POLICY_ROUTE;
};

// The prompt's tokens; a token a byte.
using Prompt = std::vector<int32_t>;

// `count` short prompts, all different: the built-in questions, or the lines of `path` in turn.
//   NotFound, InvalidArgument     of the file.
absl::StatusOr<std::vector<Prompt>> MakePrompts(const std::string& path, uint32_t count);

struct AgentResult {
  absl::Status status;
  std::vector<GreedyChoice> choices;
  Duration first_token{0};  // the prompt's prefill
  Duration decode{0};       // the tokens after the first
  uint64_t bytes_routed = 0;
  uint32_t holder_count = 0;
  // Pairs of a query row and a row of the corpus that it attended, at holders and at the requester.
  uint64_t routed_pairs = 0, cached_pairs = 0;

  // The time of one token after the first, or 0 with fewer than two.
  double decode_ms_per_token() const;
};

// Called after each token, from the agents' threads.
using TokenCallback = std::function<void()>;

// One thread and one AttendStream an agent; all decode at once.
std::vector<AgentResult> DecodeRouted(const AgentRun& run, std::span<const Prompt> prompts,
                                      v1::RequesterService::StubInterface& requester,
                                      const Fleet& fleet, const TokenCallback& on_token);

// The same agents over the rows of `prefilled` in this process, on `threads` threads.
std::vector<AgentResult> DecodeAlone(const AgentRun& run, std::span<const Prompt> prompts,
                                     const Sequence& prefilled, uint32_t threads, Clock& clock,
                                     const TokenCallback& on_token);

// The point at which two decodes of one agent part: the first token that differs, and by how much
// the single-instance one was ahead there. Later tokens follow from other texts and compare
// nothing.
struct Difference {
  uint32_t token = 0;
  int32_t routed = 0;
  int32_t alone = 0;
  float margin = 0;
};
std::optional<Difference> FirstDifference(std::span<const GreedyChoice> routed,
                                          std::span<const GreedyChoice> alone);

// The margin below which a differing token is rounding and not an error.
//   f32    0, because routed and single-instance do the same sums in the same tree.
//   bf16   0.1: rounded on the wire, the largest of 100,000 logits moved by 0.034.
// Two logits move against each other by at most twice as much; the bound leaves half as much again.
float MarginMax(const AgentRun& run);

// The check of a run whose agents all say what a single instance says.
inline constexpr char kAllEqual[] = "every agent's tokens equal single-instance decoding";

// FNV-1a over the tokens: what one agent said, short enough for a table.
std::string TokensHash(std::span<const GreedyChoice> choices);

// Checks that `corpus` is of the engine's model.
//   FailedPrecondition  it is not; says how to make one that is.
absl::Status CheckEngine(const Corpus& corpus, const Engine& engine);

// Checks that `tokens` are what `corpus` was loaded from, by its chunks' ids. They are plain or
// made with `key`.
//   InvalidArgument     they are not; says from which chunk on.
absl::Status CheckText(const Corpus& corpus, std::span<const int32_t> tokens,
                       const TenantKey& key = {});

// Computes the rows of `tokens` on `threads` threads in this process, and shows how far it is.
absl::StatusOr<std::unique_ptr<Sequence>> PrefillAlone(const Ctl& ctl, const Engine& engine,
                                                       std::span<const int32_t> tokens,
                                                       uint32_t threads);

}  // namespace ckv::ctl
