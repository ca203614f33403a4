// One engine of a requester: the fan-out of a call over its links, and the gathering.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/attend_plan.h"
#include "client/counters.h"
#include "client/coverage.h"
#include "client/lane_wait.h"
#include "client/link_table.h"
#include "client/requester.h"

namespace ckv {

// One engine. Belongs to the thread that took it from the pool.
class Router {
 public:
  // Everything borrowed must outlive the router.
  Router(const LinkOptions* options, PeerTable* peers, Duration spin_max, RouteCounters* counters);

  // Requester::Attend, without its retry. `*stale` tells whether the error is a session or handle
  // that a new session would cure; nothing was merged then.
  absl::Status Attend(const AttendCall& call, AttendRoom room, AttendReport* report, bool* stale);

  LinkTable& links() { return links_; }
  const LaneShape& shape() const { return shape_; }
  LaneWait& wait() { return wait_; }

 private:
  enum class FrameState : uint8_t { kWaiting, kPosted, kArrived, kCopied, kEmpty };
  struct Frame {
    FrameState state = FrameState::kWaiting;
    uint32_t slot = 0;
    uint32_t sent_begin = 0, sent_end = 0;    // in lists_: pieces asked for
    uint32_t empty_begin = 0, empty_end = 0;  // in lists_: pieces with nothing selected
    uint32_t bytes = 0;
    uint8_t flags = 0;
    uint64_t request_id = 0;
    Instant posted;
    std::span<const std::byte> reply;
  };
  // What goes to one holder, in order of blocks.
  struct Flow {
    HolderLink* link = nullptr;
    std::vector<uint32_t> batches;
    uint32_t block = 0, next = 0;  // to be posted: the block's batches[next]
    uint64_t frame_count = 0;      // of the call
    uint32_t outstanding = 0;
    bool asked = false;
    bool strange = false;  // a reply came that was not the one awaited in its slot
    // Slots are too few for a block's frames: replies are copied out as they come, one block at a
    // time.
    bool copy_out = false;
    std::vector<uint32_t> frame_of_slot;
    bool approximate = false;  // an answer was
    uint64_t compute_ns = 0;
    uint32_t last_compute_ns = 0;
  };
  static constexpr uint32_t kNoFrame = 0xffffffff;

  absl::Status Prepare(const AttendCall& call, bool* stale);
  uint32_t FlowOf(HolderLink* link);
  absl::Status StartFlows(const AttendCall& call);
  absl::Status Exchange(const AttendCall& call, AttendRoom room, bool* stale);
  void MakeTarget(const AttendCall& call, AttendRoom room);
  absl::StatusOr<bool> PostAll(const AttendCall& call);
  absl::StatusOr<bool> PostNext(const AttendCall& call, Flow& flow);
  absl::StatusOr<bool> Collect(const AttendCall& call, Flow& flow, bool* stale);
  absl::Status Accept(const AttendCall& call, Flow& flow, Frame& frame, const Completion& done,
                      const ReplyHeader& header);
  absl::Status MergeReady(const AttendCall& call, const PartialView& out);
  void MergeBlock(const AttendCall& call, uint32_t block, const PartialView& out);
  absl::Status CoverBlock(uint32_t block);
  void CollectParts(const AttendCall& call, uint32_t block);
  bool BlockComplete(uint32_t block) const;
  void ReleaseBlock(uint32_t block);
  std::string DescribeWaiting();
  void AbandonAll();
  void FillReport(AttendReport* report, Instant begin) const;
  std::span<Flow> flows() { return {flows_.data(), flow_count_}; }
  Frame& frame(uint32_t block, uint32_t batch) {
    return frames_[size_t{block} * plan_.batches().size() + batch];
  }
  const Frame& frame(uint32_t block, uint32_t batch) const {
    return frames_[size_t{block} * plan_.batches().size() + batch];
  }

  Clock* const clock_;
  const LaneShape shape_;
  RouteCounters* const counters_;
  LinkTable links_;
  LaneWait wait_;
  AttendPlan plan_;
  Coverage coverage_;

  // Of the call in progress.
  std::vector<Flow> flows_;  // the first flow_count_ are in use; the rest keep their memory
  size_t flow_count_ = 0;
  std::vector<uint32_t> rank_of_group_;  // [the route's groups, or links where merged by chunk]
  std::vector<uint32_t> flow_of_rank_;
  std::vector<Frame> frames_;  // [blocks][batches]
  std::vector<uint32_t> lists_, empty_;
  std::vector<RequestLane*> waiting_;
  std::vector<Completion> completions_;
  std::vector<std::vector<std::byte>> copies_;  // [batches] of the block being gathered
  std::vector<ConstPartialView> parts_, parts_of_piece_;
  uint32_t next_merge_ = 0;    // block
  bool merge_late_ = true;     // all replies fit their slots: merge once all are there
  PartialView target_;         // the caller's room, or merged_
  std::vector<float> merged_;  // o, m, l of a call that is merged as it comes
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;
};

}  // namespace ckv
