// Goal: frames are what transport/wire.h says, byte by byte, and nothing malformed gets through.
// Method: golden bytes of both headers; every single-bit flip of a valid header; one refusal a
// rule; layouts held against sums made in wider arithmetic.

#include "transport/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/wire_frame.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AttendHeader;
using test::Slot;

Geometry SmallGeometry() {
  Geometry geometry;
  geometry.model = "test";
  geometry.layers = 4;
  geometry.d_qk = 24;
  geometry.d_v = 16;
  geometry.d_rope = 8;
  geometry.softmax_scale = 1;
  return geometry;
}

// A valid attend request: a dense piece, and one with 3 groups of k 3 from index 0.
struct Attend {
  explicit Attend(RequestHeader h = AttendHeader())
      : header(h),
        layout(LayOutAttend(h.piece_count, h.copy_count, h.row_count, h.index_count, 24)),
        slot(layout.total_bytes) {
    header.body_bytes = static_cast<uint32_t>(layout.total_bytes - 64);
    pieces[0].handle = 70;
    pieces[1].handle = 0xfffffffe;
    pieces[1].copy = 1;
    pieces[1].index_begin = 0;
    pieces[1].k = 3;
    pieces[1].group_rows = 2;
  }
  std::span<std::byte> Bytes() {
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + layout.pieces, pieces, sizeof(pieces));
    return slot.bytes();
  }
  absl::Status Decode(AttendRequest& out) {
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(Bytes());
    if (!decoded.ok()) return decoded.status();
    return DecodeAttendRequest(*decoded, slot.bytes(), SmallGeometry(), out);
  }
  StatusCode Code() {
    AttendRequest out;
    return Decode(out).code();
  }

  RequestHeader header;
  AttendLayout layout;
  Slot slot;
  PieceEntry pieces[2];
};

std::vector<uint8_t> Copy(std::span<const std::byte> bytes) {
  std::vector<uint8_t> copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

TEST(Wire, GoldenRequestHeader) {
  RequestHeader header;
  header.kind = WireKind::kAttend;
  header.flags = kFlagPartialF32 | kFlagPerPiece;
  header.request_id = 0x0102030405060708;
  header.epoch = 0x1112131415161718;
  header.session = 0x2122232425262728;
  header.deadline_us = 0x31323334;
  header.body_bytes = 0x41424344;
  header.row_count = 0x51525354;
  header.layer = 0x6162;
  header.copy_count = 0x7172;
  header.piece_count = 0x81828384;
  header.index_count = 0x91929394;
  Slot slot(64);
  EncodeHeader(header, slot.bytes());
  const std::vector<uint8_t> golden = {
      0x43, 0x4b, 0x56, 0x51, 0x04, 0x00, 0x02, 0x03,  // "CKVQ" 4 kind flags
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request id
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // epoch
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // session
      0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41,  // deadline, body
      0x54, 0x53, 0x52, 0x51, 0x62, 0x61, 0x72, 0x71,  // rows, layer, copies
      0x84, 0x83, 0x82, 0x81, 0x94, 0x93, 0x92, 0x91, 0x00, 0x00, 0x00, 0x00,  // pieces, indices
      0x15, 0xf3, 0x43, 0x7d};
  EXPECT_EQ(Copy(slot.bytes()), golden);
}

TEST(Wire, GoldenReplyHeader) {
  ReplyHeader header;
  header.kind = WireKind::kFetch;
  header.flags = kFlagPartialF32;
  header.request_id = 0x0102030405060708;
  header.epoch = 0x1112131415161718;
  header.code = 0x2122;
  header.body_bytes = 0x31323334;
  header.row_count = 0x41424344;
  header.partial_count = 0x51525354;
  header.compute_ns = 0x61626364;
  header.queue_ns = 0x71727374;
  header.queue_depth = 0x81828384;
  header.retry_after_us = 0x91929394;
  header.body_checksum = 0xa1a2a3a4;
  Slot slot(64);
  EncodeHeader(header, slot.bytes());
  const std::vector<uint8_t> golden = {
      0x43, 0x4b, 0x56, 0x52, 0x04, 0x00, 0x03, 0x01,  // "CKVR" 4 kind flags
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request id
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // epoch
      0x22, 0x21, 0x00, 0x00, 0x34, 0x33, 0x32, 0x31,  // code, body
      0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51,  // rows, partials
      0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71,  // compute, queue
      0x84, 0x83, 0x82, 0x81, 0x94, 0x93, 0x92, 0x91, 0xa4, 0xa3, 0xa2, 0xa1,  // depth, retry, body
      0x59, 0x0e, 0x0a, 0xbb};
  EXPECT_EQ(Copy(slot.bytes()), golden);
}

TEST(Wire, HeadersSurviveTheTrip) {
  Attend attend;
  const absl::StatusOr<RequestHeader> request = DecodeRequestHeader(attend.Bytes());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->request_id, 0x1122334455667788u);
  EXPECT_EQ(request->layer, 3u);
  EXPECT_EQ(request->index_count, 9u);

  ReplyHeader sent;
  sent.kind = WireKind::kAttend;
  sent.request_id = 9;
  sent.compute_ns = 77;
  sent.body_bytes = 10;
  Slot slot(74);
  EncodeHeader(sent, slot.bytes());
  const absl::StatusOr<ReplyHeader> reply = DecodeReplyHeader(slot.bytes());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->request_id, 9u);
  EXPECT_EQ(reply->compute_ns, 77u);
}

// No bit of either header can flip unnoticed.
TEST(Wire, EveryBitFlipIsRefused) {
  Attend attend;
  ReplyHeader reply;
  reply.kind = WireKind::kAttend;
  Slot reply_slot(64);
  EncodeHeader(reply, reply_slot.bytes());
  (void)attend.Bytes();
  for (int bit = 0; bit < 64 * 8; ++bit) {
    const std::byte mask{static_cast<uint8_t>(1 << (bit % 8))};
    attend.slot.bytes()[bit / 8] ^= mask;
    EXPECT_FALSE(DecodeRequestHeader(attend.slot.bytes()).ok()) << "bit " << bit;
    attend.slot.bytes()[bit / 8] ^= mask;
    reply_slot.bytes()[bit / 8] ^= mask;
    EXPECT_FALSE(DecodeReplyHeader(reply_slot.bytes()).ok()) << "bit " << bit;
    reply_slot.bytes()[bit / 8] ^= mask;
  }
  EXPECT_TRUE(DecodeRequestHeader(attend.slot.bytes()).ok());
  EXPECT_TRUE(DecodeReplyHeader(reply_slot.bytes()).ok());
}

TEST(Wire, OtherVersionsAreToldApart) {
  Attend attend;
  attend.header.version = kWireVersion + 1;
  EXPECT_EQ(DecodeRequestHeader(attend.Bytes()).status().code(), StatusCode::kFailedPrecondition);
  ReplyHeader reply;
  reply.version = 0;
  Slot slot(64);
  EncodeHeader(reply, slot.bytes());
  EXPECT_EQ(DecodeReplyHeader(slot.bytes()).status().code(), StatusCode::kFailedPrecondition);
}

TEST(Wire, RequestHeaderRefusals) {
  const auto refused = [](auto change) {
    Attend attend;
    change(attend.header);
    return DecodeRequestHeader(attend.Bytes()).status().code() == StatusCode::kInvalidArgument;
  };
  using H = RequestHeader;
  EXPECT_TRUE(refused([](H& h) { h.magic = kReplyMagic; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = static_cast<WireKind>(0); }));
  EXPECT_TRUE(refused([](H& h) { h.kind = static_cast<WireKind>(5); }));
  EXPECT_TRUE(refused([](H& h) { h.flags = 16; }));
  EXPECT_TRUE(refused([](H& h) { h.flags = 0x80; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes += 1; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes -= 1; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](H& h) { h.row_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.row_count = kQueryRowCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.copy_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.copy_count = kCopyCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.piece_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.piece_count = kPieceCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.index_count = kIndexCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.reserved = 1; }));
  // Probe, fetch and map have no counts.
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kProbe; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kFetch; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kMap; }));
  EXPECT_FALSE(refused([](H&) {}));
  for (size_t bytes = 0; bytes < 64; ++bytes) {
    Attend attend;
    EXPECT_EQ(DecodeRequestHeader(attend.Bytes().first(bytes)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Wire, AttendSurvivesTheTrip) {
  Attend attend;
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
  ASSERT_EQ(out.pieces.size(), 2u);
  EXPECT_EQ(out.pieces[0].handle, 70u);
  EXPECT_EQ(out.pieces[0].index_begin, kDense);
  EXPECT_EQ(out.pieces[1].handle, 0xfffffffeu);
  EXPECT_EQ(out.pieces[1].k, 3u);
  EXPECT_EQ(out.rows[239], 239);
  ASSERT_EQ(out.indices.size(), 9u);
  EXPECT_EQ(out.indices[0], -1);
  EXPECT_EQ(out.indices[8], 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(out.rows) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(out.indices.data()) % 64, 0u);
  const void* storage = out.pieces.data();
  ASSERT_TRUE(attend.Decode(out).ok());
  EXPECT_EQ(out.pieces.data(), storage);  // reused
}

TEST(Wire, AttendRefusals) {
  const auto refused = [](auto change) {
    Attend attend;
    change(attend);
    return attend.Code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Attend&) {}));
  EXPECT_TRUE(refused([](Attend& a) { a.header.layer = 4; }));
  EXPECT_TRUE(refused([](Attend& a) { a.header.row_count = 6; }));
  EXPECT_TRUE(refused([](Attend& a) { a.header.copy_count = 3; }));
  EXPECT_TRUE(refused([](Attend& a) { a.header.piece_count = 3; }));
  EXPECT_TRUE(refused([](Attend& a) { a.header.index_count = 10; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[0].reserved[0] = 1; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].reserved[2] = 1; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].copy = 2; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].copy = 0xffffffff; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[0].k = 1; }));  // dense has no k
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[0].group_rows = 0; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].group_rows = 0; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].group_rows = 6; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].group_rows = 1; }));  // 5 groups of 3 > 9
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].index_begin = 1; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].index_begin = kDense - 1; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].k = 0xffffffff; }));
  EXPECT_TRUE(refused([](Attend& a) { a.pieces[1].k = 0x55555556; }));  // x 3 wraps 32 bits
  // Inside: nothing selected at all, and a whole frame as one group.
  EXPECT_FALSE(refused([](Attend& a) { a.pieces[1].k = 0; }));
  EXPECT_FALSE(refused([](Attend& a) { a.pieces[1] = {1, 1, 0, 9, 5, {}}; }));
  AttendRequest out;
  RequestHeader probe;
  Slot slot(64);
  EXPECT_EQ(DecodeAttendRequest(probe, slot.bytes(), SmallGeometry(), out).code(),
            StatusCode::kInvalidArgument);
}

TEST(Wire, FetchSurvivesAndRefuses) {
  RequestHeader header;
  header.kind = WireKind::kFetch;
  header.body_bytes = 32;
  Slot slot(96);
  const auto decode = [&](const FetchEntry& entry) {
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + 64, &entry, sizeof(entry));
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(slot.bytes());
    return decoded.ok() ? DecodeFetchRequest(*decoded, slot.bytes())
                        : absl::StatusOr<FetchRequest>(decoded.status());
  };
  const absl::StatusOr<FetchRequest> request = decode({5, 1, 2, 3, 4});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->entry.handle, 5u);
  EXPECT_EQ(request->entry.token_count, 4u);
  EXPECT_TRUE(request->indices.empty());
  EXPECT_FALSE(decode({5, 0, kLayerCountMax + 1, 3, 4}).ok());
  EXPECT_FALSE(decode({5, 0xffffffff, 2, 3, 4}).ok());
  EXPECT_FALSE(decode({5, 0, 1, 0xffffffff, 1}).ok());
  EXPECT_TRUE(decode({5, 0, 1, 0xfffffffe, 1}).ok());
  // Slices: multiples of 4 within the widest row.
  EXPECT_TRUE(decode({5, 1, 2, 3, 4, 0, 2044, 4}).ok());
  EXPECT_FALSE(decode({5, 1, 2, 3, 4, 0, 2044, 8}).ok());
  EXPECT_FALSE(decode({5, 1, 2, 3, 4, 0, 0xfffffffc, 8}).ok());
  EXPECT_FALSE(decode({5, 1, 2, 3, 4, 0, 2, 4}).ok());
  EXPECT_FALSE(decode({5, 1, 2, 3, 4, 0, 4, 6}).ok());
  EXPECT_FALSE(decode({5, 1, 2, 3, 4, 0, 4, 0}).ok());
  EXPECT_FALSE(decode({5, 1, 1, 0, 4, 4}).ok());  // the indices did not come
  for (const size_t body_bytes : {0, 28, 33, 34}) {
    Slot other(64 + body_bytes);
    header.body_bytes = static_cast<uint32_t>(body_bytes);
    EncodeHeader(header, other.bytes());
    EXPECT_FALSE(DecodeRequestHeader(other.bytes()).ok()) << body_bytes;
  }
}

TEST(Wire, ChosenRowsSurviveAndRefuse) {
  const auto decode = [](const FetchEntry& entry, uint32_t sent) {
    RequestHeader header;
    header.kind = WireKind::kFetch;
    header.body_bytes = 32 + 4 * sent;
    Slot slot(64 + header.body_bytes);
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + 64, &entry, sizeof(entry));
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(slot.bytes());
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    const auto request = DecodeFetchRequest(*decoded, slot.bytes());
    return request.ok() && request->indices.size() == sent;
  };
  EXPECT_TRUE(decode({5, 1, 1, 0, 3, 3}, 3));
  EXPECT_TRUE(decode({5, 1, 1, 0, 3, 3, 64, 128}, 3));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 3}, 2));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 3}, 4));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 0}, 3));  // a run has none
  EXPECT_FALSE(decode({5, 1, 1, 0, 4, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 1, 1, 3, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 2, 0, 3, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 0, 0, 3, 3}, 3));
  constexpr uint32_t kMost = kFetchIndexCountMax;
  EXPECT_TRUE(decode({5, 1, 1, 0, kMost, kMost}, kMost));
  EXPECT_FALSE(decode({5, 1, 1, 0, kMost + 1, kMost + 1}, kMost + 1));
}

// Layouts never wrap, and agree with the sum made in 128 bits wherever that fits.
TEST(Wire, LayoutsSaturate) {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 20'000; ++i) {
    const auto draw = [&] { return static_cast<uint32_t>(rng() >> (32 + rng() % 32)); };
    const uint32_t pieces = draw(), copies = draw(), rows = draw(), indices = draw(), d = draw();
    using Wide = unsigned __int128;
    const auto up = [](Wide v) { return (v + 63) / 64 * 64; };
    const Wide rows_at = up(64 + Wide{pieces} * 32);
    const Wide total = up(rows_at + Wide{copies} * rows * d * 2) + Wide{indices} * 4;
    const AttendLayout layout = LayOutAttend(pieces, copies, rows, indices, d);
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
  EXPECT_EQ(LayOutAttend(1, 1, 16, 0, 576).rows, 128u);
  EXPECT_EQ(LayOutAttend(1, 1, 16, 0, 576).total_bytes, 128u + 16 * 1152);
}
}  // namespace
}  // namespace ckv
