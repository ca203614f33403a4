#include "server/batch/batch_compute.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace ckv {
namespace {

uint64_t RowWork(const AttentionShape& shape, const AttentionPiece& piece) {
  const bool selected = piece.selection.indices != nullptr;
  return uint64_t{selected ? piece.selection.k : piece.rows.count} * (shape.d_qk + shape.d_v);
}

class Computation {
 public:
  Computation(BatchPlan& plan, WorkerPool& pool, Clock* clock, const std::atomic<bool>* stop)
      : plan_(plan), pool_(pool), clock_(clock), stop_(stop) {}

  BatchComputed Run();

 private:
  void Attend(BatchPlan::Group& group, std::span<const AttentionPiece> pieces);
  bool AttendByRows(BatchPlan::Group& group, const AttentionPiece& piece);
  void MergeInRounds();
  void Merge();
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }
  // Whether the rest of the group's work is of no use to anybody.
  bool GivenUp(BatchPlan::Group& group) {
    if (stopped()) return true;
    if (clock_->Now() >= group.deadline) group.expired = true;
    return group.expired;
  }
  // Marks a group as expired if it took several slices and the last one ended too late.
  void NoteLate(BatchPlan::Group& group) {
    if (plan_.work() > kPollingWorkMax) (void)GivenUp(group);
  }

  BatchPlan& plan_;
  WorkerPool& pool_;
  Clock* const clock_;
  const std::atomic<bool>* const stop_;
  uint64_t kernel_call_count_ = 0;
};

BatchComputed Computation::Run() {
  const Instant started = clock_->Now();
  for (BatchPlan::Group& group : plan_.groups()) {
    std::vector<AttentionPiece>& pieces = group.pieces;
    if (pieces.empty() || GivenUp(group)) continue;
    // Requests for the same (chunk, layer) one after another: the kernel takes their query rows
    // together, and reads the chunk's rows once for all of them (selections apart).
    std::sort(pieces.begin(), pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
      return std::tuple(a.rows.data, a.rows.count, a.selection.indices != nullptr) <
             std::tuple(b.rows.data, b.rows.count, b.selection.indices != nullptr);
    });
    Attend(group, pieces);
    NoteLate(group);
  }
  MergeInRounds();
  Merge();
  return {.started = started,
          .elapsed = clock_->Now() - started,
          .kernel_call_count = kernel_call_count_};
}

// In slices, so that a long request that has expired, or whose holder stops, gives the thread back
// within one of them.
void Computation::Attend(BatchPlan::Group& group, std::span<const AttentionPiece> pieces) {
  ++kernel_call_count_;
  for (size_t begin = 0; begin < pieces.size();) {
    if (begin != 0 && GivenUp(group)) return;
    size_t end = begin;
    for (uint64_t work = 0; end < pieces.size(); ++end) {
      work += RowWork(group.shape, pieces[end]) * pieces[end].q.count;
      if (work > kPollingWorkMax) break;
    }
    if (end != begin) {
      AttendPartials(group.shape, pieces.subspan(begin, end - begin), pool_);
      begin = end;
    } else if (!AttendByRows(group, pieces[begin++])) {
      return;
    }
  }
}

// A piece that is a slice too large is computed in runs of query rows, whose bits do not depend on
// each other. False: it was given up.
bool Computation::AttendByRows(BatchPlan::Group& group, const AttentionPiece& piece) {
  const AttentionShape& shape = group.shape;
  const bool selected = piece.selection.indices != nullptr;
  const uint32_t group_rows = selected ? piece.selection.group_rows : 1;
  const auto rows_max = static_cast<uint32_t>(
      std::clamp<uint64_t>(kPollingWorkMax / RowWork(shape, piece), 1, piece.q.count));
  const size_t o_bytes = piece.out.dtype == PartialDtype::kF32 ? 4 : 2;
  for (uint32_t begin = 0, count = 0; begin < piece.q.count; begin += count) {
    if (begin != 0 && GivenUp(group)) return false;
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
  return true;
}

// As many partials at a time as the scratch holds beside the merged one and its successor.
void Computation::MergeInRounds() {
  BatchPlan::Rounds& rounds = plan_.rounds();
  if (rounds.pieces.empty()) return;
  BatchPlan::Group& group = plan_.groups()[rounds.group];
  const uint32_t rows = rounds.pieces.front().q.count;
  const uint32_t d_v = group.shape.d_v;
  PartialView merged = plan_.TakeScratch(rows, d_v);
  PartialView next = plan_.TakeScratch(rows, d_v);
  const size_t kept = plan_.scratch_used();
  const size_t round_size = plan_.ScratchRoom(rows, d_v);
  for (size_t begin = 0; begin < rounds.pieces.size(); begin += round_size) {
    if (GivenUp(group)) return;
    const size_t count = std::min(round_size, rounds.pieces.size() - begin);
    const std::span<AttentionPiece> pieces = std::span(rounds.pieces).subspan(begin, count);
    plan_.RewindScratch(kept);
    rounds.parts.clear();
    if (begin != 0) rounds.parts.emplace_back(merged);
    for (AttentionPiece& piece : pieces) {
      piece.out = plan_.TakeScratch(rows, d_v);
      rounds.parts.emplace_back(piece.out);
    }
    Attend(group, pieces);
    const bool last = begin + count == rounds.pieces.size();
    MergePartials(rounds.parts, rows, d_v, last ? rounds.out : next);
    std::swap(merged, next);
  }
  NoteLate(group);
}

void Computation::Merge() {
  std::vector<BatchPlan::Merge>& merges = plan_.merges();
  std::erase_if(merges,
                [this](const BatchPlan::Merge& merge) { return plan_.Expired(merge.groups); });
  if (merges.empty() || stopped()) return;
  pool_.Run(static_cast<uint32_t>(merges.size()), [&merges](uint32_t task, uint32_t) {
    const BatchPlan::Merge& merge = merges[task];
    MergePartials(merge.parts, merge.row_count, merge.d_v, merge.out);
  });
}

}  // namespace

BatchComputed ComputePlan(BatchPlan& plan, WorkerPool& pool, Clock* clock,
                          const std::atomic<bool>* stop) {
  return Computation(plan, pool, clock, stop).Run();
}

}  // namespace ckv
