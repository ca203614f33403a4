// Question: what do agents of unknown length pay under policy auto, compared with always routing
// and with prefetching immediately? Bound: 1.05 x the better of the two, over any link to the
// holders.
//
//   agents_bench load DIRECTORY                      puts the documents on all holders
//   agents_bench play DIRECTORY POLICY FABRIC SEED   plays the agents; prints their times as JSON
//   agents_bench calls DIRECTORY FABRIC SPIN_US N    times N calls that use every holder; prints
//                                                    the median in microseconds
//
// The fleet is real: a directory and holders are ckvd processes, and this program is the requester.
// tests/bench/policy_links.py starts them, and chooses the link to them.
//
// A document is two chunks of 2,048 tokens on one holder, since `ckvctl corpus load` places aligned
// chunk ranges together. An agent opens a context over its document, makes its steps of 27 layer
// calls with 16 query rows each, and closes it. It gives no hint of its steps. Its time is from
// Open to Close, so with policy cache it includes the prefetch.
//
// Agents run one after another. Then the sum of their times is the time of the run, and no agent
// waits for another. Two at once would share the requester's processor: on two cores the sum of
// their times would measure the scheduler.

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/publish/chunk_puts.h"
#include "client/requester.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/corpus/publish_corpus.h"
#include "client/tools/ctl/fleet.h"
#include "proto/base/status.h"
#include "store/formats/import.h"
#include "tests/bench/prefetch/agents_mix.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kChunkTokens = 2048, kChunksOfDocument = 2;
constexpr uint32_t kRows = 16;  // one token of 16 heads
constexpr char kCorpus[] = "documents";
// All documents fit, so that nothing is evicted.
constexpr uint64_t kLocalCacheBytes = uint64_t{2} << 30;

Geometry TheGeometry() { return *NamedGeometry("deepseek-v2-lite"); }
Instant Soon() { return Clock::Real()->Now() + std::chrono::seconds(60); }
double MsSince(Instant begin) { return double((Clock::Real()->Now() - begin).count()) / 1e6; }

// Every layer of a chunk has the same rows: a kernel's time does not depend on values.
SourceChunk MakeChunk(const Geometry& geometry, const ChunkId& parent, uint32_t ordinal) {
  std::mt19937 rng(ordinal);
  const auto rows = std::make_shared<const std::vector<uint16_t>>(
      test::RandomBf16(size_t{kChunkTokens} * geometry.d_qk, rng, 0.1f));
  std::vector<int32_t> tokens(kChunkTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() >> 1);
  SourceChunk chunk;
  chunk.rows = [rows = rows.get()](uint32_t) { return std::as_bytes(std::span(*rows)); };
  chunk.info = DescribeChunk(geometry, parent, uint64_t{ordinal} * kChunkTokens, tokens,
                             {0, kChunkTokens}, chunk.rows);
  chunk.owned = rows;
  return chunk;
}

absl::Status Load(const std::string& directory) {
  ctl::FleetOptions options;
  options.directory = directory;
  ctl::Fleet fleet(options, Clock::Real());
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, fleet.Holders());
  MemorySource source(TheGeometry());
  std::vector<std::vector<HolderId>> placement;
  Corpus corpus;
  corpus.name = kCorpus;
  corpus.geometry = source.geometry();
  ChunkId parent;
  for (uint32_t i = 0; i < kDocumentCount * kChunksOfDocument; ++i) {
    source.Add(MakeChunk(source.geometry(), parent, i));
    placement.push_back({holders[i / kChunksOfDocument % holders.size()].id});
    const PlannedChunk& chunk = source.chunks().back();
    corpus.chunks.emplace_back(PlacementFacts{chunk.id, chunk.parent, chunk.token_count,
                                              chunk.position, placement.back()});
    parent = chunk.id;
  }
  CKV_RETURN_IF_ERROR(
      PutChunks(source, placement, holders, /*tenant=*/"", *Clock::Real(), {}).status());
  return ctl::PublishCorpus(fleet, corpus, /*replace=*/false).status();
}

// Steps by where their rows were.
struct Steps {
  uint32_t count = 0;
  double ms = 0;
  nlohmann::json ToJson() const { return {{"count", count}, {"ms_each", count ? ms / count : 0}}; }
};

class Player {
 public:
  Player(Requester* requester, std::shared_ptr<const Corpus> corpus)
      : requester_(requester),
        corpus_(std::move(corpus)),
        q_(test::RandomBf16(size_t{kRows} * corpus_->geometry.d_qk, rng_, 0.1f)),
        answer_(size_t{kRows} * (corpus_->geometry.d_v + 2)) {}

  // Opens sessions with all holders and makes a call to each, so that no agent's time includes
  // this.
  absl::Status WarmUp() {
    for (uint32_t document = 0; document < kDocumentCount; ++document) {
      CKV_ASSIGN_OR_RETURN(const Context context, Open(document, ContextPolicy::kRoute));
      CKV_RETURN_IF_ERROR(Call(context, 0, nullptr));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<nlohmann::json> Play(const Agent& agent, ContextPolicy policy) {
    const Instant begin = Clock::Real()->Now();
    CKV_ASSIGN_OR_RETURN(Context context, Open(agent.document, policy));
    const double open_ms = MsSince(begin);
    for (uint32_t step = 0; step < agent.steps; ++step) CKV_RETURN_IF_ERROR(Step(context));
    context.Close();
    const double ms = MsSince(begin);
    sum_ms_ += ms;
    return nlohmann::json{
        {"document", agent.document}, {"steps", agent.steps}, {"open_ms", open_ms}, {"ms", ms}};
  }

  // Times calls of 16 query rows over the first chunk of a document on each of `holder_count`
  // holders.
  absl::StatusOr<std::vector<double>> TimeCalls(uint32_t holder_count, uint32_t count) {
    std::vector<ChunkUse> chunks;
    for (uint32_t i = 0; i < holder_count; ++i) chunks.push_back({i * kChunksOfDocument, 0});
    const ContextPart part = {corpus_, chunks};
    CKV_ASSIGN_OR_RETURN(
        const Context context,
        requester_->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon()));
    std::vector<double> us;
    for (uint32_t i = 0; i < count; ++i) {
      const Instant begin = Clock::Real()->Now();
      CKV_RETURN_IF_ERROR(Call(context, i % corpus_->geometry.layers, nullptr));
      us.push_back(1e3 * MsSince(begin));
    }
    return us;
  }

  double sum_ms() const { return sum_ms_; }
  nlohmann::json StepsSoFar() const {
    return {{"routed", routed_.ToJson()}, {"cached", cached_.ToJson()}, {"mixed", mixed_.ToJson()}};
  }

  // The requester's costs of a step of one document, and of its prefetch.
  nlohmann::json Believed(uint32_t document) {
    ExplainCall call;
    call.corpus = corpus_;
    for (uint32_t i = 0; i < kChunksOfDocument; ++i)
      call.chunks.push_back(document * kChunksOfDocument + i);
    call.query_rows = kRows;
    call.deadline = Soon();
    const auto explained = requester_->Explain(call);
    if (!explained.ok()) return explained.status().ToString();
    const CostBreakdown& route = explained->decision.cost(Primitive::kRoute);
    const CostBreakdown& fetch = explained->decision.cost(Primitive::kFetch);
    return {{"route_step_ms", route.total_us / 1e3},
            {"route_probe_ms", route.probe_us / 1e3},
            {"route_transfer_ms", route.transfer_us / 1e3},
            {"route_compute_ms", route.compute_us / 1e3},
            {"route_queue_ms", route.queue_us / 1e3},
            {"route_merge_ms", route.merge_us / 1e3},
            {"cached_step_ms", fetch.compute_us / 1e3},
            {"prefetch_ms", (fetch.probe_us + fetch.transfer_us) / 1e3}};
  }

 private:
  absl::StatusOr<Context> Open(uint32_t document, ContextPolicy policy) {
    std::vector<ChunkUse> chunks;
    for (uint32_t i = 0; i < kChunksOfDocument; ++i)
      chunks.push_back({document * kChunksOfDocument + i, 0});
    const ContextPart part = {corpus_, chunks};
    return requester_->Open({.parts = {&part, 1}, .policy = policy}, Soon());
  }

  absl::Status Call(const Context& context, uint32_t layer, AttendReport* report) {
    const Geometry& g = corpus_->geometry;
    float* const o = answer_.data();
    const Segment segment = {.row_count = kRows, .context = &context};
    LayerCall call;
    call.layer = layer;
    call.q = {q_.data(), kRows, g.d_qk};
    call.segments = {&segment, 1};
    call.deadline = Soon();
    return requester_->Attend(
        call, {o, o + size_t{kRows} * g.d_v, o + size_t{kRows} * (g.d_v + 1), PartialDtype::kF32},
        report);
  }

  absl::Status Step(const Context& context) {
    const Instant begin = Clock::Real()->Now();
    uint64_t routed = 0, cached = 0;
    for (uint32_t layer = 0; layer < corpus_->geometry.layers; ++layer) {
      AttendReport report;
      CKV_RETURN_IF_ERROR(Call(context, layer, &report));
      routed += report.routed_pairs;
      cached += report.cached_pairs;
    }
    Steps& of = cached == 0 ? routed_ : routed == 0 ? cached_ : mixed_;
    ++of.count;
    of.ms += MsSince(begin);
    return absl::OkStatus();
  }

  Requester* const requester_;
  const std::shared_ptr<const Corpus> corpus_;
  std::mt19937 rng_{1};
  const std::vector<uint16_t> q_;
  std::vector<float> answer_;
  double sum_ms_ = 0;
  Steps routed_, cached_, mixed_;
};

RequesterOptions OptionsFor(FabricKind fabric) {
  RequesterOptions options;
  options.id = "agents";
  options.fabric = fabric;
  options.local_cache_bytes = kLocalCacheBytes;
  return options;
}

absl::StatusOr<nlohmann::json> Play(const std::string& address, ContextPolicy policy,
                                    FabricKind fabric, uint32_t seed) {
  // Small pages for prefetched rows. The host of a virtual machine may take free huge pages back:
  // the first touch of 127 MB then takes 540 ms, where fresh huge pages take 30 and small ones 80.
  CKV_CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
  DirectoryStub directory(address, Clock::Real());
  HolderStubFactory holders(Clock::Real());
  CKV_ASSIGN_OR_RETURN(const auto requester,
                       Requester::Create(OptionsFor(fabric), &directory, &holders));
  CKV_ASSIGN_OR_RETURN(auto corpus, requester->Resolve(kCorpus, "", Soon()));
  Player player(requester.get(), std::move(corpus));
  CKV_RETURN_IF_ERROR(player.WarmUp());
  nlohmann::json agents = nlohmann::json::array();
  for (const Agent& agent : MakeAgents(seed)) {
    CKV_ASSIGN_OR_RETURN(nlohmann::json played, player.Play(agent, policy));
    agents.push_back(std::move(played));
  }
  const LocalRowStats cache = requester->Stats().local_cache;
  return nlohmann::json{{"sum_s", player.sum_ms() / 1e3},
                        {"steps", player.StepsSoFar()},
                        {"cached",
                         {{"prefetches", cache.prefetch_count},
                          {"prefetches_failed", cache.prefetch_failed_count},
                          {"prefetched_bytes", cache.prefetched_bytes},
                          {"routed_s", cache.routed_us / 1e6},
                          {"saved_s", cache.saved_us / 1e6},
                          {"prefetched_s", cache.prefetched_us / 1e6}}},
                        {"believed", player.Believed(0)},
                        {"agents", std::move(agents)}};
}

absl::StatusOr<double> Calls(const std::string& address, FabricKind fabric, uint32_t spin_us,
                             uint32_t count) {
  DirectoryStub directory(address, Clock::Real());
  HolderStubFactory holders(Clock::Real());
  RequesterOptions options = OptionsFor(fabric);
  options.spin_max = std::chrono::microseconds(spin_us);
  CKV_ASSIGN_OR_RETURN(const auto requester, Requester::Create(options, &directory, &holders));
  CKV_ASSIGN_OR_RETURN(auto corpus, requester->Resolve(kCorpus, "", Soon()));
  std::set<std::string> names;
  for (const auto& chunk : corpus->chunks) names.insert(chunk.holders().front().name);
  Player player(requester.get(), std::move(corpus));
  const auto holder_count = static_cast<uint32_t>(names.size());
  CKV_RETURN_IF_ERROR(player.TimeCalls(holder_count, count / 10 + 1).status());
  CKV_ASSIGN_OR_RETURN(std::vector<double> us, player.TimeCalls(holder_count, count));
  const auto middle = us.begin() + static_cast<ptrdiff_t>(us.size() / 2);
  std::nth_element(us.begin(), middle, us.end());
  return us[us.size() / 2];
}

int Main(const std::vector<std::string>& arguments) {
  const std::map<std::string, ContextPolicy> policies = {{"route", ContextPolicy::kRoute},
                                                         {"cache", ContextPolicy::kCache},
                                                         {"auto", ContextPolicy::kAuto}};
  const std::map<std::string, FabricKind> fabrics = {{"shm", FabricKind::kShm},
                                                     {"tcp", FabricKind::kTcp}};
  uint32_t seed = 0, spin_us = 0, count = 0;
  absl::Status status = absl::InvalidArgumentError(
      "usage: agents_bench load DIRECTORY | play DIRECTORY route|cache|auto shm|tcp SEED | "
      "calls DIRECTORY shm|tcp SPIN_US N");
  if (arguments.size() == 2 && arguments[0] == "load") {
    status = Load(arguments[1]);
  } else if (arguments.size() == 5 && arguments[0] == "play" && policies.contains(arguments[2]) &&
             fabrics.contains(arguments[3]) && absl::SimpleAtoi(arguments[4], &seed)) {
    const auto played =
        Play(arguments[1], policies.at(arguments[2]), fabrics.at(arguments[3]), seed);
    status = played.status();
    if (played.ok()) std::printf("%s\n", played->dump(2).c_str());
  }
  if (arguments.size() == 5 && arguments[0] == "calls" && fabrics.contains(arguments[2]) &&
      absl::SimpleAtoi(arguments[3], &spin_us) && absl::SimpleAtoi(arguments[4], &count) && count) {
    const absl::StatusOr<double> us = Calls(arguments[1], fabrics.at(arguments[2]), spin_us, count);
    status = us.status();
    if (us.ok()) std::printf("%.2f\n", *us);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "agents_bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) { return ckv::bench::Main({argv + 1, argv + argc}); }
