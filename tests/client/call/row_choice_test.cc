// Goal: an attend of a choice has the bits of an attend of the rows that are selected, wherever the
// chunks are, and also once holders no longer have the candidates.
// Method: random corpora and placements. Each choice is attended, and so is the list of its rows.

#include <algorithm>
#include <vector>

#include "client/call/row_chooser.h"
#include "client/context/row_choice_state.h"
#include "client/holders/chunk_links.h"
#include "client/row_choice.h"
#include "gtest/gtest.h"
#include "tests/client/call/select_rows_fixture.h"
#include "tests/support/hook_fabric.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::IndexQuery;
using test::kHeads;
using test::kTokenCount;
using test::Soon;
using test::TestCorpus;

constexpr uint32_t kRowCount = kTokenCount * kHeads;

class RowChoiceTest : public test::SelectRowsTest {
 protected:
  // What attends a choice or a selection, of one layer and the same query rows.
  struct Attending {
    Attending(const Context* of, uint32_t d_qk) : context(of) {
      std::mt19937 rng(3);
      values = test::RandomBf16(size_t{kRowCount} * d_qk, rng);
      q = {values.data(), kRowCount, d_qk};
    }
    LayerCall Call(const Segment& segment) const {
      return {.layer = 1,
              .q = q,
              .segments = {&segment, 1},
              .wire = PartialDtype::kF32,
              .deadline = Soon()};
    }
    Segment Of(const RowChoice& choice) const {
      Segment segment = {.row_count = kRowCount, .context = context};
      segment.choice = {.rows = &choice, .group_rows = kHeads};
      return segment;
    }
    Segment Of(const std::vector<int32_t>& rows) const {
      const auto k = static_cast<uint32_t>(rows.size()) / kTokenCount;
      return {.row_count = kRowCount, .context = context, .selection = {rows.data(), k, kHeads}};
    }
    const Context* context;
    std::vector<uint16_t> values;
    QueryView q;
  };

  static SelectRowsCall Call(const Context& context, const IndexQuery& query, uint32_t k) {
    SelectRowsCall call = {.context = &context, .layer = 2, .queries = query.View(), .k = k};
    call.deadline = Soon();
    return call;
  }
  std::vector<int32_t> Rows(Cluster& cluster, const SelectRowsCall& call) {
    std::vector<int32_t> rows(size_t{kTokenCount} * call.k);
    const absl::Status status = cluster.requester->SelectRows(call, rows, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }
  AttendReport ExpectBits(Requester& requester, const Attending& attending, const RowChoice& choice,
                          const std::vector<int32_t>& rows) {
    const uint32_t d_v = attending.context->geometry().d_v;
    Answer got(kRowCount, d_v), due(kRowCount, d_v);
    AttendReport report;
    const Segment by_choice = attending.Of(choice), by_rows = attending.Of(rows);
    absl::Status status = requester.Attend(attending.Call(by_choice), got.View(), &report);
    EXPECT_TRUE(status.ok()) << status;
    status = requester.Attend(attending.Call(by_rows), due.View(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(got.o, due.o);
    EXPECT_EQ(got.m, due.m);
    EXPECT_EQ(got.l, due.l);
    return report;
  }
};

TEST_F(RowChoiceTest, HasTheBitsOfItsRowsWhereverTheyAre) {
  const TestCorpus corpus = MakeCorpus({40, 1, 300, 0, 77, 128, 200, 9});
  ForPlacements(corpus, [&](Cluster& cluster, const Context& context) {
    const Attending attending(&context, corpus.geometry.d_qk);
    for (const bool zeros : {false, true}) {  // with zeros, all scores are equal
      const IndexQuery query(*corpus.geometry.index, 7, zeros);
      for (const uint32_t k : {1u, 64u, 400u, 2000u}) {
        const SelectRowsCall call = Call(context, query, k);
        const auto choice = cluster.requester->ChooseRows(call, nullptr);
        ASSERT_TRUE(choice.ok()) << choice.status();
        EXPECT_EQ(choice->token_count(), kTokenCount);
        const std::vector<int32_t> rows = Rows(cluster, call);
        SCOPED_TRACE(testing::Message() << "k " << k << " " << zeros);
        const AttendReport report = ExpectBits(*cluster.requester, attending, *choice, rows);
        EXPECT_EQ(report.failed_attempt_count, 0u);
        const auto listed = std::count_if(rows.begin(), rows.end(), [](auto r) { return r >= 0; });
        EXPECT_EQ(report.routed_pairs, kHeads * static_cast<uint64_t>(listed));
      }
    }
  });
}

// Goal: a choice costs fewer bytes and one round trip less than a list of its rows.
TEST_F(RowChoiceTest, SendsNoRows) {
  const TestCorpus corpus = MakeCorpus(std::vector<uint32_t>(64, 32));
  Cluster cluster(fabric.get(), 2, LaneShape{});
  std::vector<size_t> placement(32, 0);
  placement.resize(64, 1);
  cluster.fleet.Load("c", corpus, placement);
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 8, false);
  const SelectRowsCall call = Call(*context, query, 512);
  SelectRowsReport chosen, selected;
  const auto choice = cluster.requester->ChooseRows(call, &chosen);
  ASSERT_TRUE(choice.ok()) << choice.status();
  std::vector<int32_t> rows(size_t{kTokenCount} * 512);
  ASSERT_TRUE(cluster.requester->SelectRows(call, rows, &selected).ok());
  EXPECT_GE(selected.bytes_received, chosen.bytes_received + rows.size() * sizeof(int32_t));
  const Attending attending(&*context, corpus.geometry.d_qk);
  Answer answer(kRowCount, corpus.geometry.d_v);
  AttendReport by_choice, by_rows;
  const Segment a = attending.Of(*choice), b = attending.Of(rows);
  ASSERT_TRUE(cluster.requester->Attend(attending.Call(a), answer.View(), &by_choice).ok());
  ASSERT_TRUE(cluster.requester->Attend(attending.Call(b), answer.View(), &by_rows).ok());
  EXPECT_GE(by_rows.bytes_sent, by_choice.bytes_sent + rows.size() * sizeof(int32_t));
  // Of a holder: its part of the 5 tokens, with one piece for its 32 chunks each.
  const size_t row_bytes = size_t{kRowCount} * corpus.geometry.d_qk * 2;
  EXPECT_LE(by_choice.bytes_sent, 2 * (row_bytes + kTokenCount * (32 + 32) + 256));
}

TEST_F(RowChoiceTest, LocalChunksAndOthers) {
  const TestCorpus corpus = MakeCorpus({1040, 150, 1060, 170});
  Cluster cluster(fabric.get(), 2, LaneShape{}, nullptr, 16, /*local_cache_bytes=*/1 << 24);
  cluster.fleet.Load("c", corpus, {0, 1, 1, 0});
  const std::vector<ChunkUse> some = {{.ordinal = 0}, {.ordinal = 2}};
  const auto cached = Open(cluster, some, ContextPolicy::kCache);
  ASSERT_TRUE(cached.ok()) << cached.status();
  const auto context = Open(cluster, {}, ContextPolicy::kAuto);
  ASSERT_TRUE(context.ok()) << context.status();
  for (const Context* of : {&*cached, &*context}) {
    for (const bool zeros : {false, true}) {
      const IndexQuery query(*corpus.geometry.index, 9, zeros);
      const Attending attending(of, corpus.geometry.d_qk);
      const SelectRowsCall call = Call(*of, query, 1100);
      const auto choice = cluster.requester->ChooseRows(call, nullptr);
      ASSERT_TRUE(choice.ok()) << choice.status();
      const std::vector<int32_t> rows = Rows(cluster, call);
      const AttendReport report = ExpectBits(*cluster.requester, attending, *choice, rows);
      EXPECT_EQ(report.cached_pairs + report.routed_pairs, 1100u * kRowCount);
      EXPECT_GT(report.cached_pairs, 0u);
      EXPECT_EQ(report.routed_pairs == 0, of == &*cached);
    }
  }
}

TEST_F(RowChoiceTest, OwnRowsCompete) {
  const TestCorpus corpus = MakeCorpus({40, 50});
  Cluster cluster(fabric.get(), 2, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const IndexQuery query(*corpus.geometry.index, 10, false);
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  std::vector<float> scores;
  for (uint32_t t = 0; t < kTokenCount; ++t)
    scores.insert(scores.end(), {1e9f, kUnseen, -1e9f, 1e9f});
  SelectRowsCall call = Call(*context, query, 10);
  call.own_scores = scores;
  const auto choice = cluster.requester->ChooseRows(call, nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  std::vector<int32_t> rows = Rows(cluster, call);
  for (uint32_t t = 0; t < kTokenCount; ++t) {
    const auto own = choice->own_rows(t);
    EXPECT_EQ(std::vector<uint32_t>(own.begin(), own.end()), (std::vector<uint32_t>{0, 3}));
    rows[t * 10 + 8] = rows[t * 10 + 9] = -1;  // the own rows
  }
  ExpectBits(*cluster.requester, Attending(&*context, corpus.geometry.d_qk), *choice, rows);
}

// Goal: own rows are attended by their selection.
// Method: two own rows of four, against own rows that are only these two.
TEST_F(RowChoiceTest, OwnRowsAreSelected) {
  const TestCorpus corpus = MakeCorpus({40});
  Cluster cluster(fabric.get(), 1, LaneShape{});
  cluster.fleet.Load("c", corpus, {0});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const Geometry& geometry = corpus.geometry;
  const Attending attending(&*context, geometry.d_qk);
  std::mt19937 rng(4);
  const auto four = test::RandomBf16(size_t{4} * geometry.d_qk, rng);
  std::vector<uint16_t> two(four.begin() + geometry.d_qk, four.begin() + 2 * geometry.d_qk);
  two.insert(two.end(), four.begin() + 3 * geometry.d_qk, four.end());
  const auto row_bytes = static_cast<uint32_t>(geometry.row_bytes());
  const std::vector<int32_t> chosen = {1, 3, -1};
  const auto attend = [&](const OwnRows& own) {
    Segment segment = {.row_count = kRowCount, .context = &*context};
    segment.own = {&own, 1};
    Answer answer(kRowCount, geometry.d_v);
    const absl::Status status =
        cluster.requester->Attend(attending.Call(segment), answer.View(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return answer.o;
  };
  OwnRows selected = {.rows = {reinterpret_cast<const std::byte*>(four.data()), 4, row_bytes}};
  selected.selection = {chosen.data(), 3, kRowCount};
  const OwnRows whole = {.rows = {reinterpret_cast<const std::byte*>(two.data()), 2, row_bytes}};
  EXPECT_EQ(attend(selected), attend(whole));
  OwnRows bad = selected;
  bad.selection.group_rows = 0;
  Segment segment = {.row_count = kRowCount, .context = &*context};
  segment.own = {&bad, 1};
  Answer answer(kRowCount, geometry.d_v);
  EXPECT_EQ(cluster.requester->Attend(attending.Call(segment), answer.View(), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

// Goal: a choice stays attendable when its holder is gone or has forgotten it.
TEST_F(RowChoiceTest, AReplicaAnswersForAHolderThatIsGone) {
  const TestCorpus corpus = MakeCorpus({40, 50, 60, 70});
  Cluster cluster(fabric.get(), 3, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 1, 0, 1});
  cluster.fleet.Lease("c", corpus, 2, {0, 2});
  const auto context = Open(cluster);
  ASSERT_TRUE(context.ok()) << context.status();
  const Attending attending(&*context, corpus.geometry.d_qk);
  const IndexQuery query(*corpus.geometry.index, 11, false);
  const SelectRowsCall call = Call(*context, query, 20);
  const auto choice = cluster.requester->ChooseRows(call, nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  const std::vector<int32_t> rows = Rows(cluster, call);
  ExpectBits(*cluster.requester, attending, *choice, rows);
  cluster.fleet.StopHolder(0);
  for (int round = 0; round < 3; ++round) ExpectBits(*cluster.requester, attending, *choice, rows);
}

class ForgottenChoiceTest : public RowChoiceTest {
 protected:
  // Holders with room for the candidates of one request.
  ForgottenChoiceTest() {
    cluster_.fleet.candidate_bytes_max = 1;
    for (size_t i = 0; i < 2; ++i) cluster_.fleet.StartHolder(i);
    cluster_.fleet.Load("c", corpus_, {0, 1});
  }
  void SetUp() override {
    auto context = Open(cluster_);
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    const SelectRowsCall call = Call(context_, query_, 20);
    rows_ = Rows(cluster_, call);
    auto choice = cluster_.requester->ChooseRows(call, nullptr);
    ASSERT_TRUE(choice.ok()) << choice.status();
    choice_ = *std::move(choice);
  }
  // Makes the holders forget the choice.
  void ChooseAnother() {
    const IndexQuery other(*corpus_.geometry.index, 15, false);
    ASSERT_TRUE(cluster_.requester->ChooseRows(Call(context_, other, 20), nullptr).ok());
  }
  const TestCorpus corpus_ = MakeCorpus({40, 50});
  const IndexQuery query_{*corpus_.geometry.index, 14, false};
  Cluster cluster_{fabric.get(), 0, LaneShape{}};
  Context context_;
  RowChoice choice_;
  std::vector<int32_t> rows_;
};

TEST_F(ForgottenChoiceTest, IsFoundAgain) {
  const Attending attending(&context_, corpus_.geometry.d_qk);
  ExpectBits(*cluster_.requester, attending, choice_, rows_);
  ChooseAnother();
  ExpectBits(*cluster_.requester, attending, choice_, rows_);
  const uint64_t selects = cluster_.requester->Stats().select_count;
  ChooseAnother();
  const RowChoice copy = choice_;
  ExpectBits(*cluster_.requester, attending, copy, rows_);
  EXPECT_EQ(cluster_.requester->Stats().select_count, selects + 1) << "found again once only";
}

TEST_F(ForgottenChoiceTest, ATicketFindsItAgain) {
  const Attending attending(&context_, corpus_.geometry.d_qk);
  const uint32_t d_v = corpus_.geometry.d_v;
  Answer due(kRowCount, d_v);
  const Segment by_rows = attending.Of(rows_);
  ASSERT_TRUE(cluster_.requester->Attend(attending.Call(by_rows), due.View(), nullptr).ok());
  for (const bool may_wait : {true, false}) {
    auto choice = cluster_.requester->ChooseRows(Call(context_, query_, 20), nullptr);
    ASSERT_TRUE(choice.ok()) << choice.status();
    ChooseAnother();
    const Segment by_choice = attending.Of(*choice);
    const LayerCall call = attending.Call(by_choice);
    Answer got(kRowCount, d_v);
    auto ticket = may_wait ? cluster_.requester->Submit(call, got.View())
                           : cluster_.requester->TrySubmit(call, got.View());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    if (!may_wait) {
      TicketProgress progress = TicketProgress::kInFlight;
      while (progress == TicketProgress::kInFlight) progress = ticket->TryPoll();
      EXPECT_EQ(progress, TicketProgress::kMustWait);
    }
    const absl::Status status = ticket->Wait();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(got.o, due.o);
  }
}

TEST_F(RowChoiceTest, RefusesWhatIsNotItsOwn) {
  const TestCorpus corpus = MakeCorpus({40, 30});
  Cluster cluster(fabric.get(), 1, LaneShape{});
  cluster.fleet.Load("c", corpus, {0, 0});
  auto context = Open(cluster);
  const auto other = Open(cluster);
  ASSERT_TRUE(context.ok() && other.ok());
  const IndexQuery query(*corpus.geometry.index, 13, false);
  const auto choice = cluster.requester->ChooseRows(Call(*context, query, 4), nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  const Attending attending(&*context, corpus.geometry.d_qk);
  Answer answer(kRowCount, corpus.geometry.d_v);
  const auto code = [&](auto change) {
    Segment segment = attending.Of(*choice);
    change(segment);
    return cluster.requester->Attend(attending.Call(segment), answer.View(), nullptr).code();
  };
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](Segment&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](Segment& s) { s.choice.token_begin = 1; }), bad);
  EXPECT_EQ(code([](Segment& s) { s.choice.group_rows = 0; }), bad);
  EXPECT_EQ(code([](Segment& s) { s.choice.group_rows = 1; }), bad) << "more rows than tokens";
  EXPECT_EQ(code([&](Segment& s) { s.context = &*other; }), bad);
  const RowChoice empty;
  EXPECT_EQ(empty.token_count(), 0u);
  EXPECT_EQ(code([&](Segment& s) { s.choice.rows = &empty; }), bad);
  const std::vector<int32_t> rows(kTokenCount);
  EXPECT_EQ(code([&](Segment& s) { s.selection = {rows.data(), 1, kHeads}; }), bad);
  const std::vector<uint32_t> limits(kTokenCount);
  EXPECT_EQ(code([&](Segment& s) { s.row_limits = {limits.data(), kHeads}; }), bad);
  context->Close();
  EXPECT_EQ(cluster.requester->ChooseRows(Call(*context, query, 4), nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ckv
