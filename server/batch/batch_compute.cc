// Computes a plan. Computation::Run, in order: attends the pieces of each group, those over the
// same rows together; then each group that is merged in rounds (MergeInRounds); then all other
// merges; then waits for the stream. Long work is cut into slices, and between two of them GivenUp
// stops it if its group has expired or the holder stops. Bits do not depend on slices.

#include "server/batch/batch_compute.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "attention/block_kernel.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

uint64_t RowWork(const AttentionShape& shape, const AttentionPiece& piece) {
  const bool selected = piece.selection.indices != nullptr;
  return uint64_t{selected ? piece.selection.k : piece.rows.count} * (shape.d_qk + shape.d_v);
}

// The limit of multiply-adds in one slice of more than 16 rows: 28 ms of one core at 75 G/s.
constexpr uint64_t kSliceWorkMax = 4 * kPollingWorkMax;

// Rounds down to whole blocks of the kernel (kBlockRowsMax), or to a part of one that fills its
// vectors. Each slice reads all of a piece's tokens: 128 rows over 8192 of them took 3.2 ms at
// once, and 4.9 ms in slices of 60, 60 and 8 rows. Fewer rows than a vector has lanes take as long
// as a whole vector, so fewer are not rounded.
uint64_t WholeBlocks(uint64_t rows) {
  uint32_t block = kBlockRowsMax;
  while (block > rows && block > kRowsPerVector) block /= 2;
  return rows < block ? rows : rows / block * block;
}

// How many query rows of a piece one slice takes: at least a vector.
uint32_t SliceRows(const AttentionShape& shape, const AttentionPiece& piece) {
  const uint64_t rows = kSliceWorkMax / std::max<uint64_t>(1, RowWork(shape, piece));
  if (rows >= piece.q.count) return piece.q.count;
  return static_cast<uint32_t>(WholeBlocks(std::max<uint64_t>(rows, kRowsPerVector)));
}

class Computation {
 public:
  Computation(BatchPlan& plan, ComputeStream& stream, Clock* clock, const std::atomic<bool>* stop)
      : plan_(plan), stream_(stream), backend_(stream.backend()), clock_(clock), stop_(stop) {}

  BatchComputed Run();

 private:
  void Attend(BatchPlan::Group& group, std::span<const AttentionPiece> pieces);
  bool AttendByRows(BatchPlan::Group& group, const AttentionPiece& piece);
  void MergeInRounds();
  void ComputeRound(BatchPlan::Group& group, BatchPlan::Rounds& rounds,
                    const BatchPlan::Rounds::Partial& partial, uint32_t begin, uint32_t count);
  void Merge();
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }
  // Whether no one needs the rest of the group's work.
  bool GivenUp(BatchPlan::Group& group) {
    if (stopped() || !status_.ok()) return true;
    if (clock_->Now() >= group.deadline) group.expired = true;
    return group.expired;
  }
  // The same between two slices, once the work so far is done.
  bool GivenUpByNow(BatchPlan::Group& group) {
    status_.Update(stream_.Wait());
    return GivenUp(group);
  }
  // Marks a group as expired if it took several slices and the last one ended too late.
  void NoteLate(BatchPlan::Group& group) {
    if (plan_.work() > kPollingWorkMax) (void)GivenUpByNow(group);
  }

  BatchPlan& plan_;
  ComputeStream& stream_;
  Backend& backend_;
  Clock* const clock_;
  const std::atomic<bool>* const stop_;
  uint64_t kernel_call_count_ = 0;
  absl::Status status_;  // the first error
};

BatchComputed Computation::Run() {
  const Instant started = clock_->Now();
  for (BatchPlan::Group& group : plan_.groups()) {
    std::vector<AttentionPiece>& pieces = group.pieces;
    if (pieces.empty() || GivenUp(group)) continue;
    GatherSharedRows(pieces);  // requests for the same chunk and layer share its rows
    Attend(group, pieces);
    NoteLate(group);
  }
  MergeInRounds();
  Merge();
  status_.Update(stream_.Wait());
  return {.started = started,
          .elapsed = clock_->Now() - started,
          .kernel_call_count = kernel_call_count_,
          .status = status_};
}

// Computes in slices, so that a long request that has expired, or whose holder stops, returns the
// thread within one of them.
void Computation::Attend(BatchPlan::Group& group, std::span<const AttentionPiece> pieces) {
  ++kernel_call_count_;
  for (size_t begin = 0; begin < pieces.size();) {
    if (begin != 0 && GivenUpByNow(group)) return;
    size_t end = begin;
    for (uint64_t work = 0; end < pieces.size(); ++end) {
      work += RowWork(group.shape, pieces[end]) * pieces[end].q.count;
      if (work > kSliceWorkMax) break;
    }
    if (end != begin) {
      status_.Update(
          backend_.AttendPartials(group.shape, pieces.subspan(begin, end - begin), stream_));
      begin = end;
    } else if (!AttendByRows(group, pieces[begin++])) {
      return;
    }
  }
}

// The rows [begin, begin + count) of a piece: whole groups of its selection, or a part of one.
AttentionPiece RunOf(const AttentionShape& shape, const AttentionPiece& piece, uint32_t begin,
                     uint32_t count) {
  AttentionPiece run = piece;
  run.q = piece.q.Rows(begin, count);
  if (piece.selection.indices != nullptr) {
    run.selection.indices += size_t{begin / piece.selection.group_rows} * piece.selection.k;
    run.selection.group_rows = std::min(piece.selection.group_rows, count);
  }
  // A piece whose `out` is not decided yet has none.
  if (piece.out.o != nullptr) run.out = piece.out.From(begin, shape.d_v);
  return run;
}

// How many rows from `begin` on to compute at a time: at most rows_max, and as many as RunOf takes.
uint32_t RunRows(const AttentionPiece& piece, uint32_t begin, uint32_t rows_max) {
  const uint32_t group_rows = piece.selection.indices != nullptr ? piece.selection.group_rows : 1;
  const uint32_t in_group = begin % group_rows;
  const uint32_t count = in_group == 0 && group_rows <= rows_max
                             ? rows_max / group_rows * group_rows
                             : std::min(rows_max, group_rows - in_group);
  return std::min(count, piece.q.count - begin);
}

// Computes a piece that is larger than a slice in runs of query rows, whose bits do not depend on
// each other. Returns false if the work was given up.
bool Computation::AttendByRows(BatchPlan::Group& group, const AttentionPiece& piece) {
  const uint32_t rows_max = SliceRows(group.shape, piece);
  for (uint32_t begin = 0, count = 0; begin < piece.q.count; begin += count) {
    if (begin != 0 && GivenUpByNow(group)) return false;
    count = RunRows(piece, begin, rows_max);
    const AttentionPiece run = RunOf(group.shape, piece, begin, count);
    status_.Update(backend_.AttendPartials(group.shape, {&run, 1}, stream_));
  }
  return true;
}

// Each partial by itself, as many rows at a time as the scratch holds. Rows do not depend on each
// other, so the bits are those of one round.
void Computation::MergeInRounds() {
  BatchPlan::Rounds& rounds = plan_.rounds();
  if (rounds.partials.empty()) return;
  BatchPlan::Group& group = plan_.groups()[rounds.group];
  for (const BatchPlan::Rounds::Partial& partial : rounds.partials) {
    const std::span<const AttentionPiece> pieces =
        std::span(rounds.pieces)
            .subspan(partial.piece_begin, partial.piece_end - partial.piece_begin);
    const auto rows_max = static_cast<uint32_t>(
        WholeBlocks(BatchPlan::RowsInScratch(pieces.size(), group.shape.d_v)));
    for (uint32_t begin = 0, count = 0; begin < pieces[0].q.count; begin += count) {
      if (GivenUpByNow(group)) return;
      // Pieces may have groups of different sizes: a run that suits all of them.
      count = RunRows(pieces[0], begin, rows_max);
      for (const AttentionPiece& piece : pieces) {
        if (RunRows(piece, begin, count) != count) count = 1;
      }
      ComputeRound(group, rounds, partial, begin, count);
    }
  }
  NoteLate(group);
}

void Computation::ComputeRound(BatchPlan::Group& group, BatchPlan::Rounds& rounds,
                               const BatchPlan::Rounds::Partial& partial, uint32_t begin,
                               uint32_t count) {
  const uint32_t d_v = group.shape.d_v;
  plan_.RewindScratch();
  rounds.parts.clear();
  group.pieces.clear();
  for (size_t i = partial.piece_begin; i < partial.piece_end; ++i) {
    AttentionPiece& run =
        group.pieces.emplace_back(RunOf(group.shape, rounds.pieces[i], begin, count));
    run.out = plan_.TakeScratch(count, d_v);
    rounds.parts.emplace_back(run.out);
  }
  Attend(group, group.pieces);
  if (!status_.ok()) return;
  const MergeJob merge = {
      .order = MergeOrder::kTree,
      .parts = rounds.parts,
      .levels = std::span(rounds.levels)
                    .subspan(partial.piece_begin, partial.piece_end - partial.piece_begin),
      .row_count = count,
      .d_v = d_v,
      .out = partial.out.From(begin, d_v)};
  status_.Update(backend_.Merge({&merge, 1}, stream_));
}

void Computation::Merge() {
  if (stopped() || !status_.ok()) return;
  const std::span<const MergeJob> merges = plan_.LiveMerges();
  if (!merges.empty()) status_.Update(backend_.Merge(merges, stream_));
}

}  // namespace

absl::StatusOr<BatchTools> BatchTools::Make(Backend& backend, uint32_t thread_count) {
  BatchTools tools;
  CKV_ASSIGN_OR_RETURN(tools.partials, backend.Allocate(backend.home(), kMergeScratchBytes));
  CKV_ASSIGN_OR_RETURN(tools.stream, backend.NewStream(thread_count));
  return tools;
}

BatchComputed ComputePlan(BatchPlan& plan, ComputeStream& stream, Clock* clock,
                          const std::atomic<bool>* stop) {
  return Computation(plan, stream, clock, stop).Run();
}

}  // namespace ckv
