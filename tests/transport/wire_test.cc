// Goal: frames are what transport/wire.h documents, byte by byte, and nothing malformed passes.
// Method: golden bytes of both headers; every single-bit flip of a valid header; one refusal a
// rule; layouts held against sums made in wider arithmetic.

#include "transport/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/transport/wire_frame.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AttendFrame;
using test::Slot;

std::vector<uint8_t> Copy(std::span<const std::byte> bytes) {
  std::vector<uint8_t> copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

// Each byte another value.
RequestHeader GoldenRequest(uint8_t flags) {
  RequestHeader header;
  header.kind = WireKind::kAttend;
  header.flags = flags;
  header.request_id = 0x0102030405060708;
  header.epoch = 0x1112131415161718;
  header.session = 0x2122232425262728;
  header.deadline_us = 0x31323334;
  header.body_bytes = 0x41424344;
  header.row_count = 0x51525354;
  header.layer = 0x6162;
  header.segment_count = 0x7172;
  header.piece_count = 0x81828384;
  header.index_count = 0x91929394;
  return header;
}

TEST(Wire, GoldenRequestHeader) {
  RequestHeader header = GoldenRequest(kFlagPartialF32 | kFlagBulk);
  header.precision = WirePrecision::kFast;
  for (size_t i = 0; i < 16; ++i) header.trace_id[i] = static_cast<uint8_t>(0xe0 + i);
  for (size_t i = 0; i < 8; ++i) header.span_id[i] = static_cast<uint8_t>(0xf0 + i);
  header.sampled = 1;
  Slot slot(88);
  EncodeHeader(header, slot.bytes());
  const std::vector<uint8_t> golden = {
      0x43, 0x4b, 0x56, 0x51, 0x01, 0x00, 0x02, 0x03,  // "CKVQ" 1 kind flags
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request id
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // epoch
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // session
      0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41,  // deadline, body
      0x54, 0x53, 0x52, 0x51, 0x62, 0x61, 0x72, 0x71,  // rows, layer, segments
      0x84, 0x83, 0x82, 0x81, 0x94, 0x93, 0x92, 0x91,  // pieces, indices
      0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7,  // trace id
      0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef,
      0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7,   // span id
      0x01, 0x02, 0x00, 0x00, 0x3b, 0x77, 0xb5, 0x3a};  // sampled, precision, checksum
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
  header.partial_count = 0x5354;
  header.kernel_target = KernelTargetId::kAvx3;
  header.batch_share = 0x57;
  header.compute_ns = 0x61626364;
  header.queue_ns = 0x71727374;
  header.queue_depth = 0x81828384;
  header.retry_after_us = 0x91929394;
  header.body_checksum = 0xa1a2a3a4;
  Slot slot(64);
  EncodeHeader(header, slot.bytes());
  const std::vector<uint8_t> golden = {
      0x43, 0x4b, 0x56, 0x52, 0x01, 0x00, 0x03, 0x01,  // "CKVR" 1 kind flags
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request id
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // epoch
      0x22, 0x21, 0x00, 0x00, 0x34, 0x33, 0x32, 0x31,  // code, body
      0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x06, 0x57,  // rows, partials, kernel target, share
      0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71,  // compute, queue
      0x84, 0x83, 0x82, 0x81, 0x94, 0x93, 0x92, 0x91, 0xa4, 0xa3, 0xa2, 0xa1,  // depth, retry, body
      0xab, 0xe8, 0x5b, 0x52};
  EXPECT_EQ(Copy(slot.bytes()), golden);
}

TEST(Wire, HeadersRoundTrip) {
  AttendFrame attend;
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
  AttendFrame attend;
  ReplyHeader reply;
  reply.kind = WireKind::kAttend;
  Slot reply_slot(64);
  EncodeHeader(reply, reply_slot.bytes());
  (void)attend.Bytes();
  for (int bit = 0; bit < 88 * 8; ++bit) {
    const std::byte mask{static_cast<uint8_t>(1 << (bit % 8))};
    attend.slot.bytes()[bit / 8] ^= mask;
    EXPECT_FALSE(DecodeRequestHeader(attend.slot.bytes()).ok()) << "bit " << bit;
    attend.slot.bytes()[bit / 8] ^= mask;
    if (bit >= 64 * 8) continue;
    reply_slot.bytes()[bit / 8] ^= mask;
    EXPECT_FALSE(DecodeReplyHeader(reply_slot.bytes()).ok()) << "bit " << bit;
    reply_slot.bytes()[bit / 8] ^= mask;
  }
  EXPECT_TRUE(DecodeRequestHeader(attend.slot.bytes()).ok());
  EXPECT_TRUE(DecodeReplyHeader(reply_slot.bytes()).ok());
}

TEST(Wire, DistinguishesOtherVersions) {
  AttendFrame attend;
  for (const uint16_t version : {0, kWireVersion + 1}) {
    attend.header.version = version;
    const absl::Status request = DecodeRequestHeader(attend.Bytes()).status();
    EXPECT_EQ(request.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(request.message(),
              absl::StrFormat("request: wire version %d, this ckv supports 1", version));
    ReplyHeader reply;
    reply.version = version;
    Slot slot(64);
    EncodeHeader(reply, slot.bytes());
    EXPECT_EQ(DecodeReplyHeader(slot.bytes()).status().code(), StatusCode::kFailedPrecondition);
  }
}

// A peer of version n supports n - 1 and n; the first version has none before it.
TEST(Wire, PeersAgreeOnTheNewestVersionOfBoth) {
  EXPECT_EQ(CommonWireVersion(1, 1).value_or(0), 1);
  EXPECT_EQ(CommonWireVersion(1, 2).value_or(0), 1);
  EXPECT_EQ(CommonWireVersion(0, 1).value_or(0), 1);
  const auto refusal = [](uint32_t oldest, uint32_t newest) {
    const absl::Status status = CommonWireVersion(oldest, newest).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(0, 0),
            "the requester supports wire version 0, the holder 1: upgrade the older one");
  EXPECT_EQ(refusal(2, 2),
            "the requester supports wire version 2, the holder 1: upgrade the older one");
  EXPECT_EQ(refusal(2, 3),
            "the requester supports wire version 2 to 3, the holder 1: upgrade the older one");
  EXPECT_FALSE(refusal(1, 0).empty());
}

TEST(Wire, RequestHeaderRefusals) {
  const auto refused = [](auto change) {
    AttendFrame attend;
    change(attend.header);
    return DecodeRequestHeader(attend.Bytes()).status().code() == StatusCode::kInvalidArgument;
  };
  using H = RequestHeader;
  EXPECT_TRUE(refused([](H& h) { h.magic = kReplyMagic; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = static_cast<WireKind>(0); }));
  EXPECT_TRUE(refused([](H& h) { h.kind = static_cast<WireKind>(5); }));
  EXPECT_TRUE(refused([](H& h) { h.flags = 8; }));
  EXPECT_TRUE(refused([](H& h) { h.flags = 0x80; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes += 1; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes -= 1; }));
  EXPECT_TRUE(refused([](H& h) { h.body_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](H& h) { h.row_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.row_count = kQueryRowCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.segment_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.segment_count = kSegmentCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.piece_count = 0; }));
  EXPECT_TRUE(refused([](H& h) { h.piece_count = kPieceCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.index_count = kIndexCountMax + 1; }));
  EXPECT_TRUE(refused([](H& h) { h.reserved[0] = 1; }));
  EXPECT_TRUE(refused([](H& h) { h.reserved[1] = 1; }));
  EXPECT_TRUE(refused([](H& h) { h.precision = static_cast<WirePrecision>(3); }));
  EXPECT_FALSE(refused([](H& h) { h.precision = WirePrecision::kFast; }));
  EXPECT_FALSE(refused([](H& h) { h.trace_id[15] = 1; }));
  EXPECT_FALSE(refused([](H& h) { h.span_id[7] = 1; }));
  EXPECT_FALSE(refused([](H& h) { h.sampled = 1; }));
  EXPECT_TRUE(refused([](H& h) { h.sampled = 2; }));
  EXPECT_FALSE(refused([](H& h) {
    SetTrace({{1}, {2}, /*sampled=*/true}, h);
    EXPECT_EQ(TraceOf(h).trace_id, TraceId{1});
    EXPECT_EQ(TraceOf(h).span_id, SpanId{2});
    EXPECT_TRUE(TraceOf(h).sampled);
  }));
  // Probe, fetch and map have no counts.
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kProbe; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kFetch; }));
  EXPECT_TRUE(refused([](H& h) { h.kind = WireKind::kMap; }));
  EXPECT_FALSE(refused([](H&) {}));
  for (size_t bytes = 0; bytes < 88; ++bytes) {
    AttendFrame attend;
    EXPECT_EQ(DecodeRequestHeader(attend.Bytes().first(bytes)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Wire, FetchRoundTripsAndRefuses) {
  RequestHeader header;
  header.kind = WireKind::kFetch;
  header.body_bytes = 32;
  Slot slot(120);
  const auto decode = [&](const FetchEntry& entry) {
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + 88, &entry, sizeof(entry));
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(slot.bytes());
    return decoded.ok() ? DecodeFetchRequest(*decoded, slot.bytes())
                        : absl::StatusOr<FetchRequest>(decoded.status());
  };
  const absl::StatusOr<FetchRequest> request = decode({5, 1, 2, 3, 4});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->entry.handle, 5u);
  EXPECT_EQ(request->entry.token_count, 4u);
  EXPECT_TRUE(request->indices.empty());
  EXPECT_FALSE(decode({5, 0, kChunkTensorCountMax + 1, 3, 4}).ok());
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
  EXPECT_FALSE(decode({5, 1, 1, 0, 4, 4}).ok());  // the indices are missing
  for (const size_t body_bytes : {0, 28, 33, 34}) {
    Slot other(88 + body_bytes);
    header.body_bytes = static_cast<uint32_t>(body_bytes);
    EncodeHeader(header, other.bytes());
    EXPECT_FALSE(DecodeRequestHeader(other.bytes()).ok()) << body_bytes;
  }
}

TEST(Wire, ChosenRowsRoundTripAndRefuse) {
  const auto decode = [](const FetchEntry& entry, uint32_t sent) {
    RequestHeader header;
    header.kind = WireKind::kFetch;
    header.body_bytes = 32 + 4 * sent;
    Slot slot(88 + header.body_bytes);
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + 88, &entry, sizeof(entry));
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(slot.bytes());
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    const auto request = DecodeFetchRequest(*decoded, slot.bytes());
    return request.ok() && request->indices.size() == sent;
  };
  EXPECT_TRUE(decode({5, 1, 1, 0, 3, 3}, 3));
  EXPECT_TRUE(decode({5, 1, 1, 0, 3, 3, 64, 128}, 3));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 3}, 2));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 3}, 4));
  EXPECT_FALSE(decode({5, 1, 1, 0, 3, 0}, 3));  // a range has none
  EXPECT_FALSE(decode({5, 1, 1, 0, 4, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 1, 1, 3, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 2, 0, 3, 3}, 3));
  EXPECT_FALSE(decode({5, 1, 0, 0, 3, 3}, 3));
  constexpr uint32_t kMost = kFetchIndexCountMax;
  EXPECT_TRUE(decode({5, 1, 1, 0, kMost, kMost}, kMost));
  EXPECT_FALSE(decode({5, 1, 1, 0, kMost + 1, kMost + 1}, kMost + 1));
}

}  // namespace
}  // namespace ckv
