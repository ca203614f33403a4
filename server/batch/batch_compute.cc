// What a batch does once it is full: the kernel, the merge, the replies.

#include <algorithm>
#include <tuple>
#include <utility>

#include "proto/status.h"
#include "server/batch.h"

namespace ckv {

void Batch::Compute(const std::atomic<bool>* stop) {
  started_ = clock_->Now();
  stop_ = stop;
  for (size_t i = 0; i < group_count_; ++i) {
    std::vector<AttentionPiece>& pieces = groups_[i].pieces;
    if (pieces.empty() || Expired(i)) continue;
    // Requests for the same (chunk, layer) one after another: the kernel takes their query rows
    // together, and reads the chunk's rows once for all of them (selections apart).
    std::sort(pieces.begin(), pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
      return std::tuple(a.rows.data, a.rows.count, a.selection.indices != nullptr) <
             std::tuple(b.rows.data, b.rows.count, b.selection.indices != nullptr);
    });
    Attend(groups_[i], pieces);
    if (is_long()) (void)Expired(i);  // on the way
  }
  if (in_rounds_) MergeInRounds();
  const bool stopped = stop_ != nullptr && stop_->load(std::memory_order_relaxed);
  if (!merges_.empty() && !stopped) {
    pool_.Run(static_cast<uint32_t>(merges_.size()), [this](uint32_t task, uint32_t) {
      const MergeTask& merge = merges_[task];
      const std::span<const ConstPartialView> parts(parts_);
      MergePartials(parts.subspan(merge.part_begin, merge.part_count), merge.row_count, merge.d_v,
                    merge.out);
    });
  }
  elapsed_ = clock_->Now() - started_;
}

void Batch::Attend(const Group& group, std::span<const AttentionPiece> pieces) {
  ++kernel_calls_;
  if (!is_long()) {
    AttendPartials(group.shape, pieces, pool_);
    return;
  }
  for (const AttentionPiece& piece : pieces) AttendSliced(group.shape, piece, group.deadline);
}

// A long request is computed in runs of query rows, so that one that has expired, or whose holder
// stops, gives the thread back within one run. A row's bits do not depend on the others'.
void Batch::AttendSliced(const AttentionShape& shape, const AttentionPiece& piece,
                         Instant deadline) {
  const bool selected = piece.selection.indices != nullptr;
  const uint64_t row_work =
      uint64_t{selected ? piece.selection.k : piece.rows.count} * (shape.d_qk + shape.d_v);
  const uint32_t group_rows = selected ? piece.selection.group_rows : 1;
  const auto rows_max = static_cast<uint32_t>(
      std::clamp<uint64_t>(kPollingWorkMax / std::max<uint64_t>(row_work, 1), 1, piece.q.count));
  const size_t o_bytes = piece.out.dtype == PartialDtype::kF32 ? 4 : 2;
  for (uint32_t begin = 0, count = 0; begin < piece.q.count; begin += count) {
    if (GivenUp(deadline)) return;
    // Whole groups of a selection, or a part of one.
    const uint32_t in_group = begin % group_rows;
    count = in_group == 0 && group_rows <= rows_max ? rows_max / group_rows * group_rows
                                                    : std::min(rows_max, group_rows - in_group);
    count = std::min(count, piece.q.count - begin);
    AttentionPiece run = piece;
    run.q.data += size_t{begin} * piece.q.stride;
    run.q.count = count;
    if (selected) {
      run.selection.indices += size_t{begin / group_rows} * piece.selection.k;
      run.selection.group_rows = std::min(group_rows, count);
    }
    run.out.o = static_cast<std::byte*>(piece.out.o) + size_t{begin} * shape.d_v * o_bytes;
    run.out.m += begin;
    run.out.l += begin;
    AttendPartials(shape, {&run, 1}, pool_);
  }
}

bool Batch::GivenUp(Instant deadline) const {
  return clock_->Now() >= deadline || (stop_ != nullptr && stop_->load(std::memory_order_relaxed));
}

bool Batch::Expired(size_t group) {
  if (clock_->Now() < groups_[group].deadline) return false;
  for (uint32_t i = 0; i < item_count_; ++i) {
    Item& item = items_[i];
    const bool of_group = item.ready.header.kind == WireKind::kAttend &&
                          (item.group == group || item.shadow_group == group);
    if (!of_group || !item.error.ok()) continue;
    ++expired_;
    item.error = ExpiredError(item.ready.header);
  }
  std::erase_if(merges_, [group](const MergeTask& merge) {
    return merge.group == group || merge.shadow_group == group;
  });
  return true;
}

// As many partials at a time as the scratch holds beside the merged one and its successor.
void Batch::MergeInRounds() {
  const uint32_t rows = rounds_pieces_.front().q.count;
  const uint32_t d_v = rounds_shape_.d_v;
  PartialView merged = TakeScratch(rows, d_v);
  PartialView next = TakeScratch(rows, d_v);
  const size_t kept = scratch_used_;
  const size_t round_size = (kScratchFloats - kept) / PartialFloats(rows, d_v);
  for (size_t begin = 0; begin < rounds_pieces_.size(); begin += round_size) {
    if (Expired(rounds_group_)) break;
    const size_t count = std::min(round_size, rounds_pieces_.size() - begin);
    const std::span<AttentionPiece> pieces = std::span(rounds_pieces_).subspan(begin, count);
    scratch_used_ = kept;
    parts_.clear();
    if (begin != 0) parts_.emplace_back(merged);
    for (AttentionPiece& piece : pieces) {
      piece.out = TakeScratch(rows, d_v);
      parts_.emplace_back(piece.out);
    }
    Attend(groups_[rounds_group_], pieces);
    const bool last = begin + count == rounds_pieces_.size();
    MergePartials(parts_, rows, d_v, last ? rounds_out_ : next);
    std::swap(merged, next);
  }
  if (is_long()) (void)Expired(rounds_group_);
  parts_.clear();
}

void Batch::Reply(uint32_t waiting_count) {
  Bump(counters_->batch_count, kernel_calls_);
  Bump(counters_->expired_count, expired_);
  if (kernel_calls_ != 0) {
    Bump(counters_->compute_ns, static_cast<uint64_t>(elapsed_.count()));
  }
  for (uint32_t i = 0; i < item_count_; ++i) {
    Post(items_[i], waiting_count + (item_count_ - 1 - i));
  }
  Clear();
}

void Batch::Post(Item& item, uint32_t behind_count) {
  if (!item.error.ok()) {
    PostError(item.ready, item.error, /*retry_after_us=*/0, *counters_);
    item.error = absl::OkStatus();
    return;
  }
  const bool computed = item.ready.header.kind == WireKind::kAttend;
  item.reply.compute_ns = computed ? Saturate32(elapsed_.count()) : 0;
  item.reply.queue_ns = Saturate32((started_ - item.ready.arrived).count());
  item.reply.queue_depth = behind_count;
  PostReply(item.ready, item.reply, *counters_);
}

void Batch::Clear() {
  for (size_t i = 0; i < group_count_; ++i) groups_[i].pieces.clear();
  group_count_ = 0;
  merges_.clear();
  parts_.clear();
  rounds_pieces_.clear();
  in_rounds_ = false;
  scratch_used_ = 0;
  pins_.clear();
  shadows_.clear();
  for (uint32_t i = 0; i < item_count_; ++i) items_[i].ready.cold_rows.reset();
  item_count_ = 0;
  work_ = 0;
  kernel_calls_ = expired_ = 0;
}

}  // namespace ckv
