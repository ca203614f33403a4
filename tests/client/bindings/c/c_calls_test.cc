// Goal: a call of the ABI is the C++ client's, for any values in its structs: same bits, same
// errors, no allocation.
// Method: real holders in this process and one requester, called through both APIs. Parts, offsets,
// selections and own rows are random. The structs of an array are further apart than their size,
// like those of a program of a later version.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "tests/support/allocation_count.h"
#include "tests/support/test_fleet.h"

namespace ckv::c {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::TestGeometry;

constexpr uint32_t kDqk = 96, kDv = 64;  // of the test geometry
constexpr uint32_t kChunkCount = 9;

// A struct of a later version, with fields that are not set.
template <typename T>
struct Later {
  T known = {};
  uint64_t unknown[2] = {};
  Later() { known.struct_size = sizeof(Later); }
};

class CCallsTest : public testing::Test {
 protected:
  CCallsTest() {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < kChunkCount; ++i) tokens.push_back(i == 4 ? 0 : 1 + rng_() % 40);
    const test::TestCorpus chunks = MakeTestCorpus(TestGeometry(), tokens, 3);
    cluster_.fleet.Load("c", chunks, {0, 0, 1, 1, 0, 0, 1, 1, 0});
    EXPECT_EQ(ckv_resolve(&requester_, "c", CKV_TIMEOUT_DEFAULT, &corpus_), CKV_OK);
    q_ = RandomBf16(size_t{kRowCountMax} * kDqk, rng_);
  }
  void TearDown() override { ckv_corpus_free(corpus_); }

  ckv_attend_call CallOf(const ckv_segment* segments, uint32_t segment_count, uint32_t row_count,
                         Answer& answer) const {
    ckv_attend_call call = {};
    call.struct_size = sizeof(call);
    call.layer = 1;
    call.row_count = row_count;
    call.q = q_.data();
    call.wire = CKV_DTYPE_F32;
    call.o = answer.o.data();
    call.m = answer.m.data();
    call.l = answer.l.data();
    call.segments = segments;
    call.segment_count = segment_count;
    return call;
  }

  ckv_context* OpenContext(const Later<ckv_part>* parts, uint32_t part_count) {
    ckv_context_spec spec = {};
    spec.struct_size = sizeof(spec);
    spec.parts = &parts->known;
    spec.part_count = part_count;
    spec.policy = CKV_POLICY_ROUTE;
    ckv_context* context = nullptr;
    EXPECT_EQ(ckv_context_open(&requester_, &spec, &context), CKV_OK) << ckv_last_error(nullptr);
    return context;
  }

  static constexpr uint32_t kRowCountMax = 64;
  std::mt19937 rng_{11};
  const std::unique_ptr<Fabric> fabric_ = NewShmFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 2, LaneShape()};
  ckv_requester requester_{nullptr, cluster_.requester.get(), ""};
  ckv_corpus* corpus_ = nullptr;
  std::vector<uint16_t> q_;
};

// One random sequence, as the C++ client takes it.
struct Sequence {
  std::vector<ChunkUse> uses;
  std::vector<uint32_t> ordinals;
  std::vector<int64_t> offsets;
  std::vector<int32_t> selected;
  std::vector<uint16_t> own;
  std::vector<uint32_t> visible;
  uint32_t row_count = 0, k = 0, group_rows = 1;
};

Sequence RandomSequence(std::mt19937& rng, const Corpus& corpus) {
  Sequence made;
  const int64_t shift = rng() % 3 == 0 ? 0 : int64_t(rng() % 1000) - 500;
  uint32_t tokens = 0;
  for (uint32_t i = 0; i < kChunkCount; ++i) {
    if (rng() % 3 == 0 && i > 0) continue;
    made.ordinals.push_back(i);
    made.offsets.push_back(int64_t(rng() % 9) - 4);
    made.uses.push_back({i, made.offsets.back() + shift});
    tokens += corpus.chunks[i].token_count;
  }
  made.offsets.push_back(shift);  // last: the part's own
  made.row_count = 1 + rng() % 16;
  if (rng() % 2 == 0) {
    made.k = 1 + rng() % 6;
    made.group_rows = 1 + rng() % 4;
    const uint32_t groups = (made.row_count - 1) / made.group_rows + 1;
    for (uint32_t i = 0; i < groups * made.k; ++i)
      made.selected.push_back(int32_t(rng() % (tokens + 1)) - 1);
  }
  if (rng() % 2 == 0) {
    const uint32_t own_count = 1 + rng() % 8;
    made.own = RandomBf16(size_t{own_count} * kDqk, rng);
    for (uint32_t i = 0; i < made.row_count; ++i) made.visible.push_back(rng() % (own_count + 1));
  }
  return made;
}

// A segment in both languages.
struct BothSegments {
  Sequence sequence;
  Context context;
  ckv_context* handle = nullptr;
  OwnRows own;
  Later<ckv_own_rows> c_own;

  // Describes the sequence for both APIs, from `row_begin` on.
  void Describe(uint32_t row_begin, Segment& segment, ckv_segment& c_segment) {
    segment.row_begin = c_segment.row_begin = row_begin;
    segment.row_count = c_segment.row_count = sequence.row_count;
    segment.context = &context;
    c_segment.context = handle;
    if (sequence.k > 0) {
      segment.selection = {sequence.selected.data(), sequence.k, sequence.group_rows};
      c_segment.selected = sequence.selected.data();
      c_segment.selected_count = sequence.k;
      c_segment.selected_group_rows = sequence.group_rows;
    }
    if (sequence.own.empty()) return;
    const auto own_count = static_cast<uint32_t>(sequence.own.size() / kDqk);
    own = {{reinterpret_cast<const std::byte*>(sequence.own.data()), own_count, 2 * kDqk},
           sequence.visible.data()};
    segment.own = {&own, 1};
    c_own.known.rows = sequence.own.data();
    c_own.known.row_count = own_count;
    c_own.known.visible = sequence.visible.data();
    c_segment.own = &c_own.known;
    c_segment.own_count = 1;
  }
};

TEST_F(CCallsTest, RandomCallsHaveTheBitsOfTheCxxClient) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const size_t count = 1 + rng_() % 4;
    std::vector<BothSegments> both(count);
    std::vector<Segment> segments(count);
    std::vector<Later<ckv_segment>> c_segments(count);
    uint32_t rows = 0;
    for (size_t i = 0; i < count; ++i) {
      Sequence& one = both[i].sequence = RandomSequence(rng_, *corpus_->corpus);
      const ContextPart part = {corpus_->corpus, one.uses};
      both[i].context = *cluster_.requester->Open(
          {.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, test::Soon());
      Later<ckv_part> c_part;
      c_part.known.corpus = corpus_;
      c_part.known.chunks = one.ordinals.data();
      c_part.known.offsets = one.offsets.data();
      c_part.known.chunk_count = static_cast<uint32_t>(one.ordinals.size());
      c_part.known.offset = one.offsets.back();
      both[i].handle = OpenContext(&c_part, 1);
      both[i].Describe(rows, segments[i], c_segments[i].known);
      rows += one.row_count;
    }
    LayerCall call;
    call.layer = 1;
    call.q = {q_.data(), rows, kDqk};
    call.segments = segments;
    call.wire = PartialDtype::kF32;
    call.deadline = test::Soon();
    Answer want(rows, kDv), got(rows, kDv), by_ticket(rows, kDv);
    ASSERT_TRUE(cluster_.requester->Attend(call, want.View()).ok());
    const auto c_count = static_cast<uint32_t>(count);
    ckv_attend_call c_call = CallOf(&c_segments[0].known, c_count, rows, got);
    ASSERT_EQ(ckv_attend(&requester_, &c_call, nullptr), CKV_OK) << ckv_last_error(nullptr);
    EXPECT_TRUE(got.SameBits(want));

    c_call = CallOf(&c_segments[0].known, c_count, rows, by_ticket);
    ckv_ticket* ticket = nullptr;
    ASSERT_EQ(ckv_submit(&requester_, &c_call, nullptr, &ticket), CKV_OK);
    for (const BothSegments& one : both) ckv_context_close(one.handle);  // the call continues
    std::memset(static_cast<void*>(c_segments.data()), 0xee, sizeof(c_segments[0]) * count);
    int done = 0;
    EXPECT_EQ(ckv_wait(ticket, CKV_TIMEOUT_NONE, &done), CKV_OK) << ckv_last_error(nullptr);
    EXPECT_EQ(done, 1);
    ckv_ticket_free(ticket);
    EXPECT_TRUE(by_ticket.SameBits(want));
  }
}

TEST_F(CCallsTest, AWarmCallTakesNoMemory) {
  if (!kCountsAllocations)
    GTEST_SKIP() << "a sanitizer allocates; to run it: tests/run.sh, which has no sanitizer";
  Later<ckv_part> part;
  part.known.corpus = corpus_;
  ckv_context* const context = OpenContext(&part, 1);
  const std::vector<uint16_t> own_rows = RandomBf16(size_t{3} * kDqk, rng_);
  ckv_own_rows own = {};
  own.struct_size = sizeof(own);
  own.rows = own_rows.data();
  own.row_count = 3;
  ckv_segment segment = {};
  segment.struct_size = sizeof(segment);
  segment.context = context;
  segment.own = &own;
  segment.own_count = 1;
  Answer answer(16, kDv);
  const ckv_attend_call call = CallOf(&segment, 1, 16, answer);
  ckv_attend_report report = {};
  report.struct_size = sizeof(report);
  const auto attend = [&] { return ckv_attend(&requester_, &call, &report); };
  for (int i = 0; i < 8; ++i) ASSERT_EQ(attend(), CKV_OK);
  const uint64_t before = allocation_count;
  ASSERT_EQ(attend(), CKV_OK);
  EXPECT_EQ(allocation_count - before, 0u);
  EXPECT_EQ(report.own_pairs, 16u * 3);
  ckv_context_close(context);
}

TEST_F(CCallsTest, AnErrorLeavesTheAnswerAndHasAText) {
  Later<ckv_part> part;
  part.known.corpus = corpus_;
  Later<ckv_segment> segment;
  segment.known.part = &part.known;
  Answer answer(4, kDv);
  ckv_attend_call call = CallOf(&segment.known, 1, 4, answer);
  const auto refused = [&](const char* what) {
    EXPECT_EQ(ckv_attend(&requester_, &call, nullptr), CKV_INVALID_ARGUMENT) << what;
    EXPECT_STRNE(ckv_last_error(&requester_), "") << what;
    EXPECT_TRUE(answer.Untouched());
  };
  const auto with = [&](auto change, const char* what) {
    const auto before = call;
    change(call);
    refused(what);
    call = before;
  };
  with([](ckv_attend_call& c) { c.q = nullptr; }, "no queries");
  with([](ckv_attend_call& c) { c.m = nullptr; }, "no m");
  with([](ckv_attend_call& c) { c.wire = CKV_DTYPE_FP8_DS_MLA; }, "a wire type");
  with([](ckv_attend_call& c) { c.precision = 4; }, "a precision");
  with([](ckv_attend_call& c) { c.traceparent = "00-zz"; }, "a trace");
  with([](ckv_attend_call& c) { c.segment_count = 0; }, "no segments");
  with([](ckv_attend_call& c) { c.segment_count = UINT32_MAX; }, "too many segments");
  with([](ckv_attend_call& c) { c.row_count = 0; }, "no rows");
  with([](ckv_attend_call& c) { c.struct_size = 0; }, "no size");
  with([](ckv_attend_call& c) { c.o = reinterpret_cast<float*>(reinterpret_cast<char*>(c.o) + 2); },
       "an odd answer");
  segment.unknown[1] = 1;
  refused("a field that is not known");
  segment.unknown[1] = 0;
  part.known.offset = int64_t{1} << 41;
  refused("an offset");
  part.known.offset = INT64_MIN;
  refused("an offset");
  part.known.offset = 0;
  ckv_attend_report report = {};  // without its size
  EXPECT_EQ(ckv_attend(&requester_, &call, &report), CKV_INVALID_ARGUMENT);
  EXPECT_TRUE(answer.Untouched());

  cluster_.fleet.StopHolder(1);
  call.timeout_ns = 2'000'000'000;
  const ckv_status status = ckv_attend(&requester_, &call, nullptr);
  EXPECT_TRUE(status == CKV_UNAVAILABLE || status == CKV_NOT_FOUND) << ckv_status_name(status);
  EXPECT_TRUE(answer.Untouched());
}

// Makes `call` with the struct `at` in sizes of other versions (VERSIONS in ckv.h).
template <typename T, typename Call>
void ExpectSizes(Later<T>& at, Call&& call) {
  at.known.struct_size = sizeof(T) - 1;
  EXPECT_EQ(call(), CKV_INVALID_ARGUMENT) << "smaller than in version 1.0";
  at.known.struct_size = sizeof(T);
  EXPECT_EQ(call(), CKV_OK) << ckv_last_error(nullptr);
  at.known.struct_size = sizeof(Later<T>);
  for (uint64_t& field : at.unknown) {
    field = uint64_t{1} << 63;
    EXPECT_EQ(call(), CKV_INVALID_ARGUMENT) << "a field that is not known";
    field = 0;
  }
  EXPECT_EQ(call(), CKV_OK) << ckv_last_error(nullptr);
  EXPECT_EQ(at.known.struct_size, sizeof(Later<T>));
}

TEST_F(CCallsTest, StructsOfAnySizeFollowTheRule) {
  Later<ckv_part> part;
  part.known.corpus = corpus_;
  Later<ckv_segment> segment;
  segment.known.part = &part.known;
  Answer answer(4, kDv);
  Later<ckv_attend_call> attend;
  attend.known = CallOf(&segment.known, 1, 4, answer);
  Later<ckv_attend_report> attended;
  const auto attend_all = [&] { return ckv_attend(&requester_, &attend.known, &attended.known); };
  ExpectSizes(attend, attend_all);
  ExpectSizes(segment, attend_all);
  ExpectSizes(part, attend_all);
  ExpectSizes(attended, attend_all);
  EXPECT_GT(attended.known.routed_pairs, 0u);

  Later<ckv_corpus_facts> facts;
  ExpectSizes(facts, [&] { return ckv_corpus_describe(corpus_, &facts.known); });
  EXPECT_EQ(facts.known.chunk_count, kChunkCount);
  const size_t bytes = facts.known.layers * facts.known.token_count * facts.known.row_bytes;
  std::vector<std::byte> rows(bytes);
  Later<ckv_fetch_call> fetch;
  fetch.known.corpus = corpus_;
  fetch.known.rows = rows.data();
  fetch.known.rows_bytes = rows.size();
  Later<ckv_fetch_report> fetched;
  const auto fetch_all = [&] { return ckv_fetch(&requester_, &fetch.known, &fetched.known); };
  ExpectSizes(fetch, fetch_all);
  ExpectSizes(fetched, fetch_all);
  EXPECT_EQ(fetched.known.bytes, bytes);
}

TEST_F(CCallsTest, ManyThreadsShareARequester) {
  Later<ckv_part> part;
  part.known.corpus = corpus_;
  ckv_context* const context = OpenContext(&part, 1);
  ckv_segment segment = {};
  segment.struct_size = sizeof(segment);
  segment.context = context;
  Answer want(8, kDv);
  const ckv_attend_call first = CallOf(&segment, 1, 8, want);
  ASSERT_EQ(ckv_attend(&requester_, &first, nullptr), CKV_OK);
  std::vector<Answer> answers(4, Answer(8, kDv));
  std::vector<std::thread> threads;
  threads.reserve(answers.size());
  for (Answer& answer : answers) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const ckv_attend_call call = CallOf(&segment, 1, 8, answer);
        EXPECT_EQ(ckv_attend(&requester_, &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
      }
      // An error of this thread only.
      EXPECT_EQ(ckv_attend(&requester_, nullptr, nullptr), CKV_INVALID_ARGUMENT);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Answer& answer : answers) EXPECT_TRUE(answer.SameBits(want));
  EXPECT_STREQ(ckv_last_error(&requester_), "");
  ckv_context_close(context);
}

TEST_F(CCallsTest, AFetchByTicketBringsLayersInOrder) {
  const Geometry& geometry = corpus_->corpus->geometry;
  const size_t layer_bytes = corpus_->corpus->token_count() * geometry.row_bytes();
  std::vector<std::byte> want(geometry.layers * layer_bytes), got(want.size());
  ckv_fetch_call call = {};
  call.struct_size = sizeof(call);
  call.corpus = corpus_;
  call.rows = want.data();
  call.rows_bytes = want.size();
  call.rotate = 1;
  call.position = 77;
  ASSERT_EQ(ckv_fetch(&requester_, &call, nullptr), CKV_OK) << ckv_last_error(nullptr);
  call.rows = got.data();
  ckv_fetch_ticket* ticket = nullptr;
  ASSERT_EQ(ckv_fetch_begin(&requester_, &call, &ticket), CKV_OK);
  int done = 0;
  // The last layer first: all before it are complete then.
  ASSERT_EQ(ckv_fetch_wait_layer(ticket, geometry.layers - 1, CKV_TIMEOUT_DEFAULT, &done), CKV_OK);
  ASSERT_EQ(done, 1);
  EXPECT_EQ(got, want);
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    EXPECT_EQ(ckv_fetch_wait_layer(ticket, layer, 0, &done), CKV_OK);
    EXPECT_EQ(done, 1);
  }
  EXPECT_EQ(requester_.in_flight, 1u);
  ckv_fetch_ticket_free(ticket);
  EXPECT_EQ(requester_.in_flight, 0u);
}

}  // namespace
}  // namespace ckv::c
