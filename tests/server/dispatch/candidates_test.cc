// Goal: candidates are kept within their limit, fairly, and a choice among them selects exactly the
// chosen rows.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/score/candidate_table.h"
#include "server/score/chosen_rows.h"

namespace ckv {
namespace {

ChunkLocator Slot(uint32_t slot) { return {.slot = slot, .generation = 3}; }

std::shared_ptr<const Candidates> OfRows(const std::vector<ScoredRow>& best) {
  auto made = std::make_shared<Candidates>(
      "t", std::vector<Candidates::Chunk>{{Slot(20), 10}, {Slot(21), 5}, {Slot(7), 4}});
  made->Add(best);
  return made;
}

TEST(Candidates, CountRowsThroughTheirChunks) {
  const auto made = OfRows({{1, 3}});
  EXPECT_EQ(made->RowsOf(Slot(20))->begin, 0u);
  EXPECT_EQ(made->RowsOf(Slot(21))->begin, 10u);
  EXPECT_EQ(made->RowsOf(Slot(21))->end, 15u);
  EXPECT_EQ(made->RowsOf(Slot(7))->begin, 15u);
  EXPECT_EQ(made->RowsOf(Slot(7))->end, 19u);
  for (const uint32_t handle : {0u, 6u, 8u, 19u, 22u}) EXPECT_FALSE(made->RowsOf(Slot(handle)));
  EXPECT_FALSE(made->RowsOf({.slot = 20, .generation = 4})) << "it was dropped and put again";
  EXPECT_EQ(made->best(0).size(), 1u);
}

TEST(CandidateTable, DropsTheOldestOfTheLargestSession) {
  const auto made = OfRows({{1, 3}});
  CandidateTable table(4 * made->bytes());
  table.Insert(1, 100, made);
  for (uint32_t number = 1; number < 20; ++number) table.Insert(2, number, made);
  EXPECT_EQ(table.bytes(), 4 * made->bytes());
  EXPECT_NE(table.Find("t", 100), nullptr) << "another session cannot displace it";
  EXPECT_EQ(table.Find("t", 16), nullptr);
  for (uint32_t number = 17; number < 20; ++number) EXPECT_NE(table.Find("t", number), nullptr);
  EXPECT_EQ(table.Find("other", 17), nullptr);
  table.Insert(2, 19, made);
  EXPECT_EQ(table.bytes(), 4 * made->bytes()) << "it replaced that of its number";
  EXPECT_NE(table.Find("t", 17), nullptr);
}

AttendRequest ChosenAttend(uint32_t chosen_count) {
  AttendRequest request;
  request.segments = {{.row_count = 6,
                       .copy_count = 1,
                       .piece_begin = 0,
                       .piece_end = 3,
                       .partial_count = 2,
                       .chosen_count = chosen_count,
                       .candidates = 4},
                      {.row_count = 2, .copy_count = 1, .piece_begin = 3, .piece_end = 4}};
  request.pieces = {{.handle = 20, .ordinal = 1, .index_begin = kChosen},
                    {.handle = 21, .ordinal = 2, .index_begin = kChosen},
                    {.handle = 7, .ordinal = 9, .partial = 1, .index_begin = kChosen},
                    {.handle = 9, .ordinal = 5}};
  return request;
}

// A session whose handles are slots.
std::unique_ptr<Session> MakeSession(const std::string& tenant = "t") {
  SessionOffer offer;
  offer.tenant = tenant;
  auto session = std::make_unique<Session>(SessionId{1}, 1, offer, 1, Epoch{1});
  for (uint8_t handle = 1; handle < 30; ++handle) {
    ChunkId id;
    id.bytes[0] = handle;
    EXPECT_EQ(session->handles.Assign(id, Slot(handle))->value, handle);
  }
  return session;
}

TEST(ChosenRows, AreThoseOfTheirChunksAndAscend) {
  const auto session = MakeSession();
  CandidateTable table;
  table.Insert(1, 4, OfRows({{9, 14}, {8, 10}, {7, 18}, {6, 2}}));
  ChosenRows chosen;
  for (uint32_t count = 0; count <= 4; ++count) {
    AttendRequest request = ChosenAttend(count);
    ASSERT_TRUE(chosen.Find(table, *session, request).ok());
    EXPECT_EQ(request.segments[1].piece_end, request.pieces.size());
    EXPECT_EQ(request.pieces.back().handle, 9u);
    EXPECT_EQ(request.pieces.back().index_begin, kDense);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < request.segments[0].piece_end; ++i) {
      const PieceEntry& piece = request.pieces[i];
      EXPECT_EQ(piece.group_rows, 6u);
      rows += piece.k;
      for (uint32_t r = 1; r < piece.k; ++r) {
        EXPECT_LT(request.chosen[piece.index_begin + r - 1], request.chosen[piece.index_begin + r]);
      }
    }
    EXPECT_EQ(rows, count);
    // The second partial remains, even without rows.
    EXPECT_EQ(request.pieces[request.segments[0].piece_end - 1].partial, 1u);
    EXPECT_EQ(request.segments[0].piece_end, count == 4 ? 3u : 2u);
  }
  AttendRequest request = ChosenAttend(2);
  ASSERT_TRUE(chosen.Find(table, *session, request).ok());
  EXPECT_EQ(request.pieces[0].handle, 21u) << "the chunk without rows is gone";
  EXPECT_EQ(request.chosen[0], 0);
  EXPECT_EQ(request.chosen[1], 4);
}

TEST(ChosenRows, ARunIsItsChunks) {
  const auto session = MakeSession();
  CandidateTable table;
  table.Insert(1, 4, OfRows({{9, 14}, {8, 10}, {7, 18}, {6, 2}}));
  ChosenRows chosen, chosen_of_run;
  for (uint32_t count = 0; count <= 4; ++count) {
    AttendRequest request = ChosenAttend(count), run = request;
    run.pieces.erase(run.pieces.begin() + 1);
    run.pieces[0].more = 1;
    run.segments[0].piece_end = 2;
    run.segments[1].piece_begin = 2;
    run.segments[1].piece_end = 3;
    ASSERT_TRUE(chosen.Find(table, *session, request).ok());
    ASSERT_TRUE(chosen_of_run.Find(table, *session, run).ok());
    ASSERT_EQ(run.pieces.size(), request.pieces.size());
    for (size_t i = 0; i < run.pieces.size(); ++i)
      EXPECT_EQ(std::memcmp(&run.pieces[i], &request.pieces[i], sizeof(PieceEntry)), 0) << i;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(run.segments[i].piece_begin, request.segments[i].piece_begin);
      EXPECT_EQ(run.segments[i].piece_end, request.segments[i].piece_end);
    }
    EXPECT_TRUE(std::equal(run.chosen.begin(), run.chosen.end(), request.chosen.begin(),
                           request.chosen.end()));
  }
}

TEST(ChosenRows, RefusesRowsInTooManyChunks) {
  const auto session = MakeSession();
  CandidateTable table;
  table.Insert(1, 4, OfRows({{9, 14}}));
  ChosenRows chosen;
  AttendRequest request = ChosenAttend(1);
  request.segments.resize(kPieceCountMax / 2, request.segments[0]);  // each has two partials
  request.segments[1] = request.segments[0];
  ASSERT_TRUE(chosen.Find(table, *session, request).ok());
  EXPECT_EQ(request.pieces.size(), kPieceCountMax);
  AttendRequest more = ChosenAttend(1);
  more.segments.resize(kPieceCountMax / 2 + 1, more.segments[0]);
  more.segments[1] = more.segments[0];
  EXPECT_EQ(chosen.Find(table, *session, more).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChosenRows, RefusesWhatTheCandidatesDoNotHave) {
  CandidateTable table;
  table.Insert(1, 4, OfRows({{9, 14}, {8, 10}}));
  ChosenRows chosen;
  const auto session = MakeSession(), other = MakeSession("other");
  const auto code = [&](const std::unique_ptr<Session>& of, auto change) {
    AttendRequest request = ChosenAttend(1);
    change(request);
    return chosen.Find(table, *of, request).code();
  };
  using R = AttendRequest;
  EXPECT_EQ(code(other, [](R&) {}), absl::StatusCode::kOutOfRange) << "another tenant";
  EXPECT_EQ(code(session, [](R& r) { r.segments[0].candidates = 5; }),
            absl::StatusCode::kOutOfRange);
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(session, [](R& r) { r.segments[0].token = 1; }), bad);
  EXPECT_EQ(code(session, [](R& r) { r.segments[0].chosen_count = 3; }), bad);
  EXPECT_EQ(code(session, [](R& r) { r.pieces[1].handle = 8; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(session, [](R& r) { r.pieces[1].handle = 99; }), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(session, [](R& r) { r.pieces[1].more = 1; }), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(session, [](R& r) { r.pieces[1].more = 1000; }), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace ckv
