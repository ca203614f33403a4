// Goal: an engine's tokens get what attention over their own cells and the chunks of their
// references gives, bit for bit, however they are batched.
// Method: real holders in this process (op_attender_fixture.h).

#include "client/bindings/ggml/op_attender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/client/bindings/ggml/op_attender_fixture.h"
#include "tests/support/allocation_count.h"

namespace ckv::test {
namespace {

using testing::HasSubstr;

TEST_F(OpAttenderTest, AttendsCellsAlone) {
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
  // A token that sees nothing gets zeros, as in llama.cpp.
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

TEST_F(OpAttenderTest, AttendsChunksAndCells) {
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
TEST_F(OpAttenderTest, UsesOneCorpusForAllSequences) {
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

// The same reference, read again by a reader without its state, gives the same context.
TEST_F(OpAttenderTest, FindsContextsByContent) {
  CorpusContexts contexts(
      [this]() -> absl::StatusOr<Requester*> { return cluster_.requester.get(); }, {});
  EngineCache cache(1, 16, 1, kHeads, 6);
  const auto list = [this] {
    return ggml::AttachedList{std::make_shared<const Attached>(ggml::AttachedBy(To("a", 0, 3, 7)))};
  };
  const MlaOp op = cache.Op(1);
  const auto first = contexts.Find(list(), op, Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*contexts.Find(list(), op, Soon()), *first);
  // A holder that is busy or late does not show that the chunks have moved.
  contexts.DropAfter(absl::ResourceExhaustedError(""), list());
  contexts.DropAfter(absl::DeadlineExceededError(""), list());
  EXPECT_EQ(*contexts.Find(list(), op, Soon()), *first);
  contexts.DropAfter(absl::NotFoundError(""), list());
  EXPECT_NE(*contexts.Find(list(), op, Soon()), *first);
}

TEST_F(OpAttenderTest, RefusesNanAnswers) {
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
  EXPECT_TRUE(absl::IsInvalidArgument(attender_->Attend(cache.Op(0))));
}

// After an op of the same shape, an op without references allocates nothing. One with references
// allocates 8 times at most.
TEST_F(OpAttenderTest, AllocatesLittle) {
  if (!kCountsAllocations)
    GTEST_SKIP()
        << "the sanitizer owns the allocator; to run it: tests/run.sh, which has no sanitizer";
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

// More sequences than there are contexts to keep.
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
}  // namespace ckv::test
