#include "client/plan/frame_buffers.h"

#include <algorithm>

#include "transport/wire_attend.h"

namespace ckv {

bool AddToSplit(const RouteCall& call, const PlannedUnit& unit,
                std::span<const AttendedChunk> attended, PlannedSplit& split) {
  const std::span<const ContextChunk> chunks = call.segments[unit.segment].context->chunks();
  split.chunk_count += static_cast<uint32_t>(attended.size());
  ++split.node_count;
  if (unit.limited) {
    for (const AttendedChunk& chunk : attended) split.index_count += chunk.k;
  } else if (attended.front().index_begin != kDense) {
    // The selected rows of a unit's chunks are stored one after another.
    split.index_count +=
        attended.back().index_begin + attended.back().k - attended.front().index_begin;
  }
  if (split.copy_count == 1 && call.segments[unit.segment].context->rotations().size() == 1)
    return true;
  for (const AttendedChunk& chunk : attended) {
    const uint32_t rotation = chunks[chunk.context_index].rotation;
    const auto end = split.copies.begin() + split.copy_count;
    if (std::find(split.copies.begin(), end, rotation) != end) continue;
    if (split.copy_count == kCopyCountMax) return false;
    split.copies[split.copy_count++] = rotation;
  }
  return true;
}

bool SplitFits(const RouteCall& call, const PlannedSplit& split, const LaneShape& shape,
               uint32_t row_count) {
  PlannedFrame frame;
  frame.row_count = row_count;
  frame.stored_row_count = uint64_t{split.copy_count} * row_count;
  frame.chunk_count = split.chunk_count;
  frame.index_count = split.index_count;
  const uint64_t reply_bytes = PartialBytes(call, split, row_count);
  if (reply_bytes > shape.reply_bytes_max) return false;
  frame.reply_bytes = static_cast<uint32_t>(reply_bytes);
  return FrameFits(call, frame, /*part_count=*/1, shape);
}

uint64_t PartialBytes(const RouteCall& call, const PlannedSplit& split, uint32_t row_count) {
  return uint64_t{split.node_count} *
         LayOutPartial(row_count, call.geometry().d_v, call.wire == PartialDtype::kF32).total_bytes;
}

bool FrameFits(const RouteCall& call, const PlannedFrame& frame, uint32_t part_count,
               const LaneShape& shape) {
  return frame.row_count <= kQueryRowCountMax && part_count <= kSegmentCountMax &&
         frame.chunk_count <= kPieceCountMax && frame.index_count <= kIndexCountMax &&
         sizeof(ReplyHeader) + uint64_t{frame.reply_bytes} <= shape.reply_bytes_max &&
         LayOutAttend(part_count, frame.chunk_count, frame.stored_row_count, frame.index_count,
                      call.geometry().d_qk)
                 .total_bytes <= shape.request_bytes_max;
}

}  // namespace ckv
