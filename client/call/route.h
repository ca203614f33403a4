// Attends: sends a call to its holders, and gathers and merges their partials.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/call/attend_plan.h"
#include "client/call/coverage.h"
#include "client/call/exchange.h"
#include "client/calls.h"
#include "client/holders/counters.h"
#include "client/holders/link_table.h"

namespace ckv {

// Part of a call context. Belongs to the thread that took the context from the pool.
class Router {
 public:
  // Borrows its context's links and exchange. All three must outlive the router.
  Router(const LinkOptions* options, LinkTable* links, Exchange* exchange);

  // One attempt of Requester::Attend. After an error nothing is written to the room.
  absl::Status Attend(const AttendCall& call, AttendRoom room, AttendReport* report);

  const LaneShape& shape() const { return shape_; }

 private:
  enum class FrameState : uint8_t { kWaiting, kPosted, kArrived, kCopied, kEmpty };
  struct Frame {
    FrameState state = FrameState::kWaiting;
    uint32_t slot = 0;
    uint32_t sent_begin = 0, sent_end = 0;    // in lists_: pieces asked for
    uint32_t empty_begin = 0, empty_end = 0;  // in lists_: pieces with nothing selected
    uint32_t bytes = 0;
    uint8_t flags = 0;
    std::span<const std::byte> reply;
  };
  // The frames that go to one holder, in order of blocks. It is a line of the exchange.
  struct Flow {
    std::vector<uint32_t> batches;
    uint32_t block = 0, next = 0;  // the next frame to post is this block's batches[next]
    uint64_t frame_count = 0;      // frames of the call that go to this holder
    bool asked = false;
    // A block has more frames than the lane has slots. Replies are then copied out as they come,
    // one block at a time.
    bool copy_out = false;
    bool approximate = false;  // an answer was approximate
    uint64_t compute_ns = 0;
    uint32_t last_compute_ns = 0;
  };

  absl::Status Prepare(const AttendCall& call);
  absl::Status StartFlows(const AttendCall& call);
  absl::Status Run(const AttendCall& call, AttendRoom room);
  void MakeTarget(const AttendCall& call, AttendRoom room);
  absl::StatusOr<bool> PostAll(const AttendCall& call);
  absl::StatusOr<bool> PostNext(const AttendCall& call, uint32_t line);
  absl::Status Accept(const AttendCall& call, const Exchange::Reply& reply);
  void Learn(const AttendCall& call, const Frame& frame, const Exchange::Reply& reply);
  absl::Status MergeReady(const AttendCall& call, const PartialView& out);
  void MergeBlock(const AttendCall& call, uint32_t block, const PartialView& out);
  absl::Status CoverBlock(uint32_t block);
  void CollectParts(const AttendCall& call, uint32_t block);
  bool BlockComplete(uint32_t block) const;
  void ReleaseBlock(uint32_t block);
  void FillReport(AttendReport* report, Instant begin) const;
  std::span<Flow> flows() { return {flows_.data(), exchange_.line_count()}; }
  Frame& frame(uint32_t block, uint32_t batch) {
    return frames_[size_t{block} * plan_.batches().size() + batch];
  }
  const Frame& frame(uint32_t block, uint32_t batch) const {
    return frames_[size_t{block} * plan_.batches().size() + batch];
  }

  Clock* const clock_;
  const LaneShape shape_;
  LinkTable& links_;
  Exchange& exchange_;
  AttendPlan plan_;
  Coverage coverage_;

  // The state of the call in progress.
  std::vector<Flow> flows_;              // one per line; the rest keep their memory
  std::vector<uint32_t> rank_of_group_;  // [groups, or links if per_chunk]
  std::vector<uint32_t> flow_of_rank_;
  std::vector<Frame> frames_;  // [blocks][batches]
  std::vector<uint32_t> lists_, empty_;
  std::vector<std::vector<std::byte>> copies_;  // [batches] replies of the block being gathered
  std::vector<ConstPartialView> parts_, parts_of_piece_;
  uint32_t next_merge_ = 0;    // the next block to merge
  bool merge_late_ = true;     // all replies fit their slots, so they are merged once all came
  PartialView target_;         // the caller's room, or merged_
  std::vector<float> merged_;  // o, m, l of a call that is merged block by block
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;
};

}  // namespace ckv
