#include "client/plan/frame_buffers.h"

#include <algorithm>

#include "transport/wire_attend.h"

namespace ckv {

bool AddToShare(const RouteCall& call, const PlannedUnit& unit,
                std::span<const PlannedPiece> pieces, PlannedShare& share) {
  const std::span<const ContextChunk> chunks = call.segments[unit.segment].context->chunks();
  share.piece_count += static_cast<uint32_t>(pieces.size());
  ++share.node_count;
  if (unit.limited) {
    for (const PlannedPiece& piece : pieces) share.index_count += piece.k;
  } else if (pieces.front().index_begin != kDense) {
    // The selected rows of a unit's pieces are stored one after another.
    share.index_count += pieces.back().index_begin + pieces.back().k - pieces.front().index_begin;
  }
  if (share.copy_count == 1 && call.segments[unit.segment].context->rotations().size() == 1)
    return true;
  for (const PlannedPiece& piece : pieces) {
    const uint32_t rotation = chunks[piece.chunk].rotation;
    const auto end = share.copies.begin() + share.copy_count;
    if (std::find(share.copies.begin(), end, rotation) != end) continue;
    if (share.copy_count == kCopyCountMax) return false;
    share.copies[share.copy_count++] = rotation;
  }
  return true;
}

bool ShareFits(const RouteCall& call, const PlannedShare& share, const LaneShape& shape,
               uint32_t row_count) {
  PlannedFrame frame;
  frame.row_count = row_count;
  frame.stored_row_count = uint64_t{share.copy_count} * row_count;
  frame.piece_count = share.piece_count;
  frame.index_count = share.index_count;
  const uint64_t reply_bytes = PartialBytes(call, share, row_count);
  if (reply_bytes > shape.reply_bytes_max) return false;
  frame.reply_bytes = static_cast<uint32_t>(reply_bytes);
  return FrameFits(call, frame, /*part_count=*/1, shape);
}

uint64_t PartialBytes(const RouteCall& call, const PlannedShare& share, uint32_t row_count) {
  return uint64_t{share.node_count} *
         LayOutPartial(row_count, call.geometry().d_v, call.wire == PartialDtype::kF32).total_bytes;
}

bool FrameFits(const RouteCall& call, const PlannedFrame& frame, uint32_t part_count,
               const LaneShape& shape) {
  return frame.row_count <= kQueryRowCountMax && part_count <= kSegmentCountMax &&
         frame.piece_count <= kPieceCountMax && frame.index_count <= kIndexCountMax &&
         sizeof(ReplyHeader) + uint64_t{frame.reply_bytes} <= shape.reply_bytes_max &&
         LayOutAttend(part_count, frame.piece_count, frame.stored_row_count, frame.index_count,
                      call.geometry().d_qk)
                 .total_bytes <= shape.request_bytes_max;
}

}  // namespace ckv
