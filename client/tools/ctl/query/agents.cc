// Decodes agents against a corpus, for ckvctl agents. MakePrompts reads or makes a prompt for each.
// DecodeRouted runs one thread and one AttendStream for each agent: RoutedContext opens the context
// with its first request. DecodeAlone decodes the same prompts over rows that PrefillAlone computed
// in this process. FirstDifference compares the tokens of both. CheckEngine and CheckText refuse a
// corpus of another model or text before that.

#include "client/tools/ctl/query/agents.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "store/memory/chunk_id.h"

namespace ckv::ctl {
namespace {

constexpr float kBf16MarginMax = 0.1f;
// One agent's stream; each attend has its own, shorter limit.
constexpr Duration kRunTimeout = std::chrono::hours(1);
constexpr size_t kPromptBytesMax = 4096;

constexpr std::array<const char*, 8> kQuestions = {
    "May I sell copies of this?",    "Who owes me the source?",
    "What if I change one line?",    "Does a patent stand in my way?",
    "When does my permission end?",  "Can I link it with other work?",
    "What must I show to the user?", "Is there any warranty at all?"};

// The shared context of one agent, attended through the requester's stream. The first request opens
// it; later ones contain the layer and rows only.
class RoutedContext {
 public:
  RoutedContext(const AgentRun& run, v1::RequesterService::StubInterface& requester,
                const Fleet& fleet)
      : run_(run), fleet_(fleet) {
    fleet.Prepare(context_, kRunTimeout);
    stream_ = requester.AttendStream(&context_);
    request_.set_corpus(run.corpus.name);
    request_.set_tenant(run.corpus.tenant);
    request_.set_corpus_version(run.corpus.version);
    request_.set_wire(run.f32 ? v1::PARTIAL_DTYPE_F32 : v1::PARTIAL_DTYPE_BF16);
    request_.set_timeout_ms(run.timeout_ms);
    request_.set_reply_bytes_max(kMessageBytesMax);
    request_.set_policy(run.policy);
  }
  RoutedContext(const RoutedContext&) = delete;
  RoutedContext& operator=(const RoutedContext&) = delete;
  ~RoutedContext() {
    if (finished_) return;
    // Nothing is in flight here unless an attend failed, so there is no reply to lose.
    context_.TryCancel();
    stream_->Finish();
  }

  absl::Status Attend(uint32_t layer, const QueryView& q, const PartialView& out) {
    request_.set_tag(request_.tag() + 1);
    request_.set_layer(layer);
    request_.set_row_count(q.count);
    request_.set_q(q.data, size_t{q.count} * q.stride * sizeof(uint16_t));
    if (!stream_->Write(request_) || !stream_->Read(&reply_)) {
      finished_ = true;
      const absl::Status status = fleet_.RequesterError(stream_->Finish(), "AttendStream");
      return status.ok() ? absl::UnavailableError("the requester ended the stream") : status;
    }
    request_.clear_corpus();
    request_.clear_tenant();
    request_.clear_corpus_version();
    request_.clear_policy();
    return TakeReply(q.count, out);
  }

  uint64_t bytes_routed() const { return bytes_routed_; }
  uint32_t holder_count() const { return holder_count_; }
  uint64_t routed_pairs() const { return routed_pairs_; }
  uint64_t cached_pairs() const { return cached_pairs_; }

 private:
  absl::Status TakeReply(uint32_t rows, const PartialView& out) {
    if (reply_.tag() != request_.tag()) {
      return absl::InternalError(absl::StrFormat("the requester answered request %d, not %d",
                                                 reply_.tag(), request_.tag()));
    }
    if (reply_.code() != 0) {
      const auto code = static_cast<grpc::StatusCode>(reply_.code());
      return fleet_.RequesterError(grpc::Status(code, reply_.message()), "AttendStream");
    }
    const v1::AttendReply& reply = reply_.reply();
    const size_t row_bytes = size_t{rows} * sizeof(float);
    const size_t o_bytes = row_bytes * run_.corpus.geometry.d_v;
    if (reply.o().size() != o_bytes || reply.m().size() != row_bytes ||
        reply.l().size() != row_bytes) {
      return absl::InternalError(
          absl::StrFormat("the requester answered %d rows of %d", reply.row_count(), rows));
    }
    std::memcpy(out.o, reply.o().data(), o_bytes);
    std::memcpy(out.m, reply.m().data(), row_bytes);
    std::memcpy(out.l, reply.l().data(), row_bytes);
    bytes_routed_ += reply.bytes_sent() + reply.bytes_received();
    holder_count_ = std::max(holder_count_, reply.holder_count());
    routed_pairs_ += reply.routed_pairs();
    cached_pairs_ += reply.cached_pairs();
    return absl::OkStatus();
  }

  const AgentRun& run_;
  const Fleet& fleet_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriterInterface<v1::AttendRequest, v1::AttendStreamReply>>
      stream_;
  v1::AttendRequest request_;
  v1::AttendStreamReply reply_;
  bool finished_ = false;
  uint64_t bytes_routed_ = 0;
  uint64_t routed_pairs_ = 0, cached_pairs_ = 0;
  uint32_t holder_count_ = 0;
};

// Decodes one agent behind `context`; fills everything but what the context counts.
AgentResult DecodeOne(const AgentRun& run, const Prompt& prompt, ContextAttention context,
                      WorkerPool& pool, Clock& clock, const TokenCallback& on_token) {
  AgentResult result;
  SequenceOptions options;
  options.position = run.corpus.token_count();
  options.context = std::move(context);
  options.pool = &pool;
  auto sequence = run.engine->Start(std::move(options));
  if (!sequence.ok()) {
    result.status = sequence.status();
    return result;
  }
  const Instant start = clock.Now();
  Instant first = start;
  auto choices = DecodeGreedy(**sequence, run.engine->vocabulary(), prompt, run.token_count,
                              [&](const GreedyChoice&) {
                                if (first == start) first = clock.Now();
                                on_token();
                                return absl::OkStatus();
                              });
  result.status = choices.status();
  if (choices.ok()) result.choices = *std::move(choices);
  result.first_token = first - start;
  result.decode = clock.Now() - first;
  return result;
}

}  // namespace

double AgentResult::decode_ms_per_token() const {
  if (choices.size() < 2) return 0;
  return static_cast<double>(decode.count()) / 1e6 / static_cast<double>(choices.size() - 1);
}

absl::StatusOr<std::vector<Prompt>> MakePrompts(const std::string& path, uint32_t count) {
  std::vector<std::string> lines;
  if (path.empty()) {
    lines.assign(kQuestions.begin(), kQuestions.end());
  } else {
    std::ifstream in(path);
    if (!in) return absl::NotFoundError(absl::StrFormat("%s: cannot be read", path));
    for (std::string line; std::getline(in, line) && lines.size() < kAgentCountMax;) {
      if (line.size() > kPromptBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat("%s: a line of %d bytes, limit %d", path,
                                                          line.size(), kPromptBytesMax));
      }
      if (!line.empty()) lines.push_back(std::move(line));
    }
    if (lines.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: no line to use as a prompt", path));
    }
  }
  std::vector<Prompt> prompts;
  for (uint32_t agent = 0; agent < count; ++agent) {
    std::string text = lines[agent % lines.size()];
    // The agent's number is at the end, because the last byte mostly determines the next one.
    // Agents that all ended in '?' would decode alike, which is a weaker check. A file's lines are
    // used unchanged.
    if (path.empty()) text = absl::StrFormat("\n%s Agent %d", text, agent);
    Prompt prompt;
    for (const char c : text) prompt.push_back(static_cast<unsigned char>(c));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<AgentResult> DecodeRouted(const AgentRun& run, std::span<const Prompt> prompts,
                                      v1::RequesterService::StubInterface& requester,
                                      const Fleet& fleet, const TokenCallback& on_token) {
  std::vector<AgentResult> results(prompts.size());
  std::vector<std::thread> threads;
  for (size_t agent = 0; agent < prompts.size(); ++agent) {
    threads.emplace_back([&, agent] {
      WorkerPool pool(1);
      RoutedContext context(run, requester, fleet);
      results[agent] = DecodeOne(
          run, prompts[agent],
          [&](uint32_t layer, const QueryView& q, const PartialView& out) {
            return context.Attend(layer, q, out);
          },
          pool, fleet.clock(), on_token);
      results[agent].bytes_routed = context.bytes_routed();
      results[agent].holder_count = context.holder_count();
      results[agent].routed_pairs = context.routed_pairs();
      results[agent].cached_pairs = context.cached_pairs();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<AgentResult> DecodeAlone(const AgentRun& run, std::span<const Prompt> prompts,
                                     const Sequence& prefilled, uint32_t threads, Clock& clock,
                                     const TokenCallback& on_token) {
  std::vector<AgentResult> results(prompts.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < std::max(1u, threads); ++worker) {
    workers.emplace_back([&] {
      WorkerPool pool(1);
      LocalContext context(run.engine->geometry(), &pool);
      uint32_t begin = 0;
      for (const ChunkPlacement& chunk : run.corpus.chunks) {
        context.AddCut(prefilled, begin, chunk.token_count);
        begin += chunk.token_count;
      }
      for (size_t agent = next.fetch_add(1); agent < prompts.size(); agent = next.fetch_add(1)) {
        results[agent] = DecodeOne(
            run, prompts[agent],
            [&](uint32_t layer, const QueryView& q, const PartialView& out) {
              return context.Attend(layer, q, out);
            },
            pool, clock, on_token);
      }
    });
  }
  for (std::thread& thread : workers) thread.join();
  return results;
}

std::optional<Difference> FirstDifference(std::span<const GreedyChoice> routed,
                                          std::span<const GreedyChoice> alone) {
  const size_t count = std::min(routed.size(), alone.size());
  for (size_t i = 0; i < count; ++i) {
    if (routed[i].token == alone[i].token) continue;
    return Difference{static_cast<uint32_t>(i), routed[i].token, alone[i].token, alone[i].margin};
  }
  return {};
}

float MarginMax(const AgentRun& run) { return run.f32 ? 0 : kBf16MarginMax; }

std::string TokensHash(std::span<const GreedyChoice> choices) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const GreedyChoice& choice : choices) {
    hash = (hash ^ static_cast<uint32_t>(choice.token)) * 0x100000001b3u;
  }
  return absl::StrFormat("%016x", hash);
}

absl::Status CheckEngine(const Corpus& corpus, const Engine& engine) {
  if (corpus.geometry == engine.geometry()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "corpus %s is not of the reference engine's model: %s\n  ckvctl corpus load %s FILE --text "
      "--replace makes one that is",
      corpus.name, DescribeDifference(engine.geometry(), corpus.geometry), corpus.name));
}

absl::Status CheckText(const Corpus& corpus, std::span<const int32_t> tokens,
                       const TenantKey& key) {
  if (tokens.size() != corpus.token_count()) {
    return absl::InvalidArgumentError(absl::StrFormat("the text gives %d tokens, corpus %s has %d",
                                                      tokens.size(), corpus.name,
                                                      corpus.token_count()));
  }
  const ChunkId fingerprint = ModelFingerprint(corpus.geometry);
  ChunkId parent;
  size_t begin = 0;
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    const ChunkId plain =
        ComputeChunkId(fingerprint, parent, begin, tokens.subspan(begin, chunk.token_count));
    if (plain != chunk.id && TaggedChunkId(plain, VerificationTagOf(plain, key)) != chunk.id) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "corpus %s was loaded from another text: chunk %d differs\n  give the file it was "
          "loaded from with --text",
          corpus.name, i));
    }
    parent = chunk.id;
    begin += chunk.token_count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Sequence>> PrefillAlone(const Ctl& ctl, const Engine& engine,
                                                       std::span<const int32_t> tokens,
                                                       uint32_t threads) {
  WorkerPool pool(threads);
  const auto progress =
      ctl.StartProgress("single instance: prefill", "tokens", tokens.size(), /*quadratic=*/true);
  uint32_t last = 0;
  return engine.Prefill(tokens, 0, pool, [&](uint32_t done) {
    progress->Advance(done - last);
    last = done;
    return absl::OkStatus();
  });
}

}  // namespace ckv::ctl
