// Merges the partials of one attend, block by block, on the thread that advances the call:
//   Begin        counts the parts that each block misses, one of each KV split
//   Take         subtracts the parts of a reply. A block that misses none is ready
//   Merge        puts the ready blocks on the stream. Partials are in tree order, own rows last. If
//                the output is the caller's memory (`late`), waits until every block is ready
//   CloseMerged  once the stream is done, lists the frames that no open block needs
//   End          checks that every partial counted once (I1), and unless `late` copies the result

#include "client/attend/block_merger.h"

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// Parts that one operation merges, so that a call of many blocks needs no list of all their parts:
// 200 KB. A block has at most some thousands.
constexpr size_t kMergedAtOnce = 4096;
// A call that merges replies as they arrive first keeps its result in the merger's memory. If that
// is larger than this, it is freed after the call.
constexpr size_t kMergedBytesKept = size_t{16} << 20;

}  // namespace

BlockMerger::BlockMerger(const PlannedCall* planned, const LocalAttend* local,
                         ComputeStream* stream, Clock* clock, CallSpans* spans)
    : planned_(*planned),
      local_(*local),
      stream_(*stream),
      backend_(stream->backend()),
      clock_(clock),
      spans_(*spans) {}

void BlockMerger::Begin(bool late) {
  const AttendPlan& plan = planned_.plan;
  const std::span<const PlannedBlock> blocks = plan.blocks();
  late_ = late;
  replies_.assign(plan.frames().size(), Reply{});
  done_frames_.clear();
  missing_.assign(blocks.size(), 0);
  merged_block_.assign(blocks.size(), false);
  ready_.clear();
  merging_count_ = merged_count_ = first_open_ = 0;
  coverage_.Begin();
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const PlannedUnit& unit = plan.units()[blocks[i].unit];
    missing_[i] = unit.split_end - unit.split_begin;
    // The locally cached chunks count as one more split.
    coverage_.AddBlock(missing_[i] + (unit.cached_count > 0 ? 1 : 0),
                       unit.attended_end - unit.attended_begin);
    if (missing_[i] == 0) ready_.push_back(i);
  }
}

absl::Status BlockMerger::SetTarget(const PartialView& out, StreamOrder& order) {
  const RouteCall& call = planned_.call;
  target_ = out;
  if (target_.memory != call.out_memory) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: the answer's place is in %s memory, but the call named %s memory",
                        MemoryKindName(target_.memory), MemoryKindName(call.out_memory)));
  }
  CKV_RETURN_IF_ERROR(order.Follow(target_.after));
  if (late_) return absl::OkStatus();
  const uint32_t rows = call.q.count, d_v = call.geometry().d_v;
  CKV_RETURN_IF_ERROR(backend_.Grow(merged_, PartialFloats(rows, d_v) * sizeof(float)));
  target_ = PartialIn(merged_, 0, rows, d_v);
  return absl::OkStatus();
}

// Locally cached chunks count once, too (I1).
absl::Status BlockMerger::CoverLocal() {
  const AttendPlan& plan = planned_.plan;
  if (plan.cached_count() == 0) return absl::OkStatus();
  for (uint32_t block = 0; block < plan.blocks().size(); ++block) {
    const PlannedUnit& unit = plan.units()[plan.blocks()[block].unit];
    if (unit.cached_count == 0) continue;
    CKV_RETURN_IF_ERROR(
        coverage_.Cover(block, unit.split_end - unit.split_begin, unit.cached_count));
  }
  return absl::OkStatus();
}

absl::Status BlockMerger::Take(uint32_t frame, std::span<const std::byte> body, MemoryKind memory) {
  const AttendPlan& plan = planned_.plan;
  Reply& reply = replies_[frame];
  reply = {body, memory, /*open_block_count=*/0};
  for (const PlannedPart& part : plan.PartsOf(plan.frames()[frame])) {
    const PlannedSplit& split = plan.splits()[part.split];
    for (uint32_t block = part.block_begin; block < part.block_end; ++block) {
      const uint32_t place = part.split - plan.units()[split.unit].split_begin;
      const absl::Status covered = coverage_.Cover(block, place, split.chunk_count);
      if (!CKV_PLANTED_BUG("duplicate")) CKV_RETURN_IF_ERROR(covered);
      if (--missing_[block] == 0) ready_.push_back(block);
      ++reply.open_block_count;
    }
  }
  return absl::OkStatus();
}

absl::Status BlockMerger::Merge() {
  done_frames_.clear();
  CKV_RETURN_IF_ERROR(CloseMerged());
  if (merging()) return absl::OkStatus();
  // If `target_` is the caller's memory, no byte of it is written before all replies have arrived.
  if (late_ && ready_.size() < missing_.size()) return absl::OkStatus();
  // Checks I1 before the first byte, too.
  if (late_) CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
  if (ready_.empty()) return absl::OkStatus();
  merge_begin_ = spans_.on() ? clock_->Now() : Instant{};
  CKV_RETURN_IF_ERROR(MergeBlocks(ready_));
  merging_count_ = static_cast<uint32_t>(ready_.size());
  return CloseMerged();
}

// Closes the merged blocks once the stream is done with them.
absl::Status BlockMerger::CloseMerged() {
  if (!merging() || !stream_.Ready()) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(stream_.Wait());
  if (spans_.on()) spans_.Add("merge", merge_begin_, clock_->Now());
  for (uint32_t i = 0; i < merging_count_; ++i) CloseBlock(ready_[i]);
  ready_.erase(ready_.begin(), ready_.begin() + merging_count_);
  merging_count_ = 0;
  return absl::OkStatus();
}

absl::Status BlockMerger::MergeBlocks(std::span<const uint32_t> blocks) {
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

absl::Status BlockMerger::AddMerge(uint32_t block_ordinal) {
  const PlannedBlock& block = planned_.plan.blocks()[block_ordinal];
  CKV_RETURN_IF_ERROR(coverage_.CheckBlock(block_ordinal));
  if (local_.IsInPlace(planned_.plan.units()[block.unit])) return absl::OkStatus();
  CollectParts(block);
  AddOwnParts(block);
  part_ends_.push_back(parts_.size());
  MergeJob& merge = merges_.emplace_back();
  merge.row_count = block.row_count;
  merge.d_v = planned_.call.geometry().d_v;
  merge.out = target_.From(block.row_begin, merge.d_v);
  return absl::OkStatus();
}

// Adds the block's partials in the order of the tree.
void BlockMerger::CollectParts(const PlannedBlock& block) {
  const AttendPlan& plan = planned_.plan;
  const PlannedUnit& unit = plan.units()[block.unit];
  const uint32_t d_v = planned_.call.geometry().d_v;
  const bool f32 = planned_.call.wire == PartialDtype::kF32;
  for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
    const PlannedNode& node = plan.nodes()[n];
    levels_.push_back(node.level);
    if (node.split == PlannedNode::kCached) {
      AddLocalPart(local_.CachedPartial(node), block.row_begin - unit.row_begin);
      continue;
    }
    const PlannedPart& part = plan.parts()[plan.PartFor(block, node.split)];
    const Reply& reply = replies_[part.frame];
    const PartialLayout layout = LayOutPartial(part.row_count, d_v, f32);
    const std::byte* const partial =
        reply.body.data() + part.reply_offset + size_t{node.place} * layout.total_bytes;
    const size_t row = block.row_begin - part.row_begin;
    parts_.emplace_back(partial + layout.o + row * d_v * (f32 ? 4 : 2),
                        reinterpret_cast<const float*>(partial + layout.m) + row,
                        reinterpret_cast<const float*>(partial + layout.l) + row,
                        planned_.call.wire, reply.memory);
  }
}

// Adds the caller's own rows last, one after another.
void BlockMerger::AddOwnParts(const PlannedBlock& block) {
  const uint32_t segment = planned_.plan.units()[block.unit].segment;
  const size_t row = block.row_begin - planned_.call.segments[segment].row_begin;
  for (const AttentionPiece& piece : local_.OwnPieces(segment)) {
    levels_.push_back(kTreeLevelMax);
    AddLocalPart(piece.out, row);
  }
}

// Adds a partial that was made here, from one of its rows on.
void BlockMerger::AddLocalPart(const PartialView& made, size_t row) {
  parts_.emplace_back(made.From(row, planned_.call.geometry().d_v));
}

// Lists the frames whose blocks are all merged.
void BlockMerger::CloseBlock(uint32_t block_ordinal) {
  const AttendPlan& plan = planned_.plan;
  const PlannedBlock& block = plan.blocks()[block_ordinal];
  const PlannedUnit& unit = plan.units()[block.unit];
  for (uint32_t split = unit.split_begin; split < unit.split_end; ++split) {
    const uint32_t frame = plan.parts()[plan.PartFor(block, split)].frame;
    if (--replies_[frame].open_block_count == 0) done_frames_.push_back(frame);
  }
  merged_block_[block_ordinal] = true;
  ++merged_count_;
  while (first_open_ < merged_block_.size() && merged_block_[first_open_]) ++first_open_;
}

absl::Status BlockMerger::End(AttendBuffers buffers) {
  CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
  if (late_) return absl::OkStatus();
  // A merge of one part is a copy of its bits, whatever memory they are in.
  const ConstPartialView whole = target_;
  MergeJob job;
  job.order = MergeOrder::kInTurn;
  job.parts = {&whole, 1};
  job.row_count = planned_.call.q.count;
  job.d_v = planned_.call.geometry().d_v;
  job.out = buffers();
  job.out.after = nullptr;  // as in SetTarget
  return backend_.Merge({&job, 1}, stream_);
}

void BlockMerger::Trim() {
  if (merged_.size() > kMergedBytesKept) merged_ = BackendMemory();
}

}  // namespace ckv
