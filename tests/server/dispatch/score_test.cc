// Goal: a holder scores index keys in place, keeps the best rows, and attends a choice of them as
// it attends a selection of the same rows.
// Method: bare frames over each fabric. Scores are held against IndexSearch over all keys.

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "attention/score/index_scores.h"
#include "gtest/gtest.h"
#include "server/dispatch/score_work.h"
#include "tests/server/holder/holder_fixture.h"
#include "tests/support/random_rows.h"
#include "tests/support/temp_folder.h"
#include "transport/wire_score.h"

namespace ckv {
namespace {

using test::RawAttend;
using test::RawClient;
using test::RawReply;

constexpr uint32_t kQueryTokens = 3;
constexpr uint32_t kKept = 40;
constexpr uint32_t kScoreLayer = 1;

class ScoreTest : public test::HolderTest {
 protected:
  ScoreTest() {
    corpus_ = test::MakeTestCorpus(test::WithIndex(test::TestGeometry()), {5, 64, 0, 130, 71}, 1);
    const IndexShape& shape = *corpus_.geometry.index;
    q_ = test::RandomBf16(size_t{kQueryTokens} * shape.heads * shape.dim, rng_);
    weights_.resize(size_t{kQueryTokens} * shape.heads);
    std::uniform_real_distribution<float> weight(-1, 1);
    for (float& w : weights_) w = weight(rng_);
    for (const test::TestChunk& chunk : corpus_.chunks) {
      const auto keys =
          std::as_bytes(std::span(chunk.layers[corpus_.geometry.index_tensor(kScoreLayer)]));
      keys_.insert(keys_.end(), keys.begin(), keys.end());
    }
  }

  // The best rows of a token, as one that has all keys finds them.
  std::vector<ScoredRow> Due(uint32_t token) {
    const IndexShape& shape = *corpus_.geometry.index;
    WorkerPool pool(1);
    IndexSearch search(&pool);
    const IndexKeyRun run = {
        .keys = {.data = keys_.data(),
                 .count = static_cast<uint32_t>(keys_.size() / shape.key_bytes()),
                 .stride_bytes = shape.key_bytes()}};
    search.Run(shape,
               {IndexQueryDtype::kBf16, reinterpret_cast<const std::byte*>(q_.data()),
                weights_.data(), kQueryTokens},
               {&run, 1}, kKept);
    return {search.best(token).begin(), search.best(token).end()};
  }

  std::vector<std::byte> Body(const ScoreEntry& entry, const std::vector<ChunkRun>& runs) {
    const ScoreLayout layout = LayOutScore(static_cast<uint32_t>(runs.size()), kQueryTokens,
                                           *corpus_.geometry.index, entry.dtype);
    std::vector<std::byte> frame(layout.total_bytes);
    std::memcpy(frame.data() + sizeof(RequestHeader), &entry, sizeof(entry));
    std::memcpy(frame.data() + layout.runs, runs.data(), runs.size() * sizeof(ChunkRun));
    std::memcpy(frame.data() + layout.q, q_.data(), q_.size() * 2);
    std::memcpy(frame.data() + layout.weights, weights_.data(), weights_.size() * 4);
    return {frame.begin() + sizeof(RequestHeader), frame.end()};
  }
  absl::StatusOr<RawReply> Score(RawClient& client, const std::vector<ChunkRun>& runs,
                                 ScoreEntry entry = {.candidates = 9,
                                                     .k = kKept,
                                                     .score_count = 10,
                                                     .dtype = IndexQueryDtype::kBf16}) {
    RequestHeader header = client.Header();
    header.kind = WireKind::kScore;
    header.layer = kScoreLayer;
    header.row_count = kQueryTokens;
    header.piece_count = static_cast<uint32_t>(runs.size());
    return client.CallBytes(header, Body(entry, runs));
  }
  absl::StatusOr<RawReply> Read(RawClient& client, const CandidatesEntry& entry) {
    RequestHeader header = client.Header();
    header.kind = WireKind::kCandidates;
    return client.CallBytes(header, std::as_bytes(std::span(&entry, 1)));
  }

  // Handles of a session's first chunks follow one another.
  std::vector<ChunkRun> AllRuns(RawClient& client) {
    const std::vector<uint32_t> handles = client.Resolve(corpus_);
    return {{handles[0], 3}, {handles[3], 2}};
  }

  // Posts an attend of the first `count` candidates of a token, or of `rows`, over all chunks.
  absl::StatusOr<RawReply> Attend(RawClient& client, uint32_t token, uint32_t count) {
    std::vector<std::byte> frame(1 << 20);
    const std::vector<uint32_t> handles = client.Resolve(corpus_);
    RawAttend attend = Rows(handles);
    const uint32_t bytes =
        test::EncodeAttend(attend, corpus_.geometry.d_qk, client.Header(), frame);
    const AttendLayout layout = LayOutAttend(1, static_cast<uint32_t>(handles.size()),
                                             attend.row_count, 0, corpus_.geometry.d_qk);
    SegmentEntry segment;
    std::memcpy(&segment, frame.data() + layout.segments, sizeof(segment));
    segment.candidates = 9;
    segment.token = static_cast<uint16_t>(token);
    segment.chosen_count = static_cast<uint16_t>(count);
    std::memcpy(frame.data() + layout.segments, &segment, sizeof(segment));
    for (size_t i = 0; i < handles.size(); ++i) {
      PieceEntry piece;
      std::byte* const at = frame.data() + layout.pieces + i * sizeof(piece);
      std::memcpy(&piece, at, sizeof(piece));
      piece.index_begin = kChosen;
      std::memcpy(at, &piece, sizeof(piece));
    }
    client.PostBytes(std::span(frame).first(bytes));
    return client.Await();
  }
  // The same query rows each time.
  RawAttend Rows(const std::vector<uint32_t>& handles) {
    std::mt19937 rng(5);
    RawAttend attend = {.layer = kScoreLayer, .row_count = 4, .flags = kFlagPartialF32};
    attend.rows = test::RandomBf16(size_t{4} * corpus_.geometry.d_qk, rng);
    for (const uint32_t handle : handles) attend.pieces.push_back({.handle = handle});
    return attend;
  }
  // The answer over the same rows, which the request names itself.
  absl::StatusOr<RawReply> AttendByIndex(RawClient& client, std::vector<ScoredRow> rows) {
    RawAttend attend = Rows({});
    uint32_t begin = 0;
    const std::vector<uint32_t> handles = client.Resolve(corpus_);
    std::sort(rows.begin(), rows.end(),
              [](const ScoredRow& a, const ScoredRow& b) { return a.row < b.row; });
    for (size_t c = 0; c < handles.size(); ++c) {
      const uint32_t end = begin + corpus_.chunks[c].info.token_count();
      std::vector<int32_t> indices;
      for (const ScoredRow& row : rows) {
        if (row.row >= begin && row.row < end)
          indices.push_back(static_cast<int32_t>(row.row - begin));
      }
      begin = end;
      const auto k = static_cast<uint32_t>(indices.size());
      attend.pieces.push_back(
          {.handle = handles[c], .indices = indices, .k = k, .group_rows = attend.row_count});
    }
    return client.Call(attend);
  }

  void ExpectScores(const RawReply& reply, uint32_t score_count) {
    ASSERT_TRUE(reply.status().ok()) << reply.status();
    ASSERT_EQ(reply.body.size(), ScoreReplyBytes(kQueryTokens, score_count));
    for (uint32_t t = 0; t < kQueryTokens; ++t) {
      const std::byte* const at = reply.body.data() + t * (1 + score_count) * 4;
      uint32_t count = 0;
      std::memcpy(&count, at, 4);
      EXPECT_EQ(count, kKept);
      const std::vector<ScoredRow> due = Due(t);
      for (uint32_t i = 0; i < score_count; ++i) {
        uint32_t score_bits = 0;
        std::memcpy(&score_bits, at + 4 + 4 * i, 4);
        EXPECT_EQ(score_bits, std::bit_cast<uint32_t>(due[i].score)) << t << " " << i;
      }
    }
  }

  std::vector<uint16_t> q_;
  std::vector<float> weights_;
  std::vector<std::byte> keys_;
};

INSTANTIATE_TEST_SUITE_P(Fabrics, ScoreTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

TEST_P(ScoreTest, ScoresAreThoseOfAllKeysAndAChoiceIsASelection) {
  Put();
  const auto client = Open();
  const auto reply = Score(*client, AllRuns(*client));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ExpectScores(*reply, 10);
  EXPECT_GT(reply->header.compute_ns, 0u);
  for (uint32_t t = 0; t < kQueryTokens; ++t) {
    std::vector<ScoredRow> due = Due(t);
    for (const auto part : {CandidatesPart::kScores, CandidatesPart::kRows}) {
      const auto read =
          Read(*client, {.candidates = 9, .token = t, .begin = 3, .count = 37, .part = part});
      ASSERT_TRUE(read.ok() && read->status().ok()) << read->status();
      for (uint32_t i = 0; i < 37; ++i) {
        const void* const want = part == CandidatesPart::kRows
                                     ? static_cast<const void*>(&due[3 + i].row)
                                     : &due[3 + i].score;
        EXPECT_EQ(std::memcmp(read->body.data() + 4 * i, want, 4), 0);
      }
    }
    for (const uint32_t count : {0u, 1u, 17u, kKept}) {
      const auto chosen = Attend(*client, t, count);
      due.resize(count);
      const auto selected = AttendByIndex(*client, due);
      ASSERT_TRUE(chosen.ok() && selected.ok());
      ASSERT_TRUE(chosen->status().ok()) << chosen->status();
      EXPECT_TRUE(chosen->Partials(corpus_.geometry.d_v) ==
                  selected->Partials(corpus_.geometry.d_v));
      due = Due(t);
    }
  }
  EXPECT_EQ(holder_->stats().score_count, 1u);
  EXPECT_EQ(holder_->stats().score_key_count, kQueryTokens * 270u);
  EXPECT_TRUE(NothingPinned());
}

TEST_P(ScoreTest, RefusesWhatIsNotKeptOrNotThere) {
  Put();
  const auto client = Open();
  const auto other = Open();
  const std::vector<ChunkRun> runs = AllRuns(*client);
  AllRuns(*other);
  const auto code = [](const absl::StatusOr<RawReply>& reply) {
    return reply.ok() ? reply->status().code() : absl::StatusCode::kUnknown;
  };
  EXPECT_EQ(code(Attend(*client, 0, 1)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Read(*client, {.candidates = 9, .count = 1})), absl::StatusCode::kOutOfRange);
  ASSERT_EQ(code(Score(*client, runs)), absl::StatusCode::kOk);
  EXPECT_EQ(code(Attend(*client, 0, 1)), absl::StatusCode::kOk);
  EXPECT_EQ(code(Attend(*other, 0, 1)), absl::StatusCode::kOk) << "of the same tenant";
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(Attend(*client, kQueryTokens, 1)), bad);
  EXPECT_EQ(code(Attend(*client, 0, kKept + 1)), bad);
  EXPECT_EQ(code(Read(*client, {.candidates = 9, .begin = 1, .count = kKept})), bad);
  EXPECT_EQ(code(Score(*client, {runs[0], runs[0]})), bad) << "a chunk twice";
  EXPECT_EQ(code(Score(*client, {{runs[0].handle + 1000, 1}})), absl::StatusCode::kNotFound);
  const ScoreEntry one = {.candidates = 9, .k = 1, .dtype = IndexQueryDtype::kBf16};
  EXPECT_EQ(code(Score(*client, {{runs[0].handle, 1}}, one)), absl::StatusCode::kOk);
  EXPECT_EQ(code(Attend(*client, 0, 1)), absl::StatusCode::kOutOfRange)
      << "these candidates are of one chunk";
  EXPECT_TRUE(NothingPinned());
}

// Goal: keys on disk are read for the request alone, and give the same scores.
TEST_P(ScoreTest, KeysOnDiskAreRead) {
  holder_.reset();
  options_.store_path = test::TempPath("score" + std::to_string(static_cast<int>(GetParam())));
  StartHolder();
  Put();
  holder_.reset();
  StartHolder();
  const auto client = Open();
  const std::vector<ChunkRun> runs = AllRuns(*client);
  const auto reply = Score(*client, runs);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ExpectScores(*reply, 10);
  const auto chosen = Attend(*client, 1, 20);
  std::vector<ScoredRow> due = Due(1);
  due.resize(20);
  const auto selected = AttendByIndex(*client, due);
  ASSERT_TRUE(chosen.ok() && selected.ok());
  ASSERT_TRUE(chosen->status().ok()) << chosen->status();
  EXPECT_TRUE(chosen->Partials(corpus_.geometry.d_v) == selected->Partials(corpus_.geometry.d_v));
  EXPECT_GT(holder_->stats().cold_count, 0u);
}

}  // namespace
}  // namespace ckv
