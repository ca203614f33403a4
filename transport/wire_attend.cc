// Lays out and checks attend frames. LayOutAttend computes the offset of each part from its count,
// for both ends. DecodeSegments, in order: checks that the entries fit; reads segments and pieces,
// and checks each; computes the whole layout, which must be the frame's length; points into the
// rows and indices, which are not copied.

#include "transport/wire_attend.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/index_query.h"
#include "transport/saturating.h"

namespace ckv {
namespace {

uint64_t GroupCount(uint32_t row_count, uint32_t group_rows) {
  return (uint64_t{row_count} + group_rows - 1) / group_rows;
}

absl::Status CheckLayout(const AttendLayout& layout, const RequestHeader& header,
                         std::span<const std::byte> slot, const Geometry& geometry) {
  if (layout.total_bytes == slot.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "attend: %d segments, %d pieces, %d rows of %d, %d indices are %d bytes, received %d",
      header.segment_count, header.piece_count, header.row_count, geometry.d_qk, header.index_count,
      layout.total_bytes, slot.size()));
}

absl::Status CheckSegment(uint32_t ordinal, const SegmentEntry& entry) {
  if (entry.chosen_count > kIndexTopMax ||
      (entry.candidates == 0 && (entry.token | entry.chosen_count) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("segment %d: %d chosen rows of token %d among candidates %d", ordinal,
                        entry.chosen_count, entry.token, entry.candidates));
  }
  if (entry.row_count == 0 || entry.row_count > kQueryRowCountMax || entry.piece_count == 0 ||
      entry.piece_count > kPieceCountMax || entry.partial_count == 0 ||
      entry.partial_count > entry.piece_count || entry.copy_count == 0 ||
      entry.copy_count > kCopyCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("segment %d: %d rows, %d copies, %d pieces, %d partials", ordinal,
                        entry.row_count, entry.copy_count, entry.piece_count, entry.partial_count));
  }
  if (entry.index_rows != 1 || entry.limit_begin != kNoLimits) {
    return absl::UnimplementedError(absl::StrFormat(
        "segment %d: selections of blocks and row limits need a later ckv", ordinal));
  }
  return absl::OkStatus();
}

absl::Status CheckPiece(uint32_t ordinal, const PieceEntry& piece, const AttendSegment& segment,
                        uint32_t index_count) {
  const bool chosen = piece.index_begin == kChosen;
  if (piece.more > (chosen ? kChosenChunkCountMax : 0) ||
      std::max(piece.handle, piece.ordinal) > ~piece.more) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: %d chunks after handle %d and ordinal %d", ordinal, piece.more,
                        piece.handle, piece.ordinal));
  }
  if (piece.copy >= segment.copy_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: copy %d of %d", ordinal, piece.copy, segment.copy_count));
  }
  if (piece.group_rows == 0 || piece.group_rows > segment.row_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: groups of %d rows, received %d rows", ordinal, piece.group_rows,
                        segment.row_count));
  }
  if (chosen != (segment.candidates != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: its segment has candidates %d", ordinal, segment.candidates));
  }
  if (piece.index_begin == kDense || chosen) {
    if (piece.k == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: not by index, but with k %d", ordinal, piece.k));
  }
  // At most 4096 groups x 2^32: no overflow in 64 bits.
  const uint64_t group_count = GroupCount(segment.row_count, piece.group_rows);
  if (piece.index_begin + group_count * piece.k > index_count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("piece %d: indices from %d, %d groups of %d, received %d", ordinal,
                        piece.index_begin, group_count, piece.k, index_count));
  }
  return absl::OkStatus();
}

// Partials are numbered from 0 without gaps, and ordinals rise within each.
absl::Status CheckPartials(const AttendSegment& segment, std::span<const PieceEntry> pieces) {
  uint32_t partial = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool first = i == 0 || pieces[i].partial == partial + 1;
    if (first ? pieces[i].partial != (i == 0 ? 0 : partial + 1)
              : pieces[i].partial != partial ||
                    pieces[i].ordinal <= pieces[i - 1].ordinal + pieces[i - 1].more) {
      return absl::InvalidArgumentError(
          absl::StrFormat("piece %d: partial %d, ordinal %d, out of order", segment.piece_begin + i,
                          pieces[i].partial, pieces[i].ordinal));
    }
    partial = pieces[i].partial;
  }
  if (partial + 1 == segment.partial_count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("segment of %d partials, received %d", segment.partial_count, partial + 1));
}

absl::Status CheckChosen(const AttendRequest& request) {
  uint64_t row_count = 0, chunk_count = 0;
  for (const AttendSegment& segment : request.segments) row_count += segment.chosen_count;
  for (const PieceEntry& piece : request.pieces) chunk_count += piece.more;
  if (row_count <= kChosenRowCountMax && chunk_count <= kChosenChunkCountMax)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("attend: %d chosen rows of %d chunks, limits "
                      "%d and %d",
                      row_count, chunk_count, kChosenRowCountMax, kChosenChunkCountMax));
}

template <typename Entry>
Entry ReadEntry(std::span<const std::byte> slot, size_t begin, size_t ordinal) {
  Entry entry;
  std::memcpy(&entry, slot.data() + begin + ordinal * sizeof(entry), sizeof(entry));
  return entry;
}

void PointInto(std::span<const std::byte> slot, const AttendLayout& layout, AttendRequest& out) {
  CKV_CHECK(reinterpret_cast<uintptr_t>(slot.data()) % alignof(int32_t) == 0);
  out.rows = reinterpret_cast<const uint16_t*>(slot.data() + layout.rows);
  out.indices = {reinterpret_cast<const int32_t*>(slot.data() + layout.indices),
                 out.header.index_count};
}

// Copies the segments and says where each one's rows and pieces are. Returns the stored rows.
absl::StatusOr<uint64_t> ReadSegments(std::span<const std::byte> slot, size_t begin,
                                      AttendRequest& out) {
  const RequestHeader& header = out.header;
  uint64_t rows = 0, stored_rows = 0, pieces = 0;
  for (uint32_t i = 0; i < header.segment_count; ++i) {
    const auto entry = ReadEntry<SegmentEntry>(slot, begin, i);
    CKV_RETURN_IF_ERROR(CheckSegment(i, entry));
    out.segments.push_back({.row_count = entry.row_count,
                            .copy_count = entry.copy_count,
                            .piece_begin = static_cast<uint32_t>(pieces),
                            .piece_end = static_cast<uint32_t>(pieces + entry.piece_count),
                            .partial_count = entry.partial_count,
                            .stored_row_begin = stored_rows,
                            .token = entry.token,
                            .chosen_count = entry.chosen_count,
                            .candidates = entry.candidates});
    // At most 1024 segments of 4096 each, 16 times: no overflow.
    rows += entry.row_count;
    stored_rows += uint64_t{entry.row_count} * entry.copy_count;
    pieces += entry.piece_count;
    out.partial_count += entry.partial_count;
  }
  if (rows == header.row_count && pieces == header.piece_count) return stored_rows;
  return absl::InvalidArgumentError(
      absl::StrFormat("attend: segments of %d rows and %d pieces, the header has %d and %d", rows,
                      pieces, header.row_count, header.piece_count));
}

absl::Status DecodeSegments(std::span<const std::byte> slot, const Geometry& geometry,
                            AttendRequest& out) {
  const RequestHeader& header = out.header;
  // The entries fit before they are read.
  AttendLayout layout = LayOutAttend(header.segment_count, header.piece_count,
                                     /*stored_row_count=*/0, header.index_count, geometry.d_qk);
  if (layout.total_bytes > slot.size()) return CheckLayout(layout, header, slot, geometry);
  CKV_ASSIGN_OR_RETURN(const uint64_t stored_rows, ReadSegments(slot, layout.segments, out));
  layout = LayOutAttend(header.segment_count, header.piece_count, stored_rows, header.index_count,
                        geometry.d_qk);
  CKV_RETURN_IF_ERROR(CheckLayout(layout, header, slot, geometry));
  out.pieces.resize(header.piece_count);
  std::memcpy(out.pieces.data(), slot.data() + layout.pieces,
              header.piece_count * sizeof(PieceEntry));
  for (const AttendSegment& segment : out.segments) {
    for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i)
      CKV_RETURN_IF_ERROR(CheckPiece(i, out.pieces[i], segment, header.index_count));
    CKV_RETURN_IF_ERROR(CheckPartials(
        segment, std::span(out.pieces)
                     .subspan(segment.piece_begin, segment.piece_end - segment.piece_begin)));
  }
  PointInto(slot, layout, out);
  return CheckChosen(out);
}

}  // namespace

AttendLayout LayOutAttend(uint32_t segment_count, uint32_t piece_count, uint64_t stored_row_count,
                          uint32_t index_count, uint32_t d_qk) {
  AttendLayout layout;
  layout.segments = sizeof(RequestHeader);
  layout.pieces = layout.segments + size_t{segment_count} * sizeof(SegmentEntry);
  layout.rows = SaturatingRoundUp(layout.pieces + size_t{piece_count} * sizeof(PieceEntry), 64);
  const size_t row_bytes =
      SaturatingMultiply(SaturatingMultiply(stored_row_count, d_qk), sizeof(uint16_t));
  layout.indices = SaturatingRoundUp(SaturatingAdd(layout.rows, row_bytes), 64);
  layout.total_bytes = SaturatingAdd(layout.indices, size_t{index_count} * sizeof(int32_t));
  return layout;
}

PartialLayout LayOutPartial(uint32_t row_count, uint32_t d_v, bool f32) {
  PartialLayout layout;
  const size_t values = size_t{row_count} * d_v;
  layout.m = SaturatingRoundUp(SaturatingMultiply(values, f32 ? 4 : 2), 4);
  layout.l = SaturatingAdd(layout.m, size_t{row_count} * sizeof(float));
  layout.total_bytes = SaturatingAdd(layout.l, size_t{row_count} * sizeof(float));
  return layout;
}

absl::Status DecodeAttendRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                 const Geometry& geometry, AttendRequest& out) {
  if (header.kind != WireKind::kAttend) return absl::InvalidArgumentError("request: not an attend");
  if (header.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: layer %d of %d", header.layer, geometry.layers));
  }
  out.header = header;
  out.segments.clear();
  out.pieces.clear();
  out.chosen = {};
  out.partial_count = 0;
  return DecodeSegments(slot, geometry, out);
}

uint64_t AttendReplyBytes(const AttendRequest& request, const Geometry& geometry) {
  const bool f32 = (request.header.flags & kFlagPartialF32) != 0;
  // At most 4096 partials of 4096 x (1024 + 2) x 4 B: cannot wrap.
  uint64_t bytes = 0;
  for (const AttendSegment& segment : request.segments) {
    bytes += uint64_t{segment.partial_count} *
             LayOutPartial(segment.row_count, geometry.d_v, f32).total_bytes;
  }
  return bytes;
}

}  // namespace ckv
