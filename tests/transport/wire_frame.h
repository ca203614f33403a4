// What both wire tests write frames into.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "transport/wire_attend.h"

namespace ckv::test {

// 64-byte aligned, as slots are.
class Slot {
 public:
  explicit Slot(size_t bytes) : words_((bytes + 63) / 64 + 1), bytes_(bytes) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words_)).first(bytes_); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64] = {};
  };
  std::vector<Line> words_;
  size_t bytes_;
};

inline RequestHeader AttendHeader() {
  RequestHeader header;
  header.kind = WireKind::kAttend;
  header.request_id = 0x1122334455667788;
  header.epoch = 5;
  header.session = 6;
  header.deadline_us = 1000;
  header.row_count = 5;
  header.layer = 3;
  header.segment_count = 1;
  header.piece_count = 2;
  header.index_count = 9;
  return header;
}

// A model of 4 layers whose rows have 24 values, 16 of them latent.
inline Geometry WireGeometry() {
  Geometry geometry;
  geometry.model = "test";
  geometry.layers = 4;
  geometry.d_qk = 24;
  geometry.d_v = 16;
  geometry.d_rope = 8;
  geometry.softmax_scale = 1;
  return geometry;
}

// A valid attend request of one segment: 5 rows in 2 copies, a dense piece, and one with 3 groups
// of k 3 from index 0; one partial.
struct AttendFrame {
  AttendFrame()
      : header(AttendHeader()), layout(LayOutAttend(1, 2, 10, 9, 24)), slot(layout.total_bytes) {
    header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(RequestHeader));
    segment = {.row_count = 5, .piece_count = 2, .partial_count = 1, .copy_count = 2};
    pieces[0].handle = 70;
    pieces[0].ordinal = 4;
    pieces[1].handle = 0xfffffffe;
    pieces[1].ordinal = 9;
    pieces[1].copy = 1;
    pieces[1].index_begin = 0;
    pieces[1].k = 3;
    pieces[1].group_rows = 2;
  }
  std::span<std::byte> Bytes() {
    EncodeHeader(header, slot.bytes());
    std::memcpy(slot.bytes().data() + layout.segments, &segment, sizeof(segment));
    std::memcpy(slot.bytes().data() + layout.pieces, pieces, sizeof(pieces));
    return slot.bytes();
  }
  absl::Status Decode(AttendRequest& out) {
    const absl::StatusOr<RequestHeader> decoded = DecodeRequestHeader(Bytes());
    if (!decoded.ok()) return decoded.status();
    return DecodeAttendRequest(*decoded, slot.bytes(), WireGeometry(), out);
  }
  absl::StatusCode Code() {
    AttendRequest out;
    return Decode(out).code();
  }

  RequestHeader header;
  AttendLayout layout;
  Slot slot;
  SegmentEntry segment;
  PieceEntry pieces[2];
};

}  // namespace ckv::test
