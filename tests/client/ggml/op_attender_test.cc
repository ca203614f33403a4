// Goal: an engine's tokens get what attention over their own cells and the chunks of their
// references gives, bit for bit, however they are batched; or the op fails and can be tried again.
// Method: real holders in this process; what is due is made by hand of the requester's partial and
// the kernel's.

#include "client/ggml/op_attender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "attention/merge.h"
#include "client/requester.h"
#include "tests/client/ggml/engine_cache.h"
#include "tests/support/allocation_count.h"
#include "tests/support/test_fleet.h"

namespace ckv::ggml {
namespace {

using test::EngineCache;
using test::EngineGeometry;
using test::MakeTestCorpus;
using test::Soon;
using testing::HasSubstr;

constexpr uint32_t kHeads = 4;

class OpAttenderTest : public testing::Test {
 protected:
  OpAttenderTest() {
    cluster_.fleet.Load("a", a_, {0, 1, 2});
    cluster_.fleet.Load("b", b_, {1, 1});
    Start();
  }
  void Start(const OpAttender::Options& options = {}) {
    attender_ = std::make_unique<OpAttender>(
        [this]() -> absl::StatusOr<Requester*> { return cluster_.requester.get(); }, options);
  }
  CellReference To(const std::string& name, uint32_t begin, uint32_t end, uint64_t position) {
    return ReferenceTo(*cluster_.Resolve(name), begin, end, position);
  }

  struct Use {
    std::string corpus;
    std::vector<ChunkUse> chunks;
  };
  // What a token is due that attends these chunks and the rows that the mask shows but `skip`.
  std::vector<float> Due(EngineCache& cache, uint32_t stream, uint32_t token, uint32_t layer,
                         const std::vector<Use>& uses, const std::vector<uint32_t>& skip) {
    const std::vector<uint16_t> q = cache.Queries(stream, token);
    const QueryView view = {q.data(), kHeads, cache.geometry.d_qk};
    test::Answer far(kHeads, cache.geometry.d_v), here(kHeads, cache.geometry.d_v),
        merged(kHeads, cache.geometry.d_v);
    std::vector<ContextPart> parts;
    for (const Use& use : uses) parts.push_back({cluster_.Resolve(use.corpus), use.chunks});
    if (parts.empty()) {
      std::fill(far.l.begin(), far.l.end(), 0.0f);
    } else {
      auto context =
          cluster_.requester->Open({.parts = parts, .policy = ContextPolicy::kRoute}, Soon());
      EXPECT_TRUE(context.ok()) << context.status();
      Segment segment = {.row_count = kHeads, .context = &*context};
      LayerCall call;
      call.layer = layer;
      call.q = view;
      call.segments = {&segment, 1};
      call.wire = PartialDtype::kF32;
      call.deadline = Soon();
      const absl::Status status = cluster_.requester->Attend(call, far.View());
      EXPECT_TRUE(status.ok()) << status;
    }
    // The rows that are seen, and nothing else. A dense piece counts its rows from the first.
    std::vector<int32_t> seen;
    bool dense = true;
    for (uint32_t cell = 0; cell < cache.cell_count; ++cell) {
      if (!cache.Sees(stream, token, cell) ||
          std::find(skip.begin(), skip.end(), cell) != skip.end()) {
        continue;
      }
      dense = dense && (seen.empty() || seen.back() + 1 == static_cast<int32_t>(cell));
      seen.push_back(static_cast<int32_t>(cell));
    }
    AttentionPiece piece;
    piece.q = view;
    const uint32_t begin = dense && !seen.empty() ? static_cast<uint32_t>(seen[0]) : 0;
    piece.rows = {cache.Cell(stream, begin).data(),
                  dense ? static_cast<uint32_t>(seen.size()) : cache.cell_count,
                  cache.geometry.row_bytes()};
    if (!dense) piece.selection = {seen.data(), static_cast<uint32_t>(seen.size()), kHeads};
    piece.out = here.View();
    AttendPartials(AttentionShape::Of(cache.geometry), {&piece, 1}, pool_);
    const std::array<ConstPartialView, 2> both = {far.View(), here.View()};
    MergePartials(both, kHeads, cache.geometry.d_v, merged.View());
    return merged.o;
  }
  static void ExpectBits(std::span<const float> got, const std::vector<float>& due) {
    ASSERT_EQ(got.size(), due.size());
    EXPECT_EQ(std::memcmp(got.data(), due.data(), got.size_bytes()), 0);
  }
  void Attend(EngineCache& cache, uint32_t layer) {
    const absl::Status status = attender_->Attend(cache.Op(layer));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Offsets that put chunks [begin, end) of a corpus one behind the other from `position` on.
  std::vector<ChunkUse> Uses(const std::string& name, uint32_t begin, uint32_t end,
                             int64_t position) {
    std::vector<ChunkUse> uses;
    const auto corpus = cluster_.Resolve(name);
    for (uint32_t i = begin; i < end; ++i) {
      uses.push_back({i, position - static_cast<int64_t>(corpus->chunks[i].position)});
      position += corpus->chunks[i].token_count;
    }
    return uses;
  }

  test::TestCorpus a_ = MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 4);
  test::TestCorpus b_ = MakeTestCorpus(EngineGeometry(), {33, 20}, 5);
  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  test::Cluster cluster_{fabric_.get(), 3, LaneShape{}};
  WorkerPool pool_{1};
  std::unique_ptr<OpAttender> attender_;
};

TEST_F(OpAttenderTest, CellsAlone) {
  EngineCache cache(2, 64, 6, kHeads, 1);
  for (uint32_t token = 0; token < 5; ++token) cache.Show(0, token, 3, 20 + token);
  for (uint32_t token = 0; token < 6; ++token) {
    cache.Show(1, token, 0, 9);
    cache.Show(1, token, 30, 33 + 5 * token);
    cache.Show(1, token, 60, 64);
  }
  for (const uint32_t threads : {1u, 3u, 1u, 2u}) {
    attender_->set_thread_count(threads);
    std::fill(cache.out.begin(), cache.out.end(), 7.0f);
    Attend(cache, 1);
    for (uint32_t stream = 0; stream < 2; ++stream) {
      for (uint32_t token = 0; token < 6; ++token) {
        ExpectBits(cache.Answer(stream, token), Due(cache, stream, token, 1, {}, {}));
      }
    }
  }
  // Who sees nothing gets zeros, as llama.cpp has it.
  for (const float value : cache.Answer(0, 5)) EXPECT_EQ(value, 0);
}

// The kernel is held to f64 by tests of its own. This is about the op: scale, strides, heads.
TEST_F(OpAttenderTest, CellsAloneAgreeWithF64) {
  EngineCache cache(1, 50, 2, kHeads, 2);
  cache.Show(0, 0, 0, 40);
  cache.Show(0, 1, 0, 50);
  Attend(cache, 0);
  const std::vector<uint16_t> q = cache.Queries(0, 1);
  AttentionPiece piece;
  piece.q = {q.data(), kHeads, cache.geometry.d_qk};
  piece.rows = {cache.Cell(0, 0).data(), 50, cache.geometry.row_bytes()};
  const auto due = reference::Attend(AttentionShape::Of(cache.geometry), piece);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t d = 0; d < cache.geometry.d_v; ++d) {
      EXPECT_NEAR(cache.Answer(0, 1)[head * cache.geometry.d_v + d], due[head].o[d], 1e-5);
    }
  }
}

TEST_F(OpAttenderTest, ChunksAndCells) {
  EngineCache cache(2, 32, 4, kHeads, 3);
  cache.Put(0, 0, To("a", 0, 3, 0), 2);
  for (uint32_t token = 0; token < 4; ++token) cache.Show(0, token, 0, 2 + token);
  cache.Put(1, 5, To("a", 1, 3, 1000), 2);  // shifted, in the middle, beside two tokens without
  cache.Show(1, 0, 5, 6);
  cache.Show(1, 1, 2, 9);
  cache.Show(1, 2, 2, 4);
  cache.Show(1, 3, 6, 8);
  Attend(cache, 2);
  const std::vector<ChunkUse> moved = Uses("a", 1, 3, 1000);
  for (uint32_t token = 0; token < 4; ++token) {
    ExpectBits(cache.Answer(0, token), Due(cache, 0, token, 2, {{"a", {}}}, {0}));
  }
  for (const uint32_t token : {0u, 1u}) {
    ExpectBits(cache.Answer(1, token), Due(cache, 1, token, 2, {{"a", moved}}, {5}));
  }
  for (const uint32_t token : {2u, 3u}) {
    ExpectBits(cache.Answer(1, token), Due(cache, 1, token, 2, {}, {}));
  }
}

TEST_F(OpAttenderTest, TwoCorporaInOneBatchAndInOneToken) {
  EngineCache cache(1, 32, 5, kHeads, 4);
  cache.Put(0, 1, To("a", 0, 1, 0), 0);
  cache.Put(0, 2, To("b", 0, 2, 700), 0);
  for (const uint32_t token : {0u, 2u}) cache.Show(0, token, 0, 2);  // a
  cache.Show(0, 1, 2, 6);                                            // b
  cache.Show(0, 3, 0, 7);                                            // both
  cache.Show(0, 4, 4, 7);                                            // none
  Attend(cache, 0);
  const Use a = {"a", Uses("a", 0, 1, 0)}, b = {"b", Uses("b", 0, 2, 700)};
  for (const uint32_t token : {0u, 2u}) {
    ExpectBits(cache.Answer(0, token), Due(cache, 0, token, 0, {a}, {1}));
  }
  ExpectBits(cache.Answer(0, 1), Due(cache, 0, 1, 0, {b}, {2}));
  ExpectBits(cache.Answer(0, 3), Due(cache, 0, 3, 0, {a, b}, {1, 2}));
  ExpectBits(cache.Answer(0, 4), Due(cache, 0, 4, 0, {}, {}));
}

// For an engine that has attended its own cells already.
TEST_F(OpAttenderTest, OnlyIfElsewhere) {
  EngineCache cache(1, 8, 2, kHeads, 4);
  cache.Show(0, 0, 1, 3);
  cache.Show(0, 1, 1, 4);
  const std::vector<float> untouched = cache.out;
  auto attended = attender_->AttendIfElsewhere(cache.Op(0));
  ASSERT_TRUE(attended.ok()) << attended.status();
  EXPECT_FALSE(*attended);
  EXPECT_EQ(cache.out, untouched);
  cache.Put(0, 0, To("b", 0, 2, 0), 0);
  cache.Show(0, 1, 0, 1);
  attended = attender_->AttendIfElsewhere(cache.Op(0));
  ASSERT_TRUE(attended.ok()) << attended.status();
  EXPECT_TRUE(*attended);
  ExpectBits(cache.Answer(0, 0), Due(cache, 0, 0, 0, {}, {}));
  ExpectBits(cache.Answer(0, 1), Due(cache, 0, 1, 0, {{"b", {}}}, {0}));
  cache.Put(0, 0, To("b", 0, 2, 0), 1);
  EXPECT_TRUE(absl::IsDataLoss(attender_->AttendIfElsewhere(cache.Op(0)).status()));
}

// A batch of more rows than are in work at once, and queries whose heads are apart.
TEST_F(OpAttenderTest, LargeBatches) {
  constexpr uint32_t kTokens = OpAttender::kRowsAtOnceMax / kHeads + 7;
  EngineCache cache(1, 8, kTokens, kHeads, 5);
  cache.Put(0, 0, To("b", 0, 1, 0), 0);
  for (uint32_t token = 0; token < kTokens; ++token) {
    cache.Show(0, token, token % 3 == 0 ? 1 : 0, 2 + token % 7);
  }
  MlaOp op = cache.Op(0);
  std::vector<float> apart;  // [head][token][d_qk]
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t token = 0; token < kTokens; ++token) {
      const float* row = op.Query(0, token, head);
      apart.insert(apart.end(), row, row + op.d_qk);
    }
  }
  op.q = reinterpret_cast<const std::byte*>(apart.data());
  op.q_token_bytes = op.d_qk * sizeof(float);
  op.q_head_bytes = op.q_token_bytes * kTokens;
  const absl::Status status = attender_->Attend(op);
  ASSERT_TRUE(status.ok()) << status;
  for (uint32_t token = 0; token < kTokens; token += 97) {
    const bool routed = token % 3 != 0;
    std::vector<Use> uses;
    if (routed) uses.push_back({"b", Uses("b", 0, 1, 0)});
    ExpectBits(
        cache.Answer(0, token),
        Due(cache, 0, token, 0, uses, routed ? std::vector<uint32_t>{0} : std::vector<uint32_t>{}));
  }
}

// The corpus ends where the engine's own positions begin.
TEST_F(OpAttenderTest, OneCorpusForAll) {
  Attached all;
  all.corpus = "a";
  Start({.otherwise = std::make_shared<const Attached>(all)});
  EngineCache cache(1, 16, 3, kHeads, 6);
  cache.Put(0, 0, To("b", 0, 2, 0), 1);
  cache.Show(0, 1, 3, 5);
  cache.Show(0, 2, 0, 2);
  Attend(cache, 1);
  const Use before = {"a", Uses("a", 0, 3, -(40 + 9 + 130))};
  ExpectBits(cache.Answer(0, 0), Due(cache, 0, 0, 1, {before}, {}));
  ExpectBits(cache.Answer(0, 1), Due(cache, 0, 1, 1, {before}, {}));
  ExpectBits(cache.Answer(0, 2), Due(cache, 0, 2, 1, {{"b", {}}}, {0}));
  all.position = 5000;
  Start({.otherwise = std::make_shared<const Attached>(all)});
  Attend(cache, 1);
  ExpectBits(cache.Answer(0, 1), Due(cache, 0, 1, 1, {{"a", Uses("a", 0, 3, 5000)}}, {}));
}

TEST_F(OpAttenderTest, NanIsNoAnswer) {
  EngineCache cache(1, 16, 2, kHeads, 7);
  cache.Show(0, 0, 0, 9);
  cache.Show(0, 1, 0, 10);
  cache.rows[9 * cache.geometry.d_qk + 30] = 0x7fc0;
  absl::Status status = attender_->Attend(cache.Op(0));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("NaN"));
  cache.mask[16 + 9] = EngineCache::kHidden;
  Attend(cache, 0);
  cache.Put(0, 0, To("a", 0, 3, 0), 0);
  Attend(cache, 0);
  cache.q[0] = NAN;
  EXPECT_TRUE(absl::IsDataLoss(attender_->Attend(cache.Op(0))));
}

class OpAttenderRefusals : public OpAttenderTest {
 protected:
  OpAttenderRefusals() {
    cache_.Put(0, 0, To("a", 0, 3, 0), 0);
    cache_.Show(0, 0, 0, 4);
  }
  absl::Status Attend() { return attender_->Attend(cache_.Op(0)); }

  EngineCache cache_{1, 8, 1, kHeads, 8};
};

TEST_F(OpAttenderRefusals, AGeometryThatIsNotTheCorpus) {
  ASSERT_TRUE(Attend().ok());
  MlaOp op = cache_.Op(0);
  op.softmax_scale *= 1.0001f;
  absl::Status status = attender_->Attend(op);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("corpus 'a': its softmax_scale is 0.125"));
  Start();  // also if that is the first op
  EXPECT_TRUE(absl::IsFailedPrecondition(attender_->Attend(op)));
  op = cache_.Op(0);
  op.d_v -= 2;
  status = attender_->Attend(op);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("192 values, 128 of them latent"));
  cache_.Put(0, 0, To("a", 0, 3, 0), 3);
  status = attender_->Attend(cache_.Op(3));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("it has 3 layers"));
}

TEST_F(OpAttenderRefusals, WidthsThatNoKernelHas) {
  for (const auto& [d_qk, d_v] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2, 2}, {191, 128}, {1026, 128}, {192, 0}, {192, 194}}) {
    MlaOp op = cache_.Op(0);
    op.d_qk = d_qk;
    op.d_v = d_v;
    EXPECT_TRUE(absl::IsInvalidArgument(attender_->Attend(op))) << d_qk << " " << d_v;
  }
  MlaOp op = cache_.Op(0);
  op.head_count = OpAttender::kRowsAtOnceMax + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(attender_->Attend(op)));
}

TEST_F(OpAttenderRefusals, AnotherTenant) {
  CellReference reference = To("a", 0, 3, 0);
  reference.tenant = "x";
  cache_.Put(0, 0, reference, 0);
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("set CKV_GGML_TENANT"));
  Start({.contexts = {.tenant = "x"}});
  EXPECT_TRUE(absl::IsNotFound(Attend()));  // its tenant has no such corpus
}

TEST_F(OpAttenderRefusals, ACorpusThatIsNotThere) {
  CellReference reference = To("a", 0, 3, 0);
  reference.corpus = "c";
  cache_.Put(0, 0, reference, 0);
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("corpus 'c'"));
}

// The reference means the chunks that it was made of, not the name.
TEST_F(OpAttenderRefusals, ACorpusThatWasPublishedAnew) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  const test::TestCorpus other = MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 99);
  cluster_.fleet.Load("a", other, {0, 1, 2});
  Start();
  ASSERT_TRUE(Attend().ok());  // the requester keeps the corpus, and its holders the chunks
  EXPECT_EQ(cache_.out, before);
  cluster_.requester->Forget("a");
  Start();
  const absl::Status status = Attend();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("ckvctl attach --corpus a"));
  // With chunks behind those of the reference it is as good as before.
  test::TestCorpus longer = a_;
  longer.chunks.push_back(other.chunks[2]);
  cluster_.fleet.Load("a", longer, {0, 1, 2, 2});
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  cluster_.fleet.Edit("a", [](Corpus& corpus) { corpus.chunks.resize(2); });
  cluster_.requester->Forget("a");
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(Attend()));
}

// A reference to what the requester does not know yet.
TEST_F(OpAttenderRefusals, ACorpusThatWasPublishedAnewBeforeTheReference) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.Load("a", MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 99), {0, 1, 2});
  auto now = cluster_.fleet.GetCorpus("a", "", Soon());
  ASSERT_TRUE(now.ok());
  cache_.Put(0, 0, ReferenceTo(*now, 0, 3, 0), 0);
  ASSERT_TRUE(Attend().ok());
  EXPECT_NE(cache_.out, before);
}

TEST_F(OpAttenderRefusals, AHolderThatIsGoneAndComesBack) {
  OpCounters counters;
  Start({.counters = &counters});
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.StopHolder(1);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = Attend();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  cluster_.fleet.StartHolder(1);
  cluster_.fleet.Load("a", a_, {0, 1, 2});
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  // A second holder that has them: no error, the same bits.
  cluster_.fleet.Lease("a", a_, 2, {1});
  cluster_.requester->Forget("a");
  Start({.counters = &counters});
  ASSERT_TRUE(Attend().ok());
  cluster_.fleet.StopHolder(1);
  ASSERT_TRUE(Attend().ok());
  EXPECT_EQ(cache_.out, before);
  EXPECT_EQ(counters.ops, 6u);
  EXPECT_EQ(counters.ops_routed, 6u);
  EXPECT_EQ(counters.ops_failed, 2u);
  EXPECT_EQ(counters.rows_routed, 6u * kHeads);
  EXPECT_GT(counters.received_bytes, 4u * kHeads * 128 * sizeof(float));
}

// The chunks went to another holder: the corpus is resolved anew within the op.
TEST_F(OpAttenderRefusals, ChunksThatMoved) {
  ASSERT_TRUE(Attend().ok());
  const std::vector<float> before = cache_.out;
  cluster_.fleet.StopHolder(1);
  cluster_.fleet.StartHolder(1);
  cluster_.fleet.Load("a", a_, {0, 0, 2});  // holder 1 has nothing any more
  const absl::Status status = Attend();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cache_.out, before);
}

TEST_F(OpAttenderRefusals, NoRequester) {
  OpAttender attender(
      []() -> absl::StatusOr<Requester*> {
        return absl::InvalidArgumentError("CKV_DIRECTORY is 'x'");
      },
      {});
  EXPECT_TRUE(absl::IsInvalidArgument(attender.Attend(cache_.Op(0))));
  cache_.mask.assign(cache_.mask.size(), EngineCache::kHidden);
  cache_.Show(0, 0, 1, 4);
  EXPECT_TRUE(attender.Attend(cache_.Op(0)).ok());  // needs none
}

// What an op of a shape that was there before allocates.
TEST_F(OpAttenderTest, AllocatesLittle) {
  if (!kCountsAllocations) GTEST_SKIP() << "the sanitizer owns the allocator";
  EngineCache cache(2, 64, 3, kHeads, 10);
  for (uint32_t token = 0; token < 3; ++token) {
    cache.Show(0, token, 1, 9 + token);
    cache.Show(1, token, 1, 9);
    cache.Show(1, token, 20, 30 + token);
  }
  const auto count = [&] {
    for (int i = 0; i < 3; ++i) Attend(cache, 0);
    const uint64_t before = allocation_count;
    Attend(cache, 0);
    return allocation_count - before;
  };
  EXPECT_EQ(count(), 0u);
  cache.Put(0, 0, To("a", 0, 3, 0), 0);
  for (uint32_t token = 0; token < 3; ++token) cache.Show(0, token, 0, 1);
  EXPECT_LE(count(), 8u);  // the ticket, and the list of what its tokens attend
}

// More sequences than contexts are kept.
TEST_F(OpAttenderTest, ManyContexts) {
  EngineCache cache(1, 4, 1, kHeads, 9);
  cache.Show(0, 0, 0, 2);
  const auto attend = [&](uint64_t position) {
    cache.Put(0, 0, To("b", 0, 1, position), 0);
    Attend(cache, 0);
    return cache.out;
  };
  const std::vector<float> first = attend(0);
  for (uint64_t i = 1; i < CorpusContexts::kContextCountMax + 10; ++i) attend(i);
  EXPECT_EQ(attend(0), first);
}

}  // namespace
}  // namespace ckv::ggml
