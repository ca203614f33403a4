#include "client/plan/frame_buffers.h"

#include <algorithm>

#include "transport/wire_attend.h"

namespace ckv {

const ChosenCandidates& CandidatesAt(const RouteCall& call, const PlannedUnit& unit,
                                     const AttendedChunk& chunk) {
  const RowChoiceState& choice = *call.segments[unit.segment].choice;
  return choice.candidates(unit.token, choice.source_of(chunk.context_index));
}

bool AddToSplit(const RouteCall& call, const PlannedUnit& unit,
                std::span<const AttendedChunk> attended, PlannedSplit& split) {
  const std::span<const ContextChunk> chunks = call.segments[unit.segment].context->chunks();
  ++split.node_count;
  split.chunk_count += static_cast<uint32_t>(attended.size());
  if (unit.chosen) {
    split.piece_count += attended.back().run - attended.front().run + 1;
    split.chosen_count = CandidatesAt(call, unit, attended.front()).count;
  } else {
    split.piece_count += static_cast<uint32_t>(attended.size());
  }
  if (unit.limited) {
    for (const AttendedChunk& chunk : attended) split.index_count += chunk.k;
  } else if (!unit.chosen && attended.front().index_begin != kDense) {
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

void AddPieces(const PlannedSplit& split, PlannedFrame& frame) {
  frame.piece_count += split.piece_count;
  frame.index_count += split.index_count;
  if (split.chosen_count == 0) return;
  frame.chosen_count += split.chosen_count;
  frame.chosen_chunk_count += split.chunk_count;
  frame.chosen_piece_count += std::min(split.chosen_count + split.node_count, split.chunk_count);
}

bool SplitFits(const RouteCall& call, const PlannedSplit& split, const LaneShape& shape,
               uint32_t row_count) {
  PlannedFrame frame;
  frame.row_count = row_count;
  frame.stored_row_count = uint64_t{split.copy_count} * row_count;
  AddPieces(split, frame);
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
         frame.piece_count <= kPieceCountMax && frame.index_count <= kIndexCountMax &&
         frame.chosen_piece_count <= kPieceCountMax && frame.chosen_count <= kChosenRowCountMax &&
         frame.chosen_chunk_count <= kChosenChunkCountMax &&
         sizeof(ReplyHeader) + uint64_t{frame.reply_bytes} <= shape.reply_bytes_max &&
         LayOutAttend(part_count, frame.piece_count, frame.stored_row_count, frame.index_count,
                      call.geometry().d_qk)
                 .total_bytes <= shape.request_bytes_max;
}

}  // namespace ckv
