// The gathering half of the router: attends local rows, and merges each block in the fixed tree
// once all its replies have arrived.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/call/route.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Parts that one operation merges, so that a call of many blocks needs no list of all their parts:
// 200 KB. A block has at most some thousands.
constexpr size_t kMergedAtOnce = 4096;
// Memory for the partials of locally cached chunks, and for the queries rotated for them: 128 heads
// over 256 chunks. Cached chunks beyond it are routed.
constexpr uint64_t kNearBytesMax = uint64_t{72} << 20;

}  // namespace

absl::Status Router::StartCoverage() {
  const std::span<const PlannedBlock> blocks = plan_.blocks();
  missing_.assign(blocks.size(), 0);
  merged_block_.assign(blocks.size(), false);
  ready_.clear();
  merged_count_ = first_open_ = 0;
  coverage_.Begin();
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const PlannedUnit& unit = plan_.units()[blocks[i].unit];
    missing_[i] = unit.share_end - unit.share_begin;
    // The locally cached pieces count as one more share.
    coverage_.AddBlock(missing_[i] + (unit.near_count > 0 ? 1 : 0),
                       unit.piece_end - unit.piece_begin);
    if (missing_[i] == 0) ready_.push_back(i);
  }
  return absl::OkStatus();
}

// Chooses where blocks are merged to: the caller's memory, or the router's.
absl::Status Router::MakeTarget() {
  if (target_.memory != call_->out_memory) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: the answer's place is in %s memory, but the call named %s memory",
                        MemoryKindName(target_.memory), MemoryKindName(call_->out_memory)));
  }
  CKV_RETURN_IF_ERROR(ComeAfter(target_.after));
  if (merge_late_) return absl::OkStatus();
  const uint32_t rows = call_->q.count, d_v = call_->geometry().d_v;
  CKV_RETURN_IF_ERROR(backend_.Grow(merged_, PartialFloats(rows, d_v) * sizeof(float)));
  target_ = PartialIn(merged_, 0, rows, d_v);
  return absl::OkStatus();
}

// A merge of one part is a copy of its bits, whatever memory they are in.
absl::Status Router::CopyMerged(const PartialView& out) {
  const ConstPartialView whole = target_;
  MergeJob job;
  job.order = MergeOrder::kInTurn;
  job.parts = {&whole, 1};
  job.row_count = call_->q.count;
  job.d_v = call_->geometry().d_v;
  job.out = out;
  job.out.after = nullptr;  // as in MakeTarget
  return backend_.Merge({&job, 1}, stream_);
}

// Reserves memory for one more locally cached piece. Returns false if there is not enough.
bool Router::TakeHere(const PlannedUnit& unit, const ContextState& context, uint32_t rotation) {
  const Geometry& geometry = context.geometry();
  uint64_t row_bytes = (geometry.d_v + 2) * sizeof(float);
  if (!context.rotations()[rotation].is_identity()) row_bytes += geometry.query_row_bytes();
  const uint64_t bytes = near_bytes_ + unit.row_count * row_bytes;
  if (bytes > kNearBytesMax) return false;
  near_bytes_ = bytes;
  return true;
}

void Router::TrimHere() {
  if (here_.size() > kNearBytesMax) here_ = BackendMemory();
  if (near_q_.size() > kNearBytesMax) near_q_ = BackendMemory();
}

// Attends local rows on the caller's thread, while the holders compute.
absl::Status Router::AttendHere() {
  here_pieces_.clear();
  AddOwnPieces();
  CKV_RETURN_IF_ERROR(AddNearPieces());
  if (here_pieces_.empty()) return absl::OkStatus();
  const Geometry& geometry = call_->geometry();
  size_t floats = 0;
  for (const AttentionPiece& piece : here_pieces_)
    floats += PartialFloats(piece.q.count, geometry.d_v);
  CKV_RETURN_IF_ERROR(backend_.Grow(here_, floats * sizeof(float)));
  size_t next = 0;
  for (AttentionPiece& piece : here_pieces_) {
    piece.out = PartialIn(here_, next, piece.q.count, geometry.d_v);
    next += PartialFloats(piece.q.count, geometry.d_v);
  }
  PlaceAnswers();
  const double rows = call_->q.count;
  const double tokens = double(near_pairs_ + OwnPairs()) / rows;
  if (live_here_ != nullptr) here_us_ = live_here_->ExpectedUs(geometry.widths(), rows, tokens);
  const bool learns = LearnsHere();
  // The stream was used to rotate queries.
  if (learns && call_->polled_at_once) CKV_RETURN_IF_ERROR(stream_.Wait());
  const bool idle = stream_.Ready();
  const Instant begin = clock_->Now();
  CKV_RETURN_IF_ERROR(backend_.AttendPartials(AttentionShape::Of(geometry), here_pieces_, stream_));
  // A caller that polls sees the end too late, unless the work is done by now.
  if (learns && idle && (call_->polled_at_once || stream_.Ready())) {
    CKV_RETURN_IF_ERROR(stream_.Wait());
    live_here_->Observe(geometry.widths(), rows, tokens,
                        double((clock_->Now() - begin).count()) / 1e3);
  }
  NoteTarget(KernelTargetIdOf(backend_.kernel_target()));
  if (spans_.on()) spans_.Add("attend here", begin, clock_->Now());
  return CoverNear();
}

// Whether the time of the attend is the kernel's. It is not if a stream is still producing what the
// kernel reads or writes.
bool Router::LearnsHere() const {
  if (live_here_ == nullptr || near_pairs_ == 0 || !producers_ready_) return false;
  return std::all_of(here_pieces_.begin(), here_pieces_.end(), [](const AttentionPiece& piece) {
    return piece.rows.after == nullptr || piece.rows.after->Ready();
  });
}

// If nothing is routed, nothing can fail any more. The answer of a unit with one cached chunk is
// then written in place, which saves a copy: 3 us for 16 rows.
bool Router::IsInPlace(const PlannedUnit& unit) const {
  return merge_late_ && lines_.empty() && unit.node_end - unit.node_begin == 1 &&
         own_begin_[unit.segment] == own_begin_[unit.segment + 1];
}

void Router::PlaceAnswers() {
  for (const PlannedUnit& unit : plan_.units()) {
    if (!IsInPlace(unit)) continue;
    const PlannedNode& node = plan_.nodes()[unit.node_begin];
    here_pieces_[own_begin_.back() + node.place].out = TargetRows(unit.row_begin);
  }
}

PartialView Router::TargetRows(uint32_t row) const {
  return target_.From(row, call_->geometry().d_v);
}

uint64_t Router::OwnPairs() const {
  uint64_t pairs = 0;
  for (const RouteSegment& segment : call_->segments) {
    for (const OwnRows& own : segment.own) {
      if (own.visible == nullptr) {
        pairs += uint64_t{segment.row_count} * own.rows.count;
      } else {
        for (uint32_t i = 0; i < segment.row_count; ++i)
          pairs += std::min(own.visible[i], own.rows.count);
      }
    }
  }
  return pairs;
}

void Router::CountPairs(AttendReport& report) const {
  for (const PlannedUnit& unit : plan_.units()) {
    const RouteSegment& segment = call_->segments[unit.segment];
    for (const PlannedPiece& piece : plan_.PiecesOf(unit)) {
      const uint32_t rows = piece.index_begin == kDense
                                ? segment.context->chunks()[piece.chunk].token_count
                                : piece.k;
      (piece.line == kNearLine ? report.near_pairs : report.routed_pairs) +=
          uint64_t{unit.row_count} * rows;
    }
  }
  report.own_pairs += OwnPairs();
}

void Router::CountCall(Duration elapsed, Duration lost) {
  if (counters_ == nullptr || call_->is_trial) return;
  const bool asked =
      std::any_of(flows().begin(), flows().end(), [](const Flow& flow) { return flow.asked; });
  (asked ? counters_->route : counters_->near).Add(elapsed + lost);
  if (lost > Duration(0))
    counters_->lost_ns.fetch_add(static_cast<uint64_t>(lost.count()), std::memory_order_relaxed);
  for (const RouteSegment& segment : call_->segments) {
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      counters_->corpora.Count(*corpus, segment.row_count);
  }
}

void Router::AddOwnPieces() {
  own_begin_.clear();
  for (const RouteSegment& segment : call_->segments) {
    own_begin_.push_back(static_cast<uint32_t>(here_pieces_.size()));
    for (const OwnRows& own : segment.own) {
      if (own.rows.count == 0) continue;
      AttentionPiece piece;
      piece.q = call_->q.Rows(segment.row_begin, segment.row_count);
      piece.rows = own.rows;
      if (WasWaitedFor(own.rows.after)) piece.rows.after = nullptr;
      piece.row_limits = own.visible;
      piece.grade = GradeOf(call_->grade, call_->wire);
      here_pieces_.push_back(piece);
    }
  }
  own_begin_.push_back(static_cast<uint32_t>(here_pieces_.size()));
}

// Each piece is a leaf of the tree, as at a holder, so that the bits are a holder's.
absl::Status Router::AddNearPieces() {
  near_copies_.clear();
  if (plan_.near_count() == 0) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(ReserveCopies());
  const Geometry& geometry = call_->geometry();
  const auto row_bytes = static_cast<uint32_t>(geometry.row_bytes());
  for (uint32_t u = 0; u < plan_.units().size(); ++u) {
    const PlannedUnit& unit = plan_.units()[u];
    if (unit.near_count == 0) continue;
    const RouteSegment& segment = call_->segments[unit.segment];
    for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
      if (plan_.nodes()[n].share != PlannedNode::kNear) continue;
      const PlannedPiece& planned = plan_.pieces()[plan_.nodes()[n].piece_begin];
      const ContextChunk& chunk = segment.context->chunks()[planned.chunk];
      AttentionPiece piece;
      CKV_ASSIGN_OR_RETURN(piece.q, QueriesOf(u, chunk.rotation));
      piece.rows = {(*segment.near)[planned.chunk]->layer(call_->layer).data(), chunk.token_count,
                    row_bytes};
      piece.grade = GradeOf(call_->grade, call_->wire);
      if (planned.index_begin != kDense)
        piece.selection = {plan_.IndicesOf(planned).data(), planned.k, unit.row_count};
      here_pieces_.push_back(piece);
    }
  }
  return absl::OkStatus();
}

// Reserves memory for the copies that QueriesOf makes, because pieces point into it.
absl::Status Router::ReserveCopies() {
  size_t bytes = 0;
  for (const PlannedUnit& unit : plan_.units()) {
    if (unit.near_count == 0) continue;
    const size_t rotations = call_->segments[unit.segment].context->rotations().size();
    bytes += std::min<size_t>(rotations, unit.near_count) * unit.row_count *
             call_->geometry().query_row_bytes();
  }
  return backend_.Grow(near_q_, bytes);
}

// Returns the query rows of a unit, rotated for a chunk with this rotation.
absl::StatusOr<QueryView> Router::QueriesOf(uint32_t unit_ordinal, uint32_t rotation) {
  const PlannedUnit& unit = plan_.units()[unit_ordinal];
  const ContextState& context = *call_->segments[unit.segment].context;
  const QueryView q = call_->q.Rows(unit.row_begin, unit.row_count);
  if (context.rotations()[rotation].is_identity()) return q;
  const Geometry& geometry = call_->geometry();
  const auto copied = [&](size_t begin) -> QueryView {
    return {reinterpret_cast<const uint16_t*>(near_q_.data() + begin), unit.row_count,
            geometry.d_qk, near_q_.kind()};
  };
  size_t end = 0;
  for (auto copy = near_copies_.rbegin(); copy != near_copies_.rend(); ++copy) {
    if (copy->unit != unit_ordinal) break;
    if (copy->rotation == rotation) return copied(copy->begin);
  }
  if (!near_copies_.empty()) end = near_copies_.back().end;
  const uint32_t row_bytes = geometry.query_row_bytes();
  CKV_RETURN_IF_ERROR(backend_.Rotate(context.rotations()[rotation], q.Bytes(), row_bytes,
                                      {near_q_.data() + end, near_q_.kind()}, stream_));
  near_copies_.push_back({unit_ordinal, rotation, end, end + size_t{unit.row_count} * row_bytes});
  return copied(end);
}

// Locally cached pieces count once, too (I1).
absl::Status Router::CoverNear() {
  if (plan_.near_count() == 0) return absl::OkStatus();
  for (uint32_t block = 0; block < plan_.blocks().size(); ++block) {
    const PlannedUnit& unit = plan_.units()[plan_.blocks()[block].unit];
    if (unit.near_count == 0) continue;
    CKV_RETURN_IF_ERROR(coverage_.Cover(block, unit.share_end - unit.share_begin, unit.near_count));
  }
  return absl::OkStatus();
}

// Records the parts of an arrived frame. Each part counts once for each of its blocks (I1).
absl::Status Router::TakeParts(uint32_t frame_ordinal) {
  Frame& frame = frames_[frame_ordinal];
  frame.open_block_count = 0;
  for (const PlannedPart& part : plan_.PartsOf(plan_.frames()[frame_ordinal])) {
    const PlannedShare& share = plan_.shares()[part.share];
    for (uint32_t block = part.block_begin; block < part.block_end; ++block) {
      const uint32_t place = part.share - plan_.units()[share.unit].share_begin;
      CKV_RETURN_IF_ERROR(coverage_.Cover(block, place, share.piece_count));
      if (--missing_[block] == 0) ready_.push_back(block);
      ++frame.open_block_count;
    }
  }
  return absl::OkStatus();
}

absl::Status Router::MergeReady() {
  CKV_RETURN_IF_ERROR(CloseMerged());
  if (merging_count_ > 0) return absl::OkStatus();
  // If `target_` is the caller's memory, no byte of it is written before all replies have arrived.
  if (merge_late_ && ready_.size() < plan_.blocks().size()) return absl::OkStatus();
  // Checks I1 before the first byte, too.
  if (merge_late_) CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
  if (ready_.empty()) return absl::OkStatus();
  merge_begin_ = spans_.on() ? clock_->Now() : Instant{};
  CKV_RETURN_IF_ERROR(MergeBlocks(ready_));
  merging_count_ = static_cast<uint32_t>(ready_.size());
  return CloseMerged();
}

// Releases slots once nothing reads them any more.
absl::Status Router::CloseMerged() {
  if (merging_count_ == 0 || !stream_.Ready()) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(stream_.Wait());
  if (spans_.on()) spans_.Add("merge", merge_begin_, clock_->Now());
  for (uint32_t i = 0; i < merging_count_; ++i) CloseBlock(ready_[i]);
  ready_.erase(ready_.begin(), ready_.begin() + merging_count_);
  merging_count_ = 0;
  return absl::OkStatus();
}

absl::Status Router::MergeBlocks(std::span<const uint32_t> blocks) {
  for (size_t next = 0; next < blocks.size();) {
    merges_.clear();
    part_ends_.clear();
    parts_.clear();
    levels_.clear();
    while (next < blocks.size() && parts_.size() < kMergedAtOnce)
      CKV_RETURN_IF_ERROR(AddMerge(blocks[next++]));
    if (merges_.empty()) continue;
    // Set only now, because the lists moved as they grew.
    for (size_t i = 0, begin = 0; i < merges_.size(); begin = part_ends_[i++]) {
      merges_[i].parts = std::span(parts_).subspan(begin, part_ends_[i] - begin);
      merges_[i].levels = std::span(levels_).subspan(begin, part_ends_[i] - begin);
    }
    CKV_RETURN_IF_ERROR(backend_.Merge(merges_, stream_));
  }
  return absl::OkStatus();
}

absl::Status Router::AddMerge(uint32_t block_ordinal) {
  const PlannedBlock& block = plan_.blocks()[block_ordinal];
  CKV_RETURN_IF_ERROR(coverage_.CheckBlock(block_ordinal));
  if (IsInPlace(plan_.units()[block.unit])) return absl::OkStatus();
  CollectParts(block);
  AddOwnParts(block);
  part_ends_.push_back(parts_.size());
  MergeJob& merge = merges_.emplace_back();
  merge.row_count = block.row_count;
  merge.d_v = call_->geometry().d_v;
  merge.out = TargetRows(block.row_begin);
  return absl::OkStatus();
}

// Adds the block's partials in the order of the tree. This order depends neither on when replies
// arrived nor on which holders sent them (I2).
void Router::CollectParts(const PlannedBlock& block) {
  const PlannedUnit& unit = plan_.units()[block.unit];
  const uint32_t d_v = call_->geometry().d_v;
  const bool f32 = call_->wire == PartialDtype::kF32;
  for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
    const PlannedNode& node = plan_.nodes()[n];
    levels_.push_back(node.level);
    if (node.share == PlannedNode::kNear) {
      AddHerePart(here_pieces_[own_begin_.back() + node.place].out,
                  block.row_begin - unit.row_begin);
      continue;
    }
    const PlannedPart& part = plan_.parts()[plan_.PartFor(block, node.share)];
    const PartialLayout layout = LayOutPartial(part.row_count, d_v, f32);
    const std::byte* const partial = frames_[part.frame].reply.data() + part.reply_offset +
                                     size_t{node.place} * layout.total_bytes;
    const size_t row = block.row_begin - part.row_begin;
    parts_.emplace_back(partial + layout.o + row * d_v * (f32 ? 4 : 2),
                        reinterpret_cast<const float*>(partial + layout.m) + row,
                        reinterpret_cast<const float*>(partial + layout.l) + row, call_->wire,
                        frames_[part.frame].memory);
  }
}

// Adds the caller's own rows last, one after another.
void Router::AddOwnParts(const PlannedBlock& block) {
  const uint32_t segment = plan_.units()[block.unit].segment;
  const size_t row = block.row_begin - call_->segments[segment].row_begin;
  for (uint32_t i = own_begin_[segment]; i < own_begin_[segment + 1]; ++i) {
    levels_.push_back(kTreeLevelMax);
    AddHerePart(here_pieces_[i].out, row);
  }
}

// Adds a partial that was made here, from one of its rows on.
void Router::AddHerePart(const PartialView& made, size_t row) {
  parts_.emplace_back(made.From(row, call_->geometry().d_v));
}

// Releases the slots of the frames whose blocks are all merged.
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
