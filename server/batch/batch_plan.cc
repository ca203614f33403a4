// Collects pieces and merges of requests. Add, for one request: finds or makes the group of its
// shape; if its partials fit the scratch, each merged partial gets a place there (AddPartial), else
// they are merged in rounds of few rows (AddRound). A partial of one piece is written straight to
// the reply. LiveMerges leaves out requests that expired.

#include "server/batch/batch_plan.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv {
namespace {

bool Alike(const AttentionShape& a, const AttentionShape& b) {
  return a.d_qk == b.d_qk && a.d_v == b.d_v && a.d_rope == b.d_rope && a.row_dtype == b.row_dtype &&
         a.softmax_scale == b.softmax_scale;
}

// The partials of an attend reply, one after another, where the requester will read them.
class PartialsInReply {
 public:
  PartialsInReply(const ReadyRequest& ready, const Geometry& geometry)
      : f32_(WantsF32(ready.header)),
        d_v_(geometry.d_v),
        memory_(ready.slot_memory()),
        next_(ready.lane->reply(ready.slot).data() + sizeof(ReplyHeader)) {}

  PartialView Next(uint32_t row_count) {
    const PartialLayout layout = LayOutPartial(row_count, d_v_, f32_);
    std::byte* const base = next_;
    next_ += layout.total_bytes;
    return {.o = base + layout.o,
            .m = reinterpret_cast<float*>(base + layout.m),
            .l = reinterpret_cast<float*>(base + layout.l),
            .dtype = f32_ ? PartialDtype::kF32 : PartialDtype::kBf16,
            .memory = memory_};
  }

 private:
  const bool f32_;
  const uint32_t d_v_;
  const MemoryKind memory_;
  std::byte* next_;
};

// Calls `visit(segment, piece_begin, piece_end)` for every partial of the request, in the order of
// the reply.
template <typename Visit>
void ForEachPartial(const AttendRequest& request, const Visit& visit) {
  for (const AttendSegment& segment : request.segments) {
    for (uint32_t begin = segment.piece_begin, end = begin; begin < segment.piece_end;
         begin = end) {
      while (end < segment.piece_end &&
             request.pieces[end].partial == request.pieces[begin].partial) {
        ++end;
      }
      visit(segment, begin, end);
    }
  }
}

// Joins the piece with the one before it in its partial.
uint8_t LevelOf(const AttendRequest& request, size_t piece, size_t piece_begin) {
  if (piece == piece_begin) return 0;
  return TreeLevel(request.pieces[piece - 1].ordinal, request.pieces[piece].ordinal);
}

}  // namespace

BatchPlan::BatchPlan(BackendMemory scratch) : scratch_(std::move(scratch)) {
  CKV_CHECK(scratch_.size() >= kMergeScratchBytes);
  parts_.reserve(kBatchPieceCountMax);
  merges_.reserve(kBatchPieceCountMax / 2);  // each has two pieces at least
  merge_groups_.reserve(kBatchPieceCountMax / 2);
  levels_.reserve(kBatchPieceCountMax);
  rounds_.partials.reserve(kPieceCountMax);
  rounds_.pieces.reserve(kPieceCountMax);
  rounds_.levels.reserve(kPieceCountMax);
  rounds_.parts.reserve(kPieceCountMax);
}

size_t BatchPlan::MergedFloats(const AttendRequest& request, const Geometry& geometry) {
  size_t floats = 0;
  ForEachPartial(request, [&](const AttendSegment& segment, uint32_t begin, uint32_t end) {
    if (end - begin > 1) floats += (end - begin) * LineFloats(segment.row_count, geometry.d_v);
  });
  return floats;
}

bool BatchPlan::HasRoom(const AttendRequest& request, const Geometry& geometry) const {
  if (!rounds_.partials.empty()) return false;
  if (group_count_ == 0) return true;
  return piece_count_ + request.pieces.size() <= kBatchPieceCountMax &&
         MergedFloats(request, geometry) <= kScratchFloats - scratch_used_;
}

bool BatchPlan::InRounds(const AttendRequest& request, const Geometry& geometry) {
  return MergedFloats(request, geometry) > kScratchFloats;
}

BatchPlan::Groups BatchPlan::Add(const ReadyRequest& ready, const AttendRequest& request,
                                 std::span<const Piece> pieces, uint64_t work) {
  const Geometry& geometry = ready.session->geometry;
  const AttentionShape shape = AttentionShape::Of(geometry);
  Groups groups = {.exact = GroupFor(shape, ready.deadline())};
  work_ += work;
  piece_count_ += pieces.size();
  PartialsInReply reply(ready, geometry);
  if (InRounds(request, geometry)) {
    rounds_.group = groups.exact;
    ForEachPartial(request, [&](const AttendSegment& segment, uint32_t begin, uint32_t end) {
      AddRound(request, pieces, begin, end, reply.Next(segment.row_count));
    });
    return groups;
  }
  if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.shadow; })) {
    AttentionShape packed = shape;
    packed.row_dtype = RowDtype::kFp8DsMla;
    groups.shadow = GroupFor(packed, ready.deadline());
  }
  ForEachPartial(request, [&](const AttendSegment& segment, uint32_t begin, uint32_t end) {
    AddPartial(request, pieces, begin, end, groups, geometry.d_v, reply.Next(segment.row_count));
  });
  return groups;
}

void BatchPlan::AddPartial(const AttendRequest& request, std::span<const Piece> pieces,
                           size_t piece_begin, size_t piece_end, const Groups& groups, uint32_t d_v,
                           const PartialView& out) {
  const bool merged = piece_end - piece_begin > 1;
  const size_t part_begin = parts_.size();
  for (size_t i = piece_begin; i < piece_end; ++i) {
    AttentionPiece piece = pieces[i].piece;
    piece.out = merged ? TakeScratch(piece.q.count, d_v) : out;
    if (merged) {
      parts_.emplace_back(piece.out);
      levels_.push_back(LevelOf(request, i, piece_begin));
    }
    groups_[pieces[i].shadow ? groups.shadow : groups.exact].pieces.push_back(piece);
  }
  if (!merged) return;
  merge_groups_.push_back(groups);
  merges_.push_back({.order = MergeOrder::kTree,
                     .parts = std::span(parts_).subspan(part_begin),
                     .levels = std::span(levels_).subspan(part_begin),
                     .row_count = pieces[piece_begin].piece.q.count,
                     .d_v = d_v,
                     .out = out});
}

void BatchPlan::AddRound(const AttendRequest& request, std::span<const Piece> pieces,
                         size_t piece_begin, size_t piece_end, const PartialView& out) {
  const size_t begin = rounds_.pieces.size();
  for (size_t i = piece_begin; i < piece_end; ++i) {
    rounds_.pieces.push_back(pieces[i].piece);
    rounds_.levels.push_back(LevelOf(request, i, piece_begin));
  }
  rounds_.partials.push_back({begin, rounds_.pieces.size(), out});
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
  const size_t floats = LineFloats(row_count, d_v);
  CKV_CHECK(floats <= kScratchFloats - scratch_used_);
  const size_t begin = std::exchange(scratch_used_, scratch_used_ + floats);
  return PartialIn(scratch_, begin, row_count, d_v);
}

std::span<const MergeJob> BatchPlan::LiveMerges() {
  size_t live = 0;
  for (size_t i = 0; i < merges_.size(); ++i) {
    if (Expired(merge_groups_[i])) continue;
    merges_[live] = merges_[i];
    merge_groups_[live++] = merge_groups_[i];
  }
  merges_.resize(live);
  merge_groups_.resize(live);
  return merges_;
}

void BatchPlan::Clear() {
  for (Group& group : groups()) group.pieces.clear();
  group_count_ = 0;
  merges_.clear();
  merge_groups_.clear();
  parts_.clear();
  levels_.clear();
  rounds_.partials.clear();
  rounds_.pieces.clear();
  rounds_.levels.clear();
  scratch_used_ = 0;
  work_ = 0;
  piece_count_ = 0;
}

}  // namespace ckv
