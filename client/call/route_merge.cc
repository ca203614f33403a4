// The gathering half of the router: own rows, and the blocks whose replies are all there, merged in
// the fixed tree.

#include <algorithm>

#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "client/call/route.h"
#include "proto/base/status.h"

namespace ckv {

// Attends the caller's rows on its thread, while the holders compute.
void Router::AttendOwn() {
  own_pieces_.clear();
  own_begin_.clear();
  const Geometry& geometry = call_->geometry();
  size_t floats = 0;
  for (const RouteSegment& segment : call_->segments) {
    own_begin_.push_back(static_cast<uint32_t>(own_pieces_.size()));
    for (const OwnRows& own : segment.own) {
      if (own.rows.count == 0) continue;
      AttentionPiece piece;
      piece.q = {call_->q.data + size_t{segment.row_begin} * call_->q.stride, segment.row_count,
                 call_->q.stride};
      piece.rows = own.rows;
      piece.row_limits = own.visible;
      own_pieces_.push_back(piece);
      floats += size_t{segment.row_count} * (geometry.d_v + 2);
    }
  }
  own_begin_.push_back(static_cast<uint32_t>(own_pieces_.size()));
  if (own_pieces_.empty()) return;
  own_.resize(floats);
  float* next = own_.data();
  for (AttentionPiece& piece : own_pieces_) {
    const size_t rows = piece.q.count;
    piece.out = {next, next + rows * geometry.d_v, next + rows * (geometry.d_v + 1),
                 PartialDtype::kF32};
    next += rows * (geometry.d_v + 2);
  }
  AttendPartials(AttentionShape::Of(geometry), own_pieces_, own_pool_);
  NoteTarget(KernelTargetIdOf(KernelTarget()));
}

absl::Status Router::MergeReady() {
  // If `target_` is the caller's own, not a byte of it is written before every reply is there.
  if (merge_late_ && ready_.size() < plan_.blocks().size()) return absl::OkStatus();
  // I1 before the first byte, too.
  if (merge_late_) CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
  for (const uint32_t block : ready_) CKV_RETURN_IF_ERROR(MergeBlock(block));
  ready_.clear();
  return absl::OkStatus();
}

absl::Status Router::MergeBlock(uint32_t block_ordinal) {
  const PlannedBlock& block = plan_.blocks()[block_ordinal];
  CKV_RETURN_IF_ERROR(coverage_.CheckBlock(block_ordinal));
  const uint32_t d_v = call_->geometry().d_v;
  parts_.clear();
  levels_.clear();
  CollectParts(block);
  AddOwnParts(block);
  const PartialView place = {static_cast<float*>(target_.o) + size_t{block.row_begin} * d_v,
                             target_.m + block.row_begin, target_.l + block.row_begin,
                             PartialDtype::kF32};
  MergeTree(parts_, levels_, block.row_count, d_v, place);
  CloseBlock(block_ordinal);
  return absl::OkStatus();
}

// Adds the block's partials in the order of the tree. It depends neither on the order in which
// replies came nor on which holder they came from (I2).
void Router::CollectParts(const PlannedBlock& block) {
  const PlannedUnit& unit = plan_.units()[block.unit];
  const uint32_t d_v = call_->geometry().d_v;
  const bool f32 = call_->wire == PartialDtype::kF32;
  for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
    const PlannedNode& node = plan_.nodes()[n];
    const PlannedPart& part = plan_.parts()[plan_.PartFor(block, node.share)];
    const PartialLayout layout = LayOutPartial(part.row_count, d_v, f32);
    const std::byte* const partial = frames_[part.frame].reply.data() + part.reply_offset +
                                     size_t{node.place} * layout.total_bytes;
    const size_t row = block.row_begin - part.row_begin;
    parts_.emplace_back(partial + layout.o + row * d_v * (f32 ? 4 : 2),
                        reinterpret_cast<const float*>(partial + layout.m) + row,
                        reinterpret_cast<const float*>(partial + layout.l) + row, call_->wire);
    levels_.push_back(node.level);
  }
}

// Own rows come last, one after another.
void Router::AddOwnParts(const PlannedBlock& block) {
  const uint32_t segment = plan_.units()[block.unit].segment;
  const uint32_t d_v = call_->geometry().d_v;
  const size_t row = block.row_begin - call_->segments[segment].row_begin;
  for (uint32_t i = own_begin_[segment]; i < own_begin_[segment + 1]; ++i) {
    const PartialView& own = own_pieces_[i].out;
    parts_.emplace_back(static_cast<const float*>(own.o) + row * d_v, own.m + row, own.l + row,
                        PartialDtype::kF32);
    levels_.push_back(kTreeLevelMax);
  }
}

// Gives back the slots of the frames whose blocks are all merged.
void Router::CloseBlock(uint32_t block_ordinal) {
  const PlannedBlock& block = plan_.blocks()[block_ordinal];
  const PlannedUnit& unit = plan_.units()[block.unit];
  for (uint32_t share = unit.share_begin; share < unit.share_end; ++share) {
    const uint32_t frame_ordinal = plan_.parts()[plan_.PartFor(block, share)].frame;
    Frame& frame = frames_[frame_ordinal];
    if (--frame.open_block_count > 0) continue;
    if (frame.state == FrameState::kArrived)
      exchange_.Release(plan_.frames()[frame_ordinal].line, frame.slot);
    if (frame.state == FrameState::kCopied) free_copies_.push_back(frame.copy);
  }
  merged_block_[block_ordinal] = true;
  ++merged_count_;
  while (first_open_ < merged_block_.size() && merged_block_[first_open_]) ++first_open_;
}

}  // namespace ckv
