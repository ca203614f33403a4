// Goal: selections and choices of the ABI are the C++ client's: same rows, same bits, same errors.
// Method: real holders in this process and one requester, called through both APIs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "tests/client/call/select_rows_fixture.h"

namespace ckv::c {
namespace {

using test::Answer;
using test::IndexQuery;
using test::kHeads;
using test::kTokenCount;

constexpr uint32_t kBest = 12;

class CSelectTest : public test::SelectRowsTest {
 protected:
  CSelectTest() { cluster_.fleet.Load("c", chunks_, {0, 1, 0}); }
  void SetUp() override {
    ASSERT_EQ(ckv_resolve(&requester_, "c", CKV_TIMEOUT_DEFAULT, &corpus_), CKV_OK);
    const ckv_part part = {sizeof(part), corpus_, nullptr, nullptr, 0, 0, 0};
    ckv_context_spec spec = {};
    spec.struct_size = sizeof(spec);
    spec.parts = &part;
    spec.part_count = 1;
    spec.policy = CKV_POLICY_ROUTE;
    ASSERT_EQ(ckv_context_open(&requester_, &spec, &context_), CKV_OK) << ckv_last_error(nullptr);
    own_.assign(kTokenCount * 3, 0.f);
    for (uint32_t t = 0; t < kTokenCount; ++t) own_[t * 3 + 1] = 1e9f;
  }
  void TearDown() override {
    ckv_context_close(context_);
    ckv_corpus_free(corpus_);
  }
  ckv_select_call Call() const {
    ckv_select_call call = {};
    call.struct_size = sizeof(call);
    call.context = context_;
    call.layer = 1;
    call.token_count = kTokenCount;
    call.q = query_.q.data();
    call.weights = query_.weights.data();
    call.q_dtype = CKV_INDEX_BF16;
    call.k = kBest;
    call.own_scores = own_.data();
    call.own_count = 3;
    return call;
  }
  SelectRowsCall CppCall() const {
    SelectRowsCall call = {.context = &context_->context, .layer = 1, .queries = query_.View()};
    call.k = kBest;
    call.own_scores = own_;
    call.deadline = test::Soon();
    return call;
  }

  const test::TestCorpus chunks_ = MakeCorpus({40, 50, 60});
  const IndexQuery query_{*chunks_.geometry.index, 5, false};
  test::Cluster cluster_{fabric.get(), 2, LaneShape()};
  ckv_requester requester_{nullptr, cluster_.requester.get(), ""};
  ckv_corpus* corpus_ = nullptr;
  ckv_context* context_ = nullptr;
  std::vector<float> own_;
};

TEST_F(CSelectTest, RowsAreTheClients) {
  std::vector<int32_t> rows(size_t{kTokenCount} * kBest), due(rows.size());
  ckv_select_report report = {};
  report.struct_size = sizeof(report);
  const ckv_select_call call = Call();
  ASSERT_EQ(ckv_select_rows(&requester_, &call, rows.data(), &report), CKV_OK)
      << ckv_last_error(nullptr);
  ASSERT_TRUE(cluster_.requester->SelectRows(CppCall(), due, nullptr).ok());
  EXPECT_EQ(rows, due);
  EXPECT_EQ(report.holder_count, 2u);
  EXPECT_GT(report.bytes_sent, 0u);
  EXPECT_GT(report.bytes_received, 0u);
}

TEST_F(CSelectTest, AChoiceHasOwnRows) {
  const ckv_select_call call = Call();
  ckv_choice* choice = nullptr;
  ASSERT_EQ(ckv_choose_rows(&requester_, &call, nullptr, &choice), CKV_OK)
      << ckv_last_error(nullptr);
  const uint32_t* own = nullptr;
  for (uint32_t t = 0; t < kTokenCount; ++t) {
    ASSERT_GE(ckv_choice_own_rows(choice, t, &own), 1u);
    EXPECT_THAT(std::vector<uint32_t>(own, own + ckv_choice_own_rows(choice, t, nullptr)),
                testing::Contains(1u));
  }
  EXPECT_EQ(ckv_choice_own_rows(choice, kTokenCount, &own), 0u);
  EXPECT_EQ(own, nullptr);
  EXPECT_EQ(ckv_choice_own_rows(nullptr, 0, nullptr), 0u);
  ckv_choice_free(choice);
  ckv_choice_free(nullptr);
}

// Goal: two tokens of a choice are attended as by the client, with one own row of three selected.
TEST_F(CSelectTest, AChoiceIsAttended) {
  const ckv_select_call call = Call();
  ckv_choice* choice = nullptr;
  ASSERT_EQ(ckv_choose_rows(&requester_, &call, nullptr, &choice), CKV_OK)
      << ckv_last_error(nullptr);
  constexpr uint32_t kRows = 2 * kHeads;
  std::mt19937 rng(3);
  const uint32_t d_qk = chunks_.geometry.d_qk, d_v = chunks_.geometry.d_v;
  const std::vector<uint16_t> q = test::RandomBf16(size_t{kRows} * d_qk, rng);
  const std::vector<uint16_t> suffix = test::RandomBf16(size_t{3} * d_qk, rng);
  const int32_t selected[] = {1};
  ckv_own_rows own_rows = {};
  own_rows.struct_size = sizeof(own_rows);
  own_rows.rows = suffix.data();
  own_rows.row_count = 3;
  own_rows.selected = selected;
  own_rows.selected_count = 1;
  own_rows.selected_group_rows = kRows;
  ckv_segment segment = {};
  segment.struct_size = sizeof(segment);
  segment.context = context_;
  segment.row_count = kRows;
  segment.own = &own_rows;
  segment.own_count = 1;
  segment.choice = choice;
  segment.choice_token_begin = 3;
  segment.choice_group_rows = kHeads;
  Answer got(kRows, d_v), due(kRows, d_v);
  ckv_attend_call attend = {};
  attend.struct_size = sizeof(attend);
  attend.layer = 2;
  attend.row_count = kRows;
  attend.q = q.data();
  attend.wire = CKV_DTYPE_F32;
  attend.o = got.o.data();
  attend.m = got.m.data();
  attend.l = got.l.data();
  attend.segments = &segment;
  attend.segment_count = 1;
  ASSERT_EQ(ckv_attend(&requester_, &attend, nullptr), CKV_OK) << ckv_last_error(nullptr);

  std::vector<int32_t> rows(size_t{kTokenCount} * kBest);
  ASSERT_TRUE(cluster_.requester->SelectRows(CppCall(), rows, nullptr).ok());
  for (int32_t& row : rows) row = row >= 150 ? -1 : row;
  OwnRows cpp_own = {
      .rows = {reinterpret_cast<const std::byte*>(suffix.data()) + d_qk * 2, 1, d_qk * 2}};
  Segment cpp = {.row_count = kRows, .context = &context_->context};
  cpp.selection = {rows.data() + 3 * kBest, kBest, kHeads};
  cpp.own = {&cpp_own, 1};
  const LayerCall cpp_call = {.layer = 2,
                              .q = {q.data(), kRows, d_qk},
                              .segments = {&cpp, 1},
                              .wire = PartialDtype::kF32,
                              .deadline = test::Soon()};
  ASSERT_TRUE(cluster_.requester->Attend(cpp_call, due.View(), nullptr).ok());
  EXPECT_EQ(got.o, due.o);
  EXPECT_EQ(got.m, due.m);
  EXPECT_EQ(got.l, due.l);

  ckv_part part = {sizeof(part), corpus_, nullptr, nullptr, 0, 0, 0};
  segment.context = nullptr;
  segment.part = &part;
  segment.own_count = 0;
  EXPECT_EQ(ckv_attend(&requester_, &attend, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(nullptr), testing::HasSubstr("a choice is of a context"));
  ckv_choice_free(choice);
}

TEST_F(CSelectTest, RefusesWhatIsNoSelection) {
  std::vector<int32_t> rows(size_t{kTokenCount} * kBest);
  const auto code = [&](auto change) {
    ckv_select_call call = Call();
    change(call);
    ckv_choice* choice = nullptr;
    const ckv_status status = ckv_choose_rows(&requester_, &call, nullptr, &choice);
    EXPECT_EQ(choice == nullptr, status != CKV_OK);
    ckv_choice_free(choice);
    EXPECT_EQ(ckv_select_rows(&requester_, &call, rows.data(), nullptr), status);
    return status;
  };
  using C = ckv_select_call;
  EXPECT_EQ(code([](C&) {}), CKV_OK);
  EXPECT_EQ(code([](C& c) { c.struct_size = 1; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.context = nullptr; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.q = nullptr; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.weights = nullptr; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.own_scores = nullptr; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.q_dtype = CKV_INDEX_INT8; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.k = 0; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.reserved = 1; }), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(code([](C& c) { c.layer = 3; }), CKV_INVALID_ARGUMENT);
  const ckv_select_call call = Call();
  ckv_choice* choice = nullptr;
  EXPECT_EQ(ckv_select_rows(nullptr, &call, rows.data(), nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_select_rows(&requester_, &call, nullptr, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_choose_rows(nullptr, &call, nullptr, &choice), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_choose_rows(&requester_, &call, nullptr, nullptr), CKV_INVALID_ARGUMENT);
  ckv_select_report report = {};
  EXPECT_EQ(ckv_select_rows(&requester_, &call, rows.data(), &report), CKV_INVALID_ARGUMENT)
      << "its size is not set";
}

}  // namespace
}  // namespace ckv::c
