// Merges the partials of one call, block by block, in the fixed tree.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "attention/partial.h"
#include "client/attend/local_attend.h"
#include "client/attend/planned_call.h"
#include "client/attend/split_coverage.h"
#include "client/attend/stream_order.h"
#include "client/calls.h"
#include "client/trace/call_spans.h"
#include "proto/base/clock.h"

namespace ckv {

// Merges a block once all of its partials are there, and counts that each of them is there exactly
// once (I1). The order of a merge depends neither on when replies arrived nor on which holders sent
// them (I2). Belongs to one call context, and keeps its memory between calls.
//
//   Begin        after AttendPlan::Cut
//   SetTarget    before the first Merge; then CoverLocal once the local rows are attended
//   Take         for each frame's reply; Merge merges the blocks that are then complete
//   End          once complete()
class BlockMerger {
 public:
  // All must outlive this object.
  BlockMerger(const PlannedCall* planned, const LocalAttend* local, ComputeStream* stream,
              Clock* clock, CallSpans* spans);

  // `late`: every reply fits a slot of its own. Then nothing is merged before all replies are
  // there, and blocks are merged straight into the output buffer. Otherwise each is merged at once,
  // into memory of the merger, and End copies the result.
  void Begin(bool late);
  bool late() const { return late_; }
  // Sets the output buffer. If it names a stream, StreamOrder::MustWaitFor must have returned
  // false for it.
  //   InvalidArgument     it is in another kind of memory than the call names.
  absl::Status SetTarget(const PartialView& out, StreamOrder& order);
  // The memory that blocks are merged into.
  const PartialView& target() const { return target_; }
  // Counts the partials of the local row cache.
  absl::Status CoverLocal();

  // Records the partials in the body of the reply to a frame. The body must be valid until
  // done_frames() has the frame.
  absl::Status Take(uint32_t frame, std::span<const std::byte> reply, MemoryKind memory);
  // Merges the blocks that are complete, unless the stream still merges earlier ones. Does not wait
  // for the stream.
  absl::Status Merge();
  // The frames whose replies were read for the last time before the last Merge ended.
  std::span<const uint32_t> done_frames() const { return done_frames_; }

  // Whether the stream has merges that have not ended.
  bool merging() const { return merging_count_ > 0; }
  uint32_t merged_count() const { return merged_count_; }
  bool complete() const { return merged_count_ == missing_.size(); }
  // All blocks before it are merged.
  uint32_t first_open() const { return first_open_; }

  // Checks that nothing is missing, and puts the answer in the output buffer, which is complete
  // once the stream is.
  absl::Status End(AttendBuffers buffers);
  // Frees memory that few calls need. The stream must be done.
  void Trim();

 private:
  // The reply to a frame.
  struct Reply {
    std::span<const std::byte> body;
    MemoryKind memory = MemoryKind::kHost;
    uint32_t open_block_count = 0;  // blocks with unmerged parts in it; keeps the slot in use
  };

  absl::Status CloseMerged();
  absl::Status MergeBlocks(std::span<const uint32_t> blocks);
  absl::Status AddMerge(uint32_t block);
  void CollectParts(const PlannedBlock& block);
  void AddOwnParts(const PlannedBlock& block);
  void AddLocalPart(const PartialView& made, size_t row);
  void CloseBlock(uint32_t block);

  const PlannedCall& planned_;
  const LocalAttend& local_;
  ComputeStream& stream_;
  Backend& backend_;
  Clock* const clock_;
  CallSpans& spans_;

  bool late_ = true;
  PartialView target_;          // the output buffer, or merged_
  BackendMemory merged_;        // f32 o, m, l of a call that is merged block by block
  std::vector<Reply> replies_;  // [frames]
  std::vector<uint32_t> done_frames_;
  SplitCoverage coverage_;
  std::vector<uint32_t> missing_;  // [blocks] parts that have not arrived
  std::vector<uint32_t> ready_;    // blocks whose parts have all arrived and that are not closed
  uint32_t merging_count_ = 0;     // the first of ready_, whose merges are on the stream
  Instant merge_begin_;
  std::vector<bool> merged_block_;  // [blocks]
  uint32_t merged_count_ = 0;
  uint32_t first_open_ = 0;
  // The merges of one operation, and their parts one after another.
  std::vector<MergeJob> merges_;
  std::vector<size_t> part_ends_;  // [merges] in parts_ and levels_
  std::vector<ConstPartialView> parts_;
  std::vector<uint8_t> levels_;
};

}  // namespace ckv
