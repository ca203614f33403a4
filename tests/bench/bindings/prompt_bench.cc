// Question: how long does a requester take from a prompt of 32,768 tokens to its chunks, in a
// directory of 100,000? Bounds: two hashes per offset and key, 6 multiplications; 8 bytes of
// message and a look-up in a table that fits a cache each; SHA-256 over the tokens that are found.

#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/directory_stub.h"
#include "client/holders/directory_view.h"
#include "client/prompt_match.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"
#include "server/services/directory_service.h"
#include "store/corpus/cutter.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

constexpr size_t kCorpora = 100, kChunks = 1000, kPromptTokens = 32'768;
constexpr size_t kCorpusTokens = kChunks * 512 * 2;  // cuts give fewer chunks than that of each
constexpr CutSizes kSizes = {.min_tokens = 128, .avg_tokens = 512, .max_tokens = 2048};
constexpr uint32_t kVocabulary = 128'000;
// A requester works for a tenant with a key, so it computes and sends the hashes twice.
constexpr char kTenant[] = "acme";

TenantKey KeyOf(const std::string& tenant) {
  TenantKey key;
  if (!tenant.empty()) key.bytes.fill(7);
  return key;
}

// A directory that has the tenant's key, like one with a folder.
class KeyedDirectory final : public DirectoryControl {
 public:
  explicit KeyedDirectory(DirectoryControl* directory) : directory_(*directory) {}
  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline) override {
    return directory_.GetCorpus(name, tenant, deadline);
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override {
    return directory_.ListMembers(deadline);
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                  Instant deadline) override {
    return directory_.LocateChunk(id, tenant, deadline);
  }
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant /*deadline*/) override {
    return KeyOf(std::string(tenant));
  }
  absl::StatusOr<PromptChunks> FindPrompt(std::span<const uint64_t> heads,
                                          const std::optional<ChunkId>& model,
                                          std::string_view tenant, Instant deadline) override {
    return directory_.FindPrompt(heads, model, tenant, deadline);
  }

 private:
  DirectoryControl& directory_;
};

std::vector<int32_t> RandomTokens(size_t count, std::mt19937_64& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
  return tokens;
}

// Publishes standalone chunks, half of the corpora shared and half the tenant's. Makes a prompt of
// ranges of their tokens with other tokens between them.
struct World {
  World() {
    std::mt19937_64 random(1);
    const Geometry geometry = *NamedGeometry("deepseek-v2-lite");
    const ChunkId fingerprint = ModelFingerprint(geometry);
    for (size_t c = 0; c < kCorpora; ++c) {
      Corpus corpus;
      corpus.name = absl::StrCat("documents-", c);
      corpus.tenant = c % 2 == 0 ? "" : kTenant;
      corpus.geometry = geometry;
      const TenantKey key = KeyOf(corpus.tenant);
      const std::vector<int32_t> tokens = RandomTokens(kCorpusTokens, random);
      std::vector<TokenRange> ranges = CutByContent(tokens, kSizes);
      CKV_CHECK(ranges.size() >= kChunks);
      ranges.resize(kChunks);
      for (const TokenRange range : ranges) {
        const auto part = std::span(tokens).subspan(range.begin, range.end - range.begin);
        const ChunkId plain = ComputeChunkId(fingerprint, {}, 0, part);
        corpus.chunks.emplace_back(
            PlacementFacts{.id = TaggedChunkId(plain, VerificationTagOf(plain, key)),
                           .parent = {},
                           .token_count = static_cast<uint32_t>(part.size()),
                           .position = 0,
                           .holders = {{"h"}},
                           .leased = {},
                           .token_hash = TokenHashOf(part, key)});
      }
      if (prompt.size() < kPromptTokens) AddRun(tokens, ranges, random);
      CKV_CHECK(state.Publish(std::move(corpus), false, 0).ok());
    }
    prompt.resize(kPromptTokens);
  }

  // Three consecutive chunks and some tokens of the next, then tokens that no chunk has.
  void AddRun(std::span<const int32_t> tokens, std::span<const TokenRange> ranges,
              std::mt19937_64& random) {
    const size_t first = random() % (ranges.size() - 4);
    const auto run =
        tokens.subspan(ranges[first].begin, ranges[first + 3].begin + 50 - ranges[first].begin);
    prompt.insert(prompt.end(), run.begin(), run.end());
    const std::vector<int32_t> other = RandomTokens(200, random);
    prompt.insert(prompt.end(), other.begin(), other.end());
  }

  DirectoryState state{DirectoryOptions{}};
  std::vector<int32_t> prompt;
};

World& TheWorld() {
  static World* const world = new World;
  return *world;
}

void BM_ResolvePrompt(benchmark::State& state) {
  World& world = TheWorld();
  ServiceGate gate(8);
  DirectoryServiceImpl service(&world.state, &gate, Clock::Real());
  KeepGrpcUp();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  DirectoryStub stub(absl::StrCat("127.0.0.1:", port), Clock::Real());
  KeyedDirectory directory(&stub);
  DirectoryView view(&directory);
  const PromptCall call{
      .tokens = world.prompt, .tenant = kTenant, .model = {}, .deadline = kInstantMax};
  const Instant begin = Clock::Real()->Now();
  for (auto _ : state) {
    const auto match = view.MatchPrompt(call);
    CKV_CHECK(match.ok() && !match->truncated);
    state.counters["spans"] = double(match->spans.size());
    state.counters["covered_tokens"] = double(match->token_count());
    CKV_CHECK(match->token_count() > kPromptTokens * 3 / 4);
  }
  const Duration took = Clock::Real()->Now() - begin;
  state.counters["resolve_ms"] = double(took.count()) * 1e-6 / double(state.iterations());
  gate.Close();
  server->Shutdown();
}
BENCHMARK(BM_ResolvePrompt)->Unit(benchmark::kMillisecond)->UseRealTime();

// The requester's part: hashes, positions, prefix match, ids.
void BM_MatchPrompt(benchmark::State& state) {
  World& world = TheWorld();
  const std::vector<TenantKey> keys = {KeyOf(kTenant), TenantKey()};
  std::vector<uint64_t> heads;
  CKV_CHECK(MatchPrompt(world.prompt, keys, [&](std::span<const uint64_t> all) {
              heads.assign(all.begin(), all.end());
              return absl::StatusOr<PromptChunks>(PromptChunks());
            }).ok());
  const PromptChunks found = world.state.FindPrompt(heads, {}, kTenant);
  for (auto _ : state) {
    const auto match = MatchPrompt(world.prompt, keys, [&](std::span<const uint64_t>) {
      return absl::StatusOr<PromptChunks>(found);
    });
    benchmark::DoNotOptimize(match.ok());
  }
}
BENCHMARK(BM_MatchPrompt)->Unit(benchmark::kMillisecond)->UseRealTime();

// The directory's look-up, without the message.
void BM_FindPrompt(benchmark::State& state) {
  World& world = TheWorld();
  const TokenHashes own(world.prompt, KeyOf(kTenant)), shared(world.prompt, TenantKey());
  std::vector<uint64_t> heads = own.Heads();
  const std::vector<uint64_t> more = shared.Heads();
  heads.insert(heads.end(), more.begin(), more.end());
  for (auto _ : state) benchmark::DoNotOptimize(world.state.FindPrompt(heads, {}, kTenant));
}
BENCHMARK(BM_FindPrompt)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
