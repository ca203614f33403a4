#include "server/batch/batch_plan.h"

#include <algorithm>

#include "proto/base/status.h"

namespace ckv {
namespace {

bool MergedHere(const RequestHeader& header) { return !PerPiece(header) && header.piece_count > 1; }

bool Alike(const AttentionShape& a, const AttentionShape& b) {
  return a.d_qk == b.d_qk && a.d_v == b.d_v && a.d_rope == b.d_rope && a.row_dtype == b.row_dtype &&
         a.softmax_scale == b.softmax_scale;
}

// The partial `index` of an attend reply, where the requester will read it.
PartialView PartialInReply(const ReadyRequest& ready, size_t index) {
  const bool f32 = WantsF32(ready.header);
  const PartialLayout layout =
      LayOutPartial(ready.header.row_count, ready.session->geometry.d_v, f32);
  std::byte* const base =
      ready.lane->reply(ready.slot).data() + sizeof(ReplyHeader) + index * layout.total_bytes;
  return {.o = base + layout.o,
          .m = reinterpret_cast<float*>(base + layout.m),
          .l = reinterpret_cast<float*>(base + layout.l),
          .dtype = f32 ? PartialDtype::kF32 : PartialDtype::kBf16};
}

}  // namespace

BatchPlan::BatchPlan(uint32_t request_count_max) : scratch_(new float[kScratchFloats]) {
  parts_.reserve(kBatchPieceCountMax);
  merges_.reserve(request_count_max);
  rounds_.pieces.reserve(kPieceCountMax);
  rounds_.parts.reserve(kPieceCountMax + 1);
}

bool BatchPlan::HasRoom(const RequestHeader& header, const Geometry& geometry) const {
  if (!rounds_.pieces.empty()) return false;
  if (group_count_ == 0) return true;
  if (piece_count_ + header.piece_count > kBatchPieceCountMax) return false;
  return !MergedHere(header) || PartialFloats(header.row_count, geometry.d_v) <=
                                    (kScratchFloats - scratch_used_) / header.piece_count;
}

bool BatchPlan::InRounds(const RequestHeader& header, const Geometry& geometry) const {
  return MergedHere(header) &&
         PartialFloats(header.row_count, geometry.d_v) > kScratchFloats / header.piece_count;
}

BatchPlan::Groups BatchPlan::Add(const ReadyRequest& ready, std::span<const Piece> pieces,
                                 uint64_t work) {
  const RequestHeader& header = ready.header;
  const Geometry& geometry = ready.session->geometry;
  const AttentionShape shape = AttentionShape::Of(geometry);
  Groups groups = {.exact = GroupFor(shape, ready.deadline())};
  work_ += work;
  piece_count_ += pieces.size();
  if (InRounds(header, geometry)) {
    rounds_.group = groups.exact;
    rounds_.out = PartialInReply(ready, 0);
    for (const Piece& piece : pieces) rounds_.pieces.push_back(piece.piece);
    return groups;
  }
  if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.shadow; })) {
    AttentionShape packed = shape;
    packed.row_dtype = RowDtype::kFp8DsMla;
    groups.shadow = GroupFor(packed, ready.deadline());
  }
  const bool merged = MergedHere(header);
  const size_t part_begin = parts_.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    AttentionPiece piece = pieces[i].piece;
    piece.out = merged ? TakeScratch(header.row_count, geometry.d_v) : PartialInReply(ready, i);
    if (merged) parts_.emplace_back(piece.out);
    groups_[pieces[i].shadow ? groups.shadow : groups.exact].pieces.push_back(piece);
  }
  if (!merged) return groups;
  merges_.push_back({.groups = groups,
                     .parts = std::span(parts_).subspan(part_begin),
                     .row_count = header.row_count,
                     .d_v = geometry.d_v,
                     .out = PartialInReply(ready, 0)});
  return groups;
}

size_t BatchPlan::GroupFor(const AttentionShape& shape, Instant deadline) {
  size_t index = 0;
  while (index < group_count_ && !Alike(groups_[index].shape, shape)) ++index;
  if (index == groups_.size()) groups_.emplace_back().pieces.reserve(kBatchPieceCountMax);
  Group& group = groups_[index];
  if (index == group_count_) {
    ++group_count_;
    group.shape = shape;
    group.deadline = Instant{};
    group.expired = false;
  }
  group.deadline = std::max(group.deadline, deadline);
  return index;
}

PartialView BatchPlan::TakeScratch(uint32_t row_count, uint32_t d_v) {
  const size_t floats = PartialFloats(row_count, d_v);
  CKV_CHECK(floats <= kScratchFloats - scratch_used_);
  float* const o = scratch_.get() + scratch_used_;
  scratch_used_ += floats;
  float* const m = o + size_t{row_count} * d_v;
  return {.o = o, .m = m, .l = m + row_count, .dtype = PartialDtype::kF32};
}

void BatchPlan::Clear() {
  for (Group& group : groups()) group.pieces.clear();
  group_count_ = 0;
  merges_.clear();
  parts_.clear();
  rounds_.pieces.clear();
  scratch_used_ = 0;
  work_ = 0;
  piece_count_ = 0;
}

}  // namespace ckv
