// Goal: an agent says the same tokens under every policy, hint and placement, and whatever was
// cached before it began. Method: the reference engine's rows on real holders; f32 partials, so
// that margins are equal in every bit.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/context.h"
#include "client/requester.h"
#include "client/tools/reference_engine/decode.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "gtest/gtest.h"
#include "store/formats/import.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

constexpr uint32_t kTokensPerChunk = 100, kChunks = 4, kDecoded = 4;
constexpr uint64_t kLocalCacheBytes = uint64_t{64} << 20;

class TokensTest : public testing::Test {
 protected:
  TokensTest() {
    ReferenceConfig config;
    config.layers = 2;
    engine_ = *ReferenceEngine::Create(config);
    for (uint32_t i = 0; i < kTokensPerChunk * kChunks; ++i)
      tokens_.push_back(static_cast<int32_t>((i * 37 + i / 7) % engine_->vocabulary()));
    prefilled_ = *engine_->Prefill(tokens_, 0, pool_, [](uint32_t) { return absl::OkStatus(); });
    corpus_.geometry = engine_->geometry();
    for (uint32_t i = 0; i < kChunks; ++i) {
      const ChunkId parent = i == 0 ? ChunkId() : corpus_.chunks.back().info.id;
      corpus_.chunks.push_back(Cut(parent, i * kTokensPerChunk));
    }
    LocalContext local(engine_->geometry(), &pool_);
    local.AddCuts(*prefilled_, kTokensPerChunk);
    alone_ = Decode([&](uint32_t layer, const QueryView& q, const PartialView& out) {
      return local.Attend(layer, q, out);
    });
  }

  test::TestChunk Cut(const ChunkId& parent, uint32_t begin) const {
    test::TestChunk chunk;
    const size_t d_qk = engine_->geometry().d_qk;
    for (uint32_t layer = 0; layer < engine_->geometry().layers; ++layer) {
      const RowView rows = prefilled_->rows(layer);
      std::vector<uint16_t> copy(kTokensPerChunk * d_qk);
      for (uint32_t t = 0; t < kTokensPerChunk; ++t) {
        std::memcpy(copy.data() + t * d_qk, rows.data + size_t{begin + t} * rows.stride_bytes,
                    engine_->geometry().row_bytes());
      }
      chunk.layers.push_back(std::move(copy));
    }
    chunk.info = DescribeChunk(
        engine_->geometry(), parent, 0, tokens_, {begin, begin + kTokensPerChunk},
        [&](uint32_t layer) { return std::as_bytes(std::span(chunk.layers[layer])); });
    return chunk;
  }

  std::vector<GreedyChoice> Decode(ContextAttention context) {
    SequenceOptions options;
    options.context = std::move(context);
    options.position = kTokensPerChunk * kChunks;
    options.pool = &pool_;
    const auto sequence = *engine_->Start(std::move(options));
    auto choices = DecodeGreedy(*sequence, engine_->vocabulary(), std::vector<int32_t>{72, 101},
                                kDecoded, [](const GreedyChoice&) { return absl::OkStatus(); });
    EXPECT_TRUE(choices.ok()) << choices.status();
    return choices.ok() ? *choices : std::vector<GreedyChoice>();
  }

  // Decodes over a context of all chunks. Returns pairs that were cached.
  uint64_t DecodeAndCompare(Requester& requester, const std::shared_ptr<const Corpus>& corpus,
                            ContextPolicy policy, uint32_t steps) {
    const ContextPart part = {corpus, {}};
    ContextSpec spec = {.parts = {&part, 1}, .policy = policy};
    spec.expect.steps = steps;
    const auto context = requester.Open(spec, test::Soon());
    EXPECT_TRUE(context.ok()) << context.status();
    if (!context.ok()) return 0;
    uint64_t cached_pairs = 0;
    const auto choices = Decode([&](uint32_t layer, const QueryView& q, const PartialView& out) {
      const Segment segment = {.row_count = q.count, .context = &*context};
      LayerCall call;
      call.layer = layer;
      call.q = q;
      call.segments = {&segment, 1};
      call.wire = PartialDtype::kF32;
      call.deadline = test::Soon();
      AttendReport report;
      absl::Status status = requester.Attend(call, out, &report);
      cached_pairs += report.cached_pairs;
      return status;
    });
    EXPECT_EQ(choices.size(), alone_.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i].token, alone_[i].token) << i;
      EXPECT_EQ(choices[i].margin, alone_[i].margin) << i;
    }
    return cached_pairs;
  }

  // Every policy and hint: with nothing cached, and with two chunks that another context keeps
  // cached.
  void CompareAll(Fabric* fabric, const std::vector<size_t>& placement, bool leased) {
    test::TestFleet fleet({fabric});
    for (size_t i = 0; i < 3; ++i) fleet.StartHolder(i, /*capacity_bytes=*/size_t{16} << 20);
    fleet.Load("c", corpus_, placement);
    if (leased) fleet.Lease("c", corpus_, 2, {0, 2});  // no placement names holder 2
    for (const bool some_cached : {false, true}) {
      RequesterOptions options;
      options.fabrics = {fabric};
      options.local_cache_bytes = kLocalCacheBytes;
      auto requester = *Requester::Create(options, &fleet, &fleet);
      const auto corpus = *requester->Resolve("c", "", test::Soon());
      const std::vector<ChunkUse> uses = {{1, 0}, {2, 0}};
      const ContextPart part = {corpus, uses};
      absl::StatusOr<Context> other = absl::UnknownError("none");
      if (some_cached)
        other =
            requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, test::Soon());
      EXPECT_EQ(other.ok(), some_cached) << other.status();
      for (const uint32_t steps : {1u, 1'000'000u}) {
        SCOPED_TRACE(absl::StrCat(steps, " steps told; some cached: ", some_cached ? "yes" : "no"));
        EXPECT_EQ(DecodeAndCompare(*requester, corpus, ContextPolicy::kRoute, steps), 0u);
        DecodeAndCompare(*requester, corpus, ContextPolicy::kAuto, steps);
      }
      EXPECT_GT(DecodeAndCompare(*requester, corpus, ContextPolicy::kCache, 0), 0u);
      EXPECT_GT(DecodeAndCompare(*requester, corpus, ContextPolicy::kAuto, 0), 0u)
          << "all of it is cached by now";
    }
  }

  WorkerPool pool_{1};
  std::unique_ptr<ReferenceEngine> engine_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<Sequence> prefilled_;
  test::TestCorpus corpus_;
  std::vector<GreedyChoice> alone_;
};

TEST_F(TokensTest, AreTheSameUnderEveryPolicyHintAndPlacement) {
  const std::unique_ptr<Fabric> tcp = NewTcpFabric(Clock::Real());
  const std::unique_ptr<Fabric> shm = NewShmFabric(Clock::Real());
  struct Case {
    std::vector<size_t> placement;
    bool leased;
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, false}, {{0, 1, 0, 1}, false}, {{0, 1, 0, 1}, true}, {{1, 0, 0, 1}, false}};
  for (Fabric* const fabric : {tcp.get(), shm.get()}) {
    for (const Case& each : cases) {
      SCOPED_TRACE(absl::StrCat(std::string(FabricName(fabric->kind())), ", first at holder ",
                                each.placement[0], ", copies: ", each.leased ? "yes" : "no"));
      CompareAll(fabric, each.placement, each.leased);
    }
  }
}

}  // namespace
}  // namespace ckv
