// Goal: a call of many segments answers each as a call by itself would, bit for bit. This holds for
// any placement of the chunks, any cut of the call and any version of the holders.
// Method: real holders in this process; random segments over random contexts; own rows attended by
// the kernel and merged by hand.

#include "client/context.h"

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

constexpr uint32_t kRowValues = 96, kLatentValues = 64;  // of the test geometry

// A sequence: some chunks of a corpus, perhaps a selection, perhaps rows of its own.
struct Sequence {
  std::vector<ChunkUse> uses;
  std::vector<int32_t> indices;
  uint32_t k = 0, group_rows = 1;
  std::vector<uint16_t> own;  // bf16 [own_count][kRowValues]
  std::vector<uint32_t> visible;
  OwnRows own_rows;
  uint32_t row_count = 0;
};

class ContextTest : public testing::Test {
 protected:
  static constexpr size_t kChunkCount = 21;

  ContextTest() {
    std::vector<uint32_t> tokens;
    for (size_t i = 0; i < kChunkCount; ++i) tokens.push_back(i % 7 == 3 ? 0 : 1 + rng_() % 60);
    corpus_ = MakeTestCorpus(TestGeometry(), tokens, 3);
  }

  // Chunk i is on holder placement[i] of `cluster`.
  std::shared_ptr<const Corpus> Load(Cluster& cluster, size_t holder_count,
                                     const std::string& name) {
    std::vector<size_t> placement(kChunkCount);
    const uint32_t run = 1 + rng_() % 8;
    for (size_t i = 0; i < kChunkCount; ++i)
      placement[i] = run == 8 ? rng_() % holder_count : i / run % holder_count;
    cluster.fleet.Load(name, corpus_, placement);
    return cluster.Resolve(name);
  }

  std::unique_ptr<Sequence> RandomSequence() {
    auto sequence = std::make_unique<Sequence>();
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < kChunkCount; ++i) {
      if (rng_() % 3 == 0) continue;
      sequence->uses.push_back({i, rng_() % 3 ? 0 : int64_t(rng_() % 5)});
      tokens += corpus_.chunks[i].info.token_count();
    }
    if (sequence->uses.empty()) sequence->uses.push_back({0, 0});
    sequence->row_count = 1 + rng_() % 40;
    if (rng_() % 2 && tokens > 0) {
      sequence->k = 1 + rng_() % 30;
      sequence->group_rows = 1 + rng_() % 20;
      const uint32_t groups = (sequence->row_count - 1) / sequence->group_rows + 1;
      for (uint32_t i = 0; i < groups * sequence->k; ++i)
        sequence->indices.push_back(int32_t(rng_() % (tokens + 1)) - 1);
    }
    if (rng_() % 2) {
      const uint32_t own_count = 1 + rng_() % 20;
      sequence->own = RandomBf16(size_t{own_count} * kRowValues, rng_);
      for (uint32_t i = 0; i < sequence->row_count; ++i)
        sequence->visible.push_back(rng_() % (own_count + 1));
      sequence->own_rows.rows = {reinterpret_cast<const std::byte*>(sequence->own.data()),
                                 own_count, kRowValues * 2};
      sequence->own_rows.visible = rng_() % 4 == 0 ? nullptr : sequence->visible.data();
    }
    return sequence;
  }

  static Segment SegmentOf(const Sequence& sequence, const Context& context, uint32_t row_begin) {
    Segment segment;
    segment.row_begin = row_begin;
    segment.row_count = sequence.row_count;
    segment.context = &context;
    if (sequence.k > 0)
      segment.selection = {sequence.indices.data(), sequence.k, sequence.group_rows};
    if (sequence.own_rows.rows.count > 0) segment.own = {&sequence.own_rows, 1};
    return segment;
  }

  static Context Open(Cluster& cluster, const std::shared_ptr<const Corpus>& corpus,
                      const Sequence& sequence, ContextPolicy policy = ContextPolicy::kRoute) {
    const ContextPart part = {corpus, sequence.uses};
    auto context = cluster.requester->Open({.parts = {&part, 1}, .policy = policy}, Soon());
    EXPECT_TRUE(context.ok()) << context.status();
    return *std::move(context);
  }

  // The answer to one sequence by itself: its chunks by an AttendCall, its own rows by the kernel.
  Answer Alone(Cluster& cluster, const std::shared_ptr<const Corpus>& corpus,
               const Sequence& sequence, const uint16_t* q) {
    AttendCall call;
    call.corpus = corpus;
    call.chunks = sequence.uses;
    call.layer = 1;
    call.q = {q, sequence.row_count, kRowValues};
    if (sequence.k > 0) call.selection = {sequence.indices.data(), sequence.k, sequence.group_rows};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    Answer routed(sequence.row_count, kLatentValues);
    const absl::Status status = cluster.requester->Attend(call, routed.View(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    if (sequence.own_rows.rows.count == 0) return routed;
    Answer own(sequence.row_count, kLatentValues), merged(sequence.row_count, kLatentValues);
    AttentionPiece piece;
    piece.q = call.q;
    piece.rows = sequence.own_rows.rows;
    piece.row_limits = sequence.own_rows.visible;
    piece.out = own.View();
    WorkerPool pool(1);
    AttendPartials(AttentionShape::Of(corpus_.geometry), {&piece, 1}, pool);
    const ConstPartialView parts[] = {routed.View(), own.View()};
    MergePartials(parts, sequence.row_count, kLatentValues, merged.View());
    return merged;
  }

  static bool SameRows(const Answer& all, uint32_t row_begin, const Answer& one, uint32_t rows) {
    return std::memcmp(all.o.data() + size_t{row_begin} * kLatentValues, one.o.data(),
                       size_t{rows} * kLatentValues * sizeof(float)) == 0 &&
           std::memcmp(all.m.data() + row_begin, one.m.data(), rows * sizeof(float)) == 0 &&
           std::memcmp(all.l.data() + row_begin, one.l.data(), rows * sizeof(float)) == 0;
  }

  // Contexts of policy cache cache rows locally, and those of policy auto then use these rows, too.
  // So some chunks are local and others are routed.
  ContextPolicy RandomPolicy() {
    if (!cached_too_) return ContextPolicy::kRoute;
    return std::array{ContextPolicy::kRoute, ContextPolicy::kCache,
                      ContextPolicy::kAuto}[rng_() % 3];
  }

  std::mt19937 rng_{11};
  test::TestCorpus corpus_;
  bool cached_too_ = false;
};

// A batch of random sequences, ready to be called.
struct Batch {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Context> contexts;
  std::vector<Segment> segments;
  std::vector<uint16_t> q;
  LayerCall call;
};

class ContextBatchTest : public ContextTest {
 protected:
  void Make(Cluster& cluster, const std::shared_ptr<const Corpus>& corpus, Batch& batch) {
    const uint32_t count = 1 + rng_() % 8;
    uint32_t rows = 0;
    batch.contexts.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      batch.sequences.push_back(RandomSequence());
      batch.contexts.push_back(Open(cluster, corpus, *batch.sequences.back(), RandomPolicy()));
      batch.segments.push_back(SegmentOf(*batch.sequences.back(), batch.contexts.back(), rows));
      rows += batch.sequences.back()->row_count;
    }
    batch.q = RandomBf16(size_t{rows} * kRowValues, rng_);
    batch.call.layer = 1;
    batch.call.q = {batch.q.data(), rows, kRowValues};
    batch.call.segments = batch.segments;
    batch.call.wire = PartialDtype::kF32;
    batch.call.deadline = Soon();
  }
  void ExpectEachAsAlone(Cluster& cluster, const std::shared_ptr<const Corpus>& corpus,
                         const Batch& batch, const Answer& got) {
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& segment = batch.segments[i];
      const Answer alone = Alone(cluster, corpus, *batch.sequences[i],
                                 batch.q.data() + size_t{segment.row_begin} * kRowValues);
      ASSERT_TRUE(SameRows(got, segment.row_begin, alone, segment.row_count)) << "segment " << i;
    }
  }
};

TEST_F(ContextBatchTest, EverySplitEqualsSingleCalls) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  for (const size_t holder_count : {1, 2, 4}) {
    for (const LaneShape& shape : {SmallShape(), SmallShape(2), LaneShape{.slot_count = 4}}) {
      Cluster cluster(fabric.get(), holder_count, shape);
      for (uint32_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE(
            absl::StrFormat("%d holders, %d slots, seed %d", holder_count, shape.slot_count, seed));
        const auto corpus = Load(cluster, holder_count, absl::StrFormat("c%d", seed));
        Batch batch;
        Make(cluster, corpus, batch);
        Answer got(batch.call.q.count, kLatentValues);
        AttendReport report;
        const absl::Status status = cluster.requester->Attend(batch.call, got.View(), &report);
        ASSERT_TRUE(status.ok()) << status;
        ExpectEachAsAlone(cluster, corpus, batch, got);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(ContextBatchTest, NearRowsGiveTheBitsOfHolders) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  cached_too_ = true;
  uint64_t cached = 0, routed = 0, mixed = 0;
  for (const size_t holder_count : {1, 4}) {
    for (const LaneShape& shape : {SmallShape(2), LaneShape{.slot_count = 4}}) {
      for (uint32_t seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE(
            absl::StrFormat("%d holders, %d slots, seed %d", holder_count, shape.slot_count, seed));
        Cluster cluster(fabric.get(), holder_count, shape, nullptr, 16, uint64_t{64} << 20);
        const auto corpus = Load(cluster, holder_count, "c");
        Batch batch;
        Make(cluster, corpus, batch);
        Answer got(batch.call.q.count, kLatentValues);
        AttendReport report;
        absl::Status status;
        if (seed % 2 == 0) {
          status = cluster.requester->Attend(batch.call, got.View(), &report);
        } else {
          auto ticket = cluster.requester->Submit(batch.call, got.View(), &report);
          ASSERT_TRUE(ticket.ok()) << ticket.status();
          status = ticket->Wait();
        }
        ASSERT_TRUE(status.ok()) << status;
        ExpectEachAsAlone(cluster, corpus, batch, got);
        if (HasFatalFailure()) return;
        cached += report.cached_pairs;
        routed += report.routed_pairs;
        mixed += report.cached_pairs > 0 && report.routed_pairs > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(cached, 0u);
  EXPECT_GT(routed, 0u);
  EXPECT_GT(mixed, 10u);
}

TEST_F(ContextBatchTest, BitsDoNotDependOnThePlacement) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 5, LaneShape{.slot_count = 8});
  Batch batch;
  std::unique_ptr<Answer> first;
  for (int placement = 0; placement < 300; ++placement) {
    SCOPED_TRACE(placement);
    const auto corpus = Load(cluster, 5, absl::StrFormat("c%d", placement));
    if (placement == 0) Make(cluster, corpus, batch);
    for (size_t i = 0; i < batch.contexts.size(); ++i)
      batch.contexts[i] = Open(cluster, corpus, *batch.sequences[i]);
    auto got = std::make_unique<Answer>(batch.call.q.count, kLatentValues);
    AttendReport report;
    batch.call.deadline = Soon();
    const absl::Status status = cluster.requester->Attend(batch.call, got->View(), &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(report.same_bits_anywhere);
    if (first == nullptr) {
      first = std::move(got);
    } else {
      ASSERT_TRUE(got->SameBits(*first));
    }
  }
}

// A context over two corpora is each corpus's tree, merged in order.
TEST_F(ContextTest, SeveralCorporaAreMergedInOrder) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 3, SmallShape());
  const auto other = MakeTestCorpus(TestGeometry(), {7, 30, 4, 19}, 8);
  cluster.fleet.Load("other", other, {2, 0, 2, 1});
  const std::shared_ptr<const Corpus> corpora[] = {Load(cluster, 3, "c"), cluster.Resolve("other")};
  const auto q = RandomBf16(20 * kRowValues, rng_);
  const ContextPart parts[] = {{corpora[0], {}}, {corpora[1], {}}};
  const auto both = cluster.requester->Open({.parts = parts}, Soon());
  ASSERT_TRUE(both.ok()) << both.status();
  Answer answers[] = {
      {20, kLatentValues}, {20, kLatentValues}, {20, kLatentValues}, {20, kLatentValues}};
  for (int i = 0; i < 2; ++i) {
    AttendCall call;
    call.corpus = corpora[i];
    call.q = {q.data(), 20, kRowValues};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    ASSERT_TRUE(cluster.requester->Attend(call, answers[i].View(), nullptr).ok());
  }
  const ConstPartialView trees[] = {answers[0].View(), answers[1].View()};
  MergePartials(trees, 20, kLatentValues, answers[2].View());
  const Segment segment = {.row_count = 20, .context = &*both};
  LayerCall call;
  call.q = {q.data(), 20, kRowValues};
  call.segments = {&segment, 1};
  call.wire = PartialDtype::kF32;
  call.deadline = Soon();
  const absl::Status status = cluster.requester->Attend(call, answers[3].View());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(answers[3].SameBits(answers[2]));
}

TEST_F(ContextTest, ASequenceMayHaveOwnRowsAlone) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 1, SmallShape());
  const auto empty = MakeTestCorpus(TestGeometry(), {0}, 8);
  cluster.fleet.Load("empty", empty, {0});
  const ContextPart part = {cluster.Resolve("empty"), {}};
  const auto context = cluster.requester->Open({.parts = {&part, 1}}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  const auto q = RandomBf16(5 * kRowValues, rng_), rows = RandomBf16(9 * kRowValues, rng_);
  const OwnRows own = {{reinterpret_cast<const std::byte*>(rows.data()), 9, kRowValues * 2},
                       nullptr};
  const Segment segment = {.row_count = 5, .context = &*context, .own = {&own, 1}};
  LayerCall call;
  call.q = {q.data(), 5, kRowValues};
  call.segments = {&segment, 1};
  call.wire = PartialDtype::kF32;  // so that both are exact
  call.deadline = Soon();
  Answer got(5, kLatentValues), want(5, kLatentValues);
  ASSERT_TRUE(cluster.requester->Attend(call, got.View()).ok());
  AttentionPiece piece;
  piece.q = call.q;
  piece.rows = own.rows;
  piece.out = want.View();
  WorkerPool pool(1);
  AttendPartials(AttentionShape::Of(empty.geometry), {&piece, 1}, pool);
  EXPECT_TRUE(got.SameBits(want));
}

// Wrong input is a typed error, and nothing is sent.
class ContextErrorsTest : public ContextTest {
 protected:
  ContextErrorsTest() {
    corpus_now_ = Load(cluster_, 2, "c");
    const ContextPart part = {corpus_now_, {}};
    context_ = *cluster_.requester->Open({.parts = {&part, 1}}, Soon());
    sent_before_ = Requests();
    segments_ = {{.row_begin = 0, .row_count = 3, .context = &context_},
                 {.row_begin = 3, .row_count = 2, .context = &context_}};
    call_.q = {q_.data(), 5, kRowValues};
    call_.segments = segments_;
    call_.deadline = Soon();
  }
  uint64_t Requests() {
    return cluster_.fleet.holder(0).stats().request_count +
           cluster_.fleet.holder(1).stats().request_count;
  }
  // Blocking and submitted alike.
  absl::StatusCode Code() {
    Answer answer(5, kLatentValues);
    const absl::Status status = cluster_.requester->Attend(call_, answer.View());
    EXPECT_TRUE(status.ok() || answer.Untouched());
    auto ticket = cluster_.requester->Submit(call_, answer.View());
    EXPECT_EQ(ticket.status().code(), status.code());
    EXPECT_TRUE(!ticket.ok() || ticket->Wait().ok());
    EXPECT_TRUE(status.ok() || Requests() == sent_before_);
    return status.code();
  }

  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 2, SmallShape()};
  std::vector<uint16_t> q_ = RandomBf16(5 * kRowValues, rng_);
  std::shared_ptr<const Corpus> corpus_now_;
  Context context_;
  uint64_t sent_before_ = 0;
  std::vector<Segment> segments_;
  LayerCall call_;
};

constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;

TEST_F(ContextErrorsTest, SegmentsThatDoNotAddUp) {
  EXPECT_EQ(Code(), absl::StatusCode::kOk);
  sent_before_ = Requests();
  const std::vector<Segment> good = segments_;
  const auto code = [&](auto change) {
    segments_ = good;
    change(segments_);
    call_.segments = segments_;
    return Code();
  };
  EXPECT_EQ(code([](auto& s) { s[1].row_count = 1; }), kBad);
  EXPECT_EQ(code([](auto& s) { s[1].row_count = 3; }), kBad);
  EXPECT_EQ(code([](auto& s) { s[1].row_count = 0xffffffff; }), kBad);
  EXPECT_EQ(code([](auto& s) { s[1].row_begin = 2; }), kBad);
  EXPECT_EQ(code([](auto& s) { s[1].row_begin = 4; }), kBad);
  EXPECT_EQ(code([](auto& s) { s[0].row_count = 0; }), kBad);
  EXPECT_EQ(code([](auto& s) { s.pop_back(); }), kBad);
  EXPECT_EQ(code([](auto& s) { s.clear(); }), kBad);
  EXPECT_EQ(code([](auto& s) { s[1].context = nullptr; }), kBad);
}

TEST_F(ContextErrorsTest, AClosedContext) {
  context_.Close();
  EXPECT_FALSE(context_.is_open());
  EXPECT_EQ(Code(), absl::StatusCode::kFailedPrecondition);
  Context none;
  segments_[0].context = segments_[1].context = &none;
  EXPECT_EQ(Code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ContextErrorsTest, TwoGeometries) {
  Geometry wider = TestGeometry();
  wider.d_qk += 8;
  const auto other = MakeTestCorpus(wider, {4}, 2);
  cluster_.fleet.StartHolder(2);
  cluster_.fleet.Load("wider", other, {2});
  const ContextPart part = {cluster_.Resolve("wider"), {}};
  const auto context = cluster_.requester->Open({.parts = {&part, 1}}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  segments_[1].context = &*context;
  EXPECT_EQ(Code(), kBad);
  const ContextPart parts[] = {{corpus_now_, {}}, part};
  EXPECT_EQ(cluster_.requester->Open({.parts = parts}, Soon()).status().code(), kBad);
}

TEST_F(ContextErrorsTest, OwnRowsOfAnotherWidth) {
  const std::vector<std::byte> rows(4 * kRowValues * 2);
  OwnRows own = {{rows.data(), 4, kRowValues * 2 - 2}, nullptr};
  segments_[1].own = {&own, 1};
  EXPECT_EQ(Code(), kBad);
  own.rows = {nullptr, 4, kRowValues * 2};
  EXPECT_EQ(Code(), kBad);
}

TEST_F(ContextErrorsTest, QueriesAndSelections) {
  const LayerCall good = call_;
  const auto code = [&](auto change) {
    call_ = good;
    change(call_);
    return Code();
  };
  EXPECT_EQ(code([](LayerCall& c) { c.layer = 3; }), kBad);
  EXPECT_EQ(code([](LayerCall& c) { c.q.stride = kRowValues - 1; }), kBad);
  EXPECT_EQ(code([](LayerCall& c) { c.q.data = nullptr; }), kBad);
  EXPECT_EQ(code([](LayerCall& c) { c.wire = PartialDtype(7); }), kBad);
  const int32_t beyond[] = {int32_t(context_.token_count())};
  segments_[0].selection = {beyond, 1, 3};
  Answer answer(5, kLatentValues);
  EXPECT_EQ(cluster_.requester->Attend(good, answer.View()).code(), kBad);
  segments_[0].selection.group_rows = 0;
  EXPECT_EQ(code([](LayerCall&) {}), kBad);
}

TEST_F(ContextErrorsTest, SpecsThatNameNothing) {
  const auto code = [&](std::vector<ContextPart> parts) {
    return cluster_.requester->Open({.parts = parts}, Soon()).status().code();
  };
  EXPECT_EQ(code({}), kBad);
  EXPECT_EQ(code({{nullptr, {}}}), kBad);
  EXPECT_EQ(code(std::vector<ContextPart>(kContextPartCountMax + 1, {corpus_now_, {}})), kBad);
  EXPECT_EQ(code({{corpus_now_, {}}, {corpus_now_, {}}}), kBad);  // every chunk twice
  const ChunkUse twice[] = {{1, 0}, {1, 0}}, beyond[] = {{kChunkCount, 0}},
                 far[] = {{1, kOffsetMax + 1}};
  EXPECT_EQ(code({{corpus_now_, twice}}), kBad);
  EXPECT_EQ(code({{corpus_now_, beyond}}), kBad);
  EXPECT_EQ(code({{corpus_now_, far}}), kBad);
}

TEST_F(ContextErrorsTest, OpenReportsAnUnreachableHolder) {
  cluster_.fleet.StopHolder(1);
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  const auto fresh = *Requester::Create(options, &cluster_.fleet, &cluster_.fleet);
  const ContextPart part = {corpus_now_, {}};
  const auto opened = fresh->Open({.parts = {&part, 1}}, test::Shortly());
  EXPECT_TRUE(absl::IsUnavailable(opened.status())) << opened.status();
  // With `await_holders` false, Open returns at once, and calls wait instead.
  const auto later = fresh->Open({.parts = {&part, 1}, .await_holders = false}, Soon());
  EXPECT_TRUE(later.ok()) << later.status();
}

}  // namespace
}  // namespace ckv
