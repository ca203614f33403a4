// Goal: attend frames are what transport/wire_attend.h says, and nothing malformed gets through.
// Method: one refusal a rule; layouts held against sums made in wider arithmetic.

#include "transport/wire_attend.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "proto/index_query.h"
#include "tests/transport/wire_frame.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AttendFrame;
using test::Slot;
using test::WireGeometry;

TEST(WireAttend, RoundTrips) {
  AttendFrame attend;
  const std::span<std::byte> bytes = attend.Bytes();
  for (size_t i = 0; i < 2 * 5 * 24; ++i) {
    const auto value = static_cast<uint16_t>(i);
    std::memcpy(bytes.data() + attend.layout.rows + 2 * i, &value, 2);
  }
  for (int32_t i = 0; i < 9; ++i) {
    const int32_t index = i - 1;
    std::memcpy(bytes.data() + attend.layout.indices + 4 * static_cast<size_t>(i), &index, 4);
  }
  AttendRequest out;
  ASSERT_TRUE(attend.Decode(out).ok()) << attend.Decode(out);
  ASSERT_EQ(out.segments.size(), 1u);
  EXPECT_EQ(out.segments[0].row_count, 5u);
  EXPECT_EQ(out.segments[0].copy_count, 2u);
  EXPECT_EQ(out.segments[0].piece_end, 2u);
  EXPECT_EQ(out.partial_count, 1u);
  ASSERT_EQ(out.pieces.size(), 2u);
  EXPECT_EQ(out.pieces[0].handle, 70u);
  EXPECT_EQ(out.pieces[0].index_begin, kDense);
  EXPECT_EQ(out.pieces[1].handle, 0xfffffffeu);
  EXPECT_EQ(out.pieces[1].ordinal, 9u);
  EXPECT_EQ(out.pieces[1].k, 3u);
  EXPECT_EQ(out.rows[239], 239);
  ASSERT_EQ(out.indices.size(), 9u);
  EXPECT_EQ(out.indices[0], -1);
  EXPECT_EQ(out.indices[8], 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(out.rows) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(out.indices.data()) % 64, 0u);
  EXPECT_EQ(AttendReplyBytes(out, WireGeometry()), 5u * (16 * 2 + 8));
  const void* storage = out.pieces.data();
  ASSERT_TRUE(attend.Decode(out).ok());
  EXPECT_EQ(out.pieces.data(), storage);  // reused
}

TEST(WireAttend, Refusals) {
  const auto refused = [](auto change) {
    AttendFrame attend;
    change(attend);
    return attend.Code() == StatusCode::kInvalidArgument;
  };
  using A = AttendFrame;
  EXPECT_FALSE(refused([](A&) {}));
  EXPECT_TRUE(refused([](A& a) { a.header.layer = 4; }));
  EXPECT_TRUE(refused([](A& a) { a.header.row_count = 6; }));
  EXPECT_TRUE(refused([](A& a) { a.header.segment_count = 2; }));
  EXPECT_TRUE(refused([](A& a) { a.header.piece_count = 3; }));
  EXPECT_TRUE(refused([](A& a) { a.header.index_count = 10; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.row_count = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.row_count = 6; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.row_count = 0xffffffff; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.piece_count = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.piece_count = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.piece_count = 0xffffffff; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.partial_count = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.partial_count = 2; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.partial_count = 3; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.copy_count = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.copy_count = 3; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.copy_count = kCopyCountMax + 1; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.token = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[0].more = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].copy = 2; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].copy = 0xffffffff; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[0].k = 1; }));  // dense has no k
  EXPECT_TRUE(refused([](A& a) { a.pieces[0].group_rows = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].group_rows = 0; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].group_rows = 6; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].group_rows = 1; }));  // 5 groups of 3 > 9
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].index_begin = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].index_begin = kDense - 1; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].k = 0xffffffff; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].k = 0x55555556; }));  // x 3 wraps 32 bits
  // The order of the tree.
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].ordinal = 4; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].ordinal = 3; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[0].partial = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.pieces[1].partial = 1; }));
  EXPECT_TRUE(refused([](A& a) { a.segment.partial_count = 2, a.pieces[1].partial = 2; }));
  EXPECT_FALSE(refused([](A& a) { a.segment.partial_count = 2, a.pieces[1].partial = 1; }));
  EXPECT_FALSE(refused([](A& a) {
    a.segment.partial_count = 2;
    a.pieces[1].partial = 1;
    a.pieces[1].ordinal = 0;  // of another tree
  }));
  // Inside: nothing selected at all, and a whole frame as one group.
  EXPECT_FALSE(refused([](A& a) { a.pieces[1].k = 0; }));
  EXPECT_FALSE(refused([](A& a) { a.pieces[1].k = 9, a.pieces[1].group_rows = 5; }));
  AttendRequest out;
  RequestHeader probe;
  Slot slot(88);
  EXPECT_EQ(DecodeAttendRequest(probe, slot.bytes(), WireGeometry(), out).code(),
            StatusCode::kInvalidArgument);
}

TEST(WireAttend, AChoiceNamesRunsOfChunks) {
  const auto code = [](auto change) {
    AttendFrame attend;
    attend.segment.candidates = 77;
    attend.segment.chosen_count = 12;
    for (PieceEntry& piece : attend.pieces) {
      piece.index_begin = kChosen;
      piece.k = 0;
      piece.group_rows = 1;
      piece.more = 1;
    }
    attend.pieces[1].handle = 90;
    change(attend);
    return attend.Code();
  };
  using A = AttendFrame;
  const auto bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](A&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](A& a) { a.pieces[0].more = 4; }), StatusCode::kOk) << "ordinals 4 to 8, then 9";
  EXPECT_EQ(code([](A& a) { a.pieces[0].more = 5; }), bad) << "ordinal 9 twice";
  EXPECT_EQ(code([](A& a) { a.pieces[1].more = kChosenChunkCountMax - 1; }), StatusCode::kOk);
  EXPECT_EQ(code([](A& a) { a.pieces[1].more = kChosenChunkCountMax; }), bad) << "both together";
  EXPECT_EQ(code([](A& a) { a.pieces[1].handle = 0xffffffff; }), bad) << "handles wrap";
  EXPECT_EQ(code([](A& a) { a.pieces[1].ordinal = 0xffffffff; }), bad) << "ordinals wrap";
  EXPECT_EQ(code([](A& a) { a.pieces[0].index_begin = kDense; }), bad);
  EXPECT_EQ(code([](A& a) { a.pieces[0].k = 1; }), bad);
  EXPECT_EQ(code([](A& a) { a.segment.chosen_count = kIndexTopMax + 1; }), bad);
}

TEST(WireAttend, ReservedFieldsAreForLaterBuilds) {
  AttendFrame blocks;
  blocks.segment.index_rows = 16;
  EXPECT_EQ(blocks.Code(), StatusCode::kUnimplemented);
  AttendFrame limits;
  limits.segment.limit_begin = 0;
  EXPECT_EQ(limits.Code(), StatusCode::kUnimplemented);
}

// Two segments of different counts: what is of which.
TEST(WireAttend, SegmentsFollowEachOther) {
  const SegmentEntry segments[] = {
      {.row_count = 2, .piece_count = 1, .partial_count = 1, .copy_count = 1},
      {.row_count = 3, .piece_count = 3, .partial_count = 2, .copy_count = 2}};
  PieceEntry pieces[4];
  for (uint32_t i = 0; i < 4; ++i) pieces[i].ordinal = i;
  pieces[2].copy = 1;
  pieces[3].partial = 1;
  RequestHeader header = test::AttendHeader();
  header.segment_count = 2;
  header.piece_count = 4;
  header.index_count = 0;
  const AttendLayout layout = LayOutAttend(2, 4, 2 + 2 * 3, 0, 24);
  header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(header));
  Slot slot(layout.total_bytes);
  EncodeHeader(header, slot.bytes());
  std::memcpy(slot.bytes().data() + layout.segments, segments, sizeof(segments));
  std::memcpy(slot.bytes().data() + layout.pieces, pieces, sizeof(pieces));
  const auto decoded = DecodeRequestHeader(slot.bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  AttendRequest out;
  const absl::Status status = DecodeAttendRequest(*decoded, slot.bytes(), WireGeometry(), out);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(out.partial_count, 3u);
  EXPECT_EQ(out.segments[1].piece_begin, 1u);
  EXPECT_EQ(out.segments[1].piece_end, 4u);
  EXPECT_EQ(out.segments[1].stored_row_begin, 2u);
  EXPECT_EQ(AttendReplyBytes(out, WireGeometry()), 2u * 40 + 2 * 3 * 40);
}

// Layouts never wrap, and agree with the sum made in 128 bits wherever that fits.
TEST(WireAttend, LayoutsSaturate) {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 20'000; ++i) {
    const auto draw = [&] { return static_cast<uint32_t>(rng() >> (32 + rng() % 32)); };
    const uint32_t segments = draw(), pieces = draw(), rows = draw(), indices = draw(), d = draw();
    const uint64_t stored = uint64_t{rows} * (1 + rng() % 16);
    using Wide = unsigned __int128;
    const auto up = [](Wide v) { return (v + 63) / 64 * 64; };
    const Wide rows_at = up(88 + Wide{segments} * 32 + Wide{pieces} * 32);
    const Wide total = up(rows_at + Wide{stored} * d * 2) + Wide{indices} * 4;
    const AttendLayout layout = LayOutAttend(segments, pieces, stored, indices, d);
    if (total < std::numeric_limits<size_t>::max() / 2) {
      ASSERT_EQ(Wide{layout.total_bytes}, total) << "draw " << i;
    } else {
      ASSERT_GT(layout.total_bytes, std::numeric_limits<size_t>::max() / 4) << "draw " << i;
    }
    const Wide m = (Wide{rows} * d * 2 + 3) / 4 * 4;
    const PartialLayout partial = LayOutPartial(rows, d, false);
    if (m < std::numeric_limits<size_t>::max() / 2) {
      ASSERT_EQ(Wide{partial.total_bytes}, m + Wide{rows} * 8) << "draw " << i;
    }
  }
  EXPECT_EQ(LayOutPartial(1, 512, false).total_bytes, 1032u);
  EXPECT_EQ(LayOutPartial(1, 512, true).total_bytes, 2056u);
  EXPECT_EQ(LayOutPartial(1, 3, false).m, 8u);  // 6 bytes of bf16, padded to 4
  EXPECT_EQ(LayOutAttend(1, 1, 16, 0, 576).rows, 192u);
  EXPECT_EQ(LayOutAttend(1, 1, 16, 0, 576).total_bytes, 192u + 16 * 1152);
}

}  // namespace
}  // namespace ckv
