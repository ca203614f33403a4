// Goal: a reply is what was asked for, byte by byte, or a typed error.
// Method: one refusal a rule; errors and echoes there and back.

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/wire_frame.h"
#include "transport/body_checksum.h"
#include "transport/wire.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AttendHeader;
using test::Slot;
using testing::HasSubstr;

struct Reply {
  Reply() {
    expected.request_id = 4;
    expected.row_count = 3;
    expected.partial_count = 2;
    expected.body_bytes = 2 * (32 + 24);
    header.kind = WireKind::kAttend;
    header.request_id = 4;
    header.row_count = 3;
    header.partial_count = 2;
    header.body_bytes = 2 * (32 + 24);  // o: 30 padded to 32
  }
  absl::Status Check() {
    Slot slot(64 + header.body_bytes);
    return CheckReply(header, slot.bytes().subspan(64), expected);
  }
  ReplyHeader header;
  ExpectedReply expected;
};

TEST(Wire, AReplyMustMatchItsRequest) {
  EXPECT_TRUE(Reply().Check().ok()) << Reply().Check();
  const auto code = [](auto change) {
    Reply reply;
    change(reply);
    return reply.Check().code();
  };
  const StatusCode bad = StatusCode::kDataLoss;
  EXPECT_EQ(code([](Reply& r) { r.header.request_id = 5; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.kind = WireKind::kProbe; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.flags = kFlagPartialF32; }), bad);
  // Approximate only where that was allowed, and exact even there.
  EXPECT_EQ(code([](Reply& r) { r.header.flags |= kFlagApproximate; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.expected.flags |= kFlagApproximate; }), StatusCode::kOk);
  EXPECT_EQ(code([](Reply& r) {
              r.header.flags |= kFlagApproximate;
              r.expected.flags |= kFlagApproximate;
            }),
            StatusCode::kOk);
  EXPECT_EQ(code([](Reply& r) { r.header.row_count = 2; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.partial_count = 1; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.body_bytes -= 4; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.body_bytes += 4; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.header.body_checksum = 1; }), bad);
  EXPECT_EQ(code([](Reply& r) {
              r.header.flags = r.expected.flags = kFlagPartialF32;
              r.header.body_bytes = 2 * (60 + 24);
              r.expected.body_bytes = 2 * (60 + 24);
            }),
            StatusCode::kOk);
  EXPECT_EQ(code([](Reply& r) { r.expected.body_bytes += 4; }), bad);
  EXPECT_EQ(code([](Reply& r) { r.expected.partial_count = 0xffffffff; }), bad);
}

TEST(Wire, ReplyHeaderRefusals) {
  const auto refused = [](auto change) {
    ReplyHeader header;
    header.body_bytes = 600;
    change(header);
    Slot slot(664);
    EncodeHeader(header, slot.bytes());
    return DecodeReplyHeader(slot.bytes()).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](ReplyHeader&) {}));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.magic = kRequestMagic; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.code = 17; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.code = 5; }));  // error text of 600 bytes
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.body_bytes = 599; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.row_count = kQueryRowCountMax + 1; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.partial_count = kPieceCountMax + 1; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.flags = 16; }));
  EXPECT_TRUE(refused([](ReplyHeader& h) { h.batch_share = 1; }));
  EXPECT_FALSE(refused([](ReplyHeader& h) {
    h.kind = WireKind::kAttend;
    h.batch_share = 1;
  }));
  EXPECT_FALSE(refused([](ReplyHeader& h) { h.kernel_target = KernelTargetId::kAvx3; }));
}

TEST(Wire, FetchedBytesAreChecked) {
  Slot slot(64 + 100);
  for (size_t i = 0; i < 100; ++i) slot.bytes()[64 + i] = static_cast<std::byte>(i);
  ReplyHeader header;
  header.kind = WireKind::kFetch;
  header.request_id = 1;
  header.body_bytes = 100;
  ExpectedReply expected;
  expected.fetch = {.tensor_begin = 3, .tensor_count = 2, .token_begin = 7, .token_count = 10};
  expected.row_bytes = 5;
  header.body_checksum = BodyChecksum(expected.fetch, 5, slot.bytes().subspan(64));
  expected.request_id = 1;
  expected.kind = WireKind::kFetch;
  EXPECT_TRUE(CheckReply(header, slot.bytes().subspan(64), expected).ok());
  ScatterList landed(slot.bytes().subspan(64, 33));
  ASSERT_TRUE(landed.Add(slot.bytes().subspan(97)));
  EXPECT_TRUE(CheckReply(header, landed, expected).ok());
  slot.bytes()[163] ^= std::byte{1};
  EXPECT_EQ(CheckReply(header, slot.bytes().subspan(64), expected).code(), StatusCode::kDataLoss);
  EXPECT_EQ(CheckReply(header, landed, expected).code(), StatusCode::kDataLoss);
  slot.bytes()[163] ^= std::byte{1};
  landed.TakeFront(1);
  EXPECT_EQ(CheckReply(header, landed, expected).code(), StatusCode::kDataLoss);
  expected.fetch.token_count = 11;
  EXPECT_EQ(CheckReply(header, slot.bytes().subspan(64), expected).code(), StatusCode::kDataLoss);
  // If memory is shared, a reply has no checksum.
  expected.fetch.token_count = 10;
  expected.checksummed = false;
  EXPECT_EQ(CheckReply(header, slot.bytes().subspan(64), expected).code(), StatusCode::kDataLoss);
  header.body_checksum = 0;
  EXPECT_TRUE(CheckReply(header, slot.bytes().subspan(64), expected).ok());
}

// Golden: what xxhsum -H3 gives for the parts of tokens 30, 31 | 32 to 63 | 64 to 95 | 96 to 99 of
// each layer, and for those eight sums, u64 little-endian.
TEST(Wire, BodyChecksumIsOfStripes) {
  std::vector<std::byte> body(2 * 70 * 4);
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 7);
  const FetchEntry entry = {
      .tensor_begin = 5, .tensor_count = 2, .token_begin = 30, .token_count = 70};
  EXPECT_EQ(BodyChecksum(entry, 4, body), 0xf44413b6u);
  // Gathered rows have stripes of their own, from the first row sent on.
  FetchEntry slice = entry, from_zero = entry;
  slice.column_bytes = 4;
  from_zero.token_begin = 0;
  EXPECT_EQ(BodyChecksum(slice, 4, body), BodyChecksum(from_zero, 4, body));
  EXPECT_NE(BodyChecksum(slice, 4, body), BodyChecksum(entry, 4, body));
  // It makes no difference where the bytes are stored, nor whether a stripe or a row is cut.
  for (const size_t cut : {1u, 8u, 100u, 136u, 279u, 280u, 559u}) {
    const std::span<std::byte> bytes(body);
    ScatterList pieces(bytes.first(cut / 2));
    ASSERT_TRUE(pieces.Add(bytes.subspan(cut / 2, cut - cut / 2)));
    ASSERT_TRUE(pieces.Add(bytes.subspan(cut)));
    EXPECT_EQ(BodyChecksum(entry, 4, pieces), 0xf44413b6u) << cut;
  }
  std::vector<std::pair<uint32_t, uint32_t>> parts;
  BodyChecksum(entry, [&](const StripePart& part) {
    EXPECT_EQ(part.tensor, parts.size() < 4 ? 5u : 6u);
    parts.emplace_back(part.token_begin, part.token_count);
    return uint64_t{0};
  });
  const std::vector<std::pair<uint32_t, uint32_t>> layer = {{30, 2}, {32, 32}, {64, 32}, {96, 4}};
  EXPECT_TRUE(parts.size() == 8 && std::equal(layer.begin(), layer.end(), parts.begin()) &&
              std::equal(layer.begin(), layer.end(), parts.begin() + 4));
}

TEST(Wire, MapsAreChecked) {
  const auto decode = [](const MapReply& reply) {
    Slot slot(64 + sizeof(reply));
    std::memcpy(slot.bytes().data() + 64, &reply, sizeof(reply));
    return DecodeMapReply(slot.bytes()).status().code();
  };
  const StatusCode bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(decode({.bytes = 512}), StatusCode::kOk);
  EXPECT_EQ(decode({.bytes = 0}), bad);
  EXPECT_EQ(decode({.bytes = 512, .reserved = 1}), bad);
  Slot shorter(64 + sizeof(MapReply) - 1);
  EXPECT_EQ(DecodeMapReply(shorter.bytes()).status().code(), bad);

  RequestHeader header;
  header.kind = WireKind::kMap;
  header.body_bytes = sizeof(MapEntry);
  MapEntry entry;
  entry.handle = 7;
  Slot slot(sizeof(header) + sizeof(entry));
  std::memcpy(slot.bytes().data() + sizeof(header), &entry, sizeof(entry));
  EncodeHeader(header, slot.bytes());
  const auto decoded = DecodeRequestHeader(slot.bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(DecodeMapRequest(*decoded, slot.bytes())->handle, 7u);
  slot.bytes()[sizeof(header) + 31] = std::byte{1};
  EXPECT_EQ(DecodeMapRequest(*decoded, slot.bytes()).status().code(), StatusCode::kInvalidArgument);
}

TEST(Wire, ErrorsTravelWithTheirText) {
  RequestHeader request = AttendHeader();
  request.flags = kFlagPartialF32;
  Slot slot(1024);
  const auto round_trip = [&](const absl::Status& status) {
    const uint32_t bytes = EncodeErrorReply(request, status, 250, slot.bytes());
    const absl::StatusOr<ReplyHeader> header = DecodeReplyHeader(slot.bytes().first(bytes));
    EXPECT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->retry_after_us, 250u);
    EXPECT_EQ(header->epoch, request.epoch);
    ExpectedReply expected;
    expected.request_id = request.request_id;
    expected.flags = request.flags;
    expected.row_count = 5;
    return CheckReply(*header, slot.bytes().first(bytes).subspan(64), expected);
  };
  EXPECT_EQ(round_trip(absl::ResourceExhaustedError("queue of 12")),
            absl::ResourceExhaustedError("queue of 12"));
  EXPECT_EQ(round_trip(absl::NotFoundError("")), absl::NotFoundError(""));
  EXPECT_EQ(round_trip(absl::NotFoundError("a\nb\x1b[2J")), absl::NotFoundError("a?b?[2J"));
  const absl::Status cut = round_trip(absl::InternalError(std::string(511, 'x') + "\xc3\xa9 more"));
  EXPECT_EQ(cut, absl::InternalError(std::string(511, 'x')));  // no half a character
  Slot tiny(70);
  EXPECT_EQ(EncodeErrorReply(request, absl::NotFoundError("abcdefgh"), 0, tiny.bytes()), 70u);
}

TEST(Wire, ProbesAreEchoed) {
  RequestHeader request;
  request.request_id = 3;
  request.body_bytes = 36;
  Slot requested(124);
  EncodeHeader(request, requested.bytes());
  requested.bytes()[123] = std::byte{42};
  Slot answer(200);
  const uint32_t bytes = EncodeProbeReply(request, requested.bytes(), answer.bytes());
  EXPECT_EQ(bytes, 100u);
  EXPECT_EQ(answer.bytes()[99], std::byte{42});
  ExpectedReply expected;
  expected.request_id = 3;
  expected.kind = WireKind::kProbe;
  const absl::StatusOr<ReplyHeader> header = DecodeReplyHeader(answer.bytes().first(bytes));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_TRUE(CheckReply(*header, answer.bytes().first(bytes).subspan(64), expected).ok());
  Slot small(80);  // as far as the slot holds them
  EXPECT_EQ(EncodeProbeReply(request, requested.bytes(), small.bytes()), 80u);
  EXPECT_TRUE(DecodeReplyHeader(small.bytes()).ok());
}

}  // namespace
}  // namespace ckv
