// Goal: score frames are what transport/wire_score.h says, and nothing malformed gets through.
// Method: one refusal a rule.

#include "transport/wire_score.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/transport/wire_frame.h"

namespace ckv {
namespace {

using test::Slot;

Geometry IndexGeometry() {
  Geometry geometry = test::WireGeometry();
  geometry.index = IndexShape{.dim = 16, .heads = 3, .d_rope = 8, .scale = 1};
  return geometry;
}

// A valid request of 2 tokens over 2 runs of 9 chunks together.
struct ScoreFrame {
  ScoreFrame() {
    header.kind = WireKind::kScore;
    header.row_count = 2;
    header.piece_count = 2;
    header.layer = 3;
    entry = {.candidates = 7, .k = 100, .score_count = 40};
    runs[0] = {70, 8};
    runs[1] = {0xfffffffe, 1};
  }
  absl::Status Decode(ScoreRequest& out, int more_bytes = 0) {
    const ScoreLayout layout = LayOutScore(2, 2, *geometry.index, entry.dtype);
    Slot slot(layout.total_bytes + static_cast<size_t>(more_bytes));
    const std::span<std::byte> bytes = slot.bytes();
    header.body_bytes = static_cast<uint32_t>(bytes.size() - sizeof(header));
    EncodeHeader(header, bytes);
    std::memcpy(bytes.data() + sizeof(header), &entry, sizeof(entry));
    std::memcpy(bytes.data() + layout.runs, runs, sizeof(runs));
    const float weight = 0.5f;
    std::memcpy(bytes.data() + layout.weights + 5 * 4, &weight, 4);
    bytes[layout.q + 17] = std::byte{9};
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(bytes);
    if (!decoded.ok()) return decoded.status();
    absl::Status status = DecodeScoreRequest(*decoded, bytes, of, out);
    if (status.ok()) {
      EXPECT_EQ(out.q[17], std::byte{9});
      EXPECT_EQ(out.weights[5], 0.5f);
    }
    return status;
  }

  const Geometry geometry = IndexGeometry();
  Geometry of = geometry;  // of the session
  RequestHeader header;
  ScoreEntry entry;
  ChunkRun runs[2];
};

TEST(WireScore, RoundTrips) {
  for (const auto dtype : {IndexQueryDtype::kBf16, IndexQueryDtype::kFp8}) {
    ScoreFrame frame;
    frame.entry.dtype = dtype;
    ScoreRequest out;
    ASSERT_TRUE(frame.Decode(out).ok()) << frame.Decode(out);
    EXPECT_EQ(out.token_count, 2u);
    EXPECT_EQ(out.entry.k, 100u);
    EXPECT_EQ(out.chunk_count, 9u);
    EXPECT_EQ(out.runs[1].handle, 0xfffffffeu);
  }
  // The query of one token of DeepSeek V3.2, with one run, and the reply with 512 scores.
  const IndexShape v32 = {.dim = 128, .heads = 64};
  EXPECT_LE(LayOutScore(1, 1, v32, IndexQueryDtype::kFp8).total_bytes + sizeof(ReplyHeader) +
                ScoreReplyBytes(1, 512),
            12u << 10);
}

TEST(WireScore, Refusals) {
  const auto refused = [](auto change) {
    ScoreFrame frame;
    change(frame);
    ScoreRequest out;
    return frame.Decode(out).code() == absl::StatusCode::kInvalidArgument;
  };
  using F = ScoreFrame;
  EXPECT_TRUE(refused([](F& f) { f.header.flags = kFlagBulk; }));
  EXPECT_TRUE(refused([](F& f) { f.header.segment_count = 1; }));
  EXPECT_TRUE(refused([](F& f) { f.header.index_count = 1; }));
  EXPECT_TRUE(refused([](F& f) { f.header.row_count = 0; }));
  EXPECT_TRUE(refused([](F& f) { f.header.row_count = 3; }));
  EXPECT_TRUE(refused([](F& f) { f.header.row_count = kScoreTokenCountMax + 1; }));
  EXPECT_TRUE(refused([](F& f) { f.header.piece_count = 0; }));
  EXPECT_TRUE(refused([](F& f) { f.header.piece_count = ~0u; }));
  EXPECT_TRUE(refused([](F& f) { f.header.layer = 4; }));
  EXPECT_TRUE(refused([](F& f) { f.of = test::WireGeometry(); })) << "a model without an index";
  EXPECT_TRUE(refused([](F& f) { f.entry.candidates = 0; }));
  EXPECT_TRUE(refused([](F& f) { f.entry.k = 0; }));
  EXPECT_TRUE(refused([](F& f) { f.entry.k = kIndexTopMax + 1; }));
  EXPECT_TRUE(refused([](F& f) { f.entry.score_count = 101; }));
  EXPECT_TRUE(refused([](F& f) { f.entry.dtype = IndexQueryDtype{3}; }));
  EXPECT_TRUE(refused([](F& f) { f.entry.reserved[10] = 1; }));
  EXPECT_TRUE(refused([](F& f) { f.runs[0].count = 0; }));
  EXPECT_TRUE(refused([](F& f) { f.runs[0].count = kScoreChunkCountMax; }));
  EXPECT_TRUE(refused([](F& f) { f.runs[1].count = 2; })) << "handles end at 2^32";
  ScoreRequest out;
  EXPECT_FALSE(ScoreFrame().Decode(out, 1).ok());
}

TEST(WireScore, RequestsForCandidates) {
  const auto code = [](auto change) {
    RequestHeader header;
    header.kind = WireKind::kCandidates;
    CandidatesEntry entry = {.candidates = 7, .token = 1, .begin = 5, .count = 10};
    change(header, entry);
    Slot slot(sizeof(header) + sizeof(entry));
    header.body_bytes = sizeof(entry);
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + sizeof(header), &entry, sizeof(entry));
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(slot.bytes());
    if (!decoded.ok()) return decoded.status().code();
    const auto out = DecodeCandidatesRequest(*decoded, slot.bytes());
    EXPECT_TRUE(!out.ok() || out->begin == 5);
    return out.status().code();
  };
  using H = RequestHeader;
  using E = CandidatesEntry;
  EXPECT_EQ(code([](H&, E&) {}), absl::StatusCode::kOk);
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](H& h, E&) { h.layer = 1; }), bad);
  EXPECT_EQ(code([](H& h, E&) { h.row_count = 1; }), bad);
  EXPECT_EQ(code([](H&, E& e) { e.count = 0; }), bad);
  EXPECT_EQ(code([](H&, E& e) { e.count = kIndexTopMax + 1; }), bad);
  EXPECT_EQ(code([](H&, E& e) { e.begin = ~0u; }), bad);
  EXPECT_EQ(code([](H&, E& e) { e.part = CandidatesPart{0}; }), bad);
  EXPECT_EQ(code([](H&, E& e) { e.reserved = 1; }), bad);
}

}  // namespace
}  // namespace ckv
