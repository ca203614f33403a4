// Attends: sends a call to its holders, then gathers and merges their partials.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "attention/partial.h"
#include "client/call/exchange.h"
#include "client/call/share_coverage.h"
#include "client/calls.h"
#include "client/context/attend_plan.h"
#include "client/context/route_call.h"
#include "client/holders/counters.h"
#include "client/holders/link_table.h"
#include "client/learn/live_calls.h"
#include "client/learn/live_here.h"
#include "client/trace/call_spans.h"
#include "proto/kernel_target.h"

namespace ckv {

// Part of a call context. Belongs to the thread that holds the context.
//
//   Begin(call)                        plans the call and posts as much as the slots take
//   until Advance(room) returns true:  takes replies, posts the rest, merges
//     Rest()                           waits until a lane may have something
//   Finish(report)
//
// Attend does all of this. After an error of any of them call GiveUp; the answer is unchanged.
class Router {
 public:
  // Borrows its context's links, exchange and stream. All of them must outlive the router.
  Router(const LinkOptions* options, LinkTable* links, Exchange* exchange, ComputeStream* stream);

  // One attempt of an attend. After an error, nothing is written to the output buffer.
  absl::Status Attend(const RouteCall& call, AttendRoom room, AttendReport* report);

  // Opens the links that a call would use and resolves the handles of its chunks. The call needs
  // only its segments and deadline.
  absl::Status Warm(const RouteCall& call);

  // Starts an attempt. `call` must not change until Finish or GiveUp. Opens missing links, which
  // may wait for their holders.
  absl::Status Begin(const RouteCall& call);
  // Pairs of a query row and a locally cached row that the first Advance will attend, on its
  // thread.
  uint64_t near_pairs_left() const { return started_ ? 0 : near_pairs_; }
  // Returns true once the answer is complete. Does not wait for holders or streams. Once the first
  // queries are posted, also attends the caller's own rows and the locally cached ones. If the call
  // is polled at once, the attend of cached rows is timed: Advance waits for it.
  //   Also as Exchange::EndRound, if there is nothing to do.
  absl::StatusOr<bool> Advance(AttendRoom room);
  // Waits, if the last Advance found nothing to do.
  absl::Status Rest();
  // Ends a complete attempt. `report` may be null.
  void Finish(AttendReport* report);
  // Ends an attempt that failed or is no longer wanted. Waits for the stream.
  void GiveUp();

  // After an Advance that did not complete the call. If progressed(), another Advance may do more
  // work. Else if waits_for_stream(), a stream must first end its work; nothing signals that. Else
  // wait for the lanes of waiting().
  bool progressed() const { return progress_; }
  bool waits_for_stream() const {
    return held_by_ != nullptr || !written_.empty() || merging_count_ > 0 || ending_;
  }
  std::span<RequestLane* const> waiting() const { return exchange_.waiting(); }

  const LaneShape& shape() const { return shape_; }

 private:
  enum class FrameState : uint8_t { kWaiting, kPosted, kArrived, kCopied };
  struct Frame {
    FrameState state = FrameState::kWaiting;
    uint32_t slot = 0;
    uint32_t bytes = 0;
    uint8_t flags = 0;
    uint32_t open_block_count = 0;  // blocks with unmerged parts in it; keeps the slot in use
    uint32_t copy = 0;              // in copies_, if the reply was copied out
    std::span<const std::byte> reply;
    MemoryKind memory = MemoryKind::kHost;  // the reply's
  };
  // The part of the call that is sent to one holder.
  struct Flow {
    uint32_t next = 0;  // the next frame to post
    bool asked = false;
    // A block has more frames than the lane has slots. Replies are then copied out on arrival, one
    // block at a time.
    bool copy_out = false;
    bool approximate = false;  // an answer was approximate
    uint64_t compute_ns = 0;
    uint32_t last_compute_ns = 0;
    // Times of a round whose only frame had the holder to itself: as predicted and, if this thread
    // did nothing else meanwhile, as measured.
    double expected_us = 0, busy_us = 0, took_us = 0;
  };
  // A frame in its slot. It is posted once the stream has written it.
  struct Written {
    uint32_t line = 0;
    uint32_t slot = 0;
    uint32_t ordinal = 0;
    RequestHeader header;
  };

  absl::Status Prepare(const RouteCall& call);
  absl::Status ChooseAndConnect(const RouteCall& call);
  absl::Status FindHandles(const RouteCall& call, const PlannedUnit& unit);
  absl::Status AddLine(HolderLink& link, uint32_t line, Instant deadline);
  absl::Status StartFlows();
  absl::Status StartCoverage();
  absl::StatusOr<bool> TakeQueries();
  absl::StatusOr<bool> StartHere(AttendRoom room);
  bool WasWaitedFor(const ComputeStream* after) const;
  bool MustWaitFor(ComputeStream* after);
  absl::Status ComeAfter(ComputeStream*& stream);
  absl::Status MakeTarget();
  absl::Status CopyMerged(const PartialView& out);
  absl::StatusOr<bool> PostAll();
  absl::StatusOr<bool> WriteNext(uint32_t line);
  absl::StatusOr<bool> PostWritten();
  absl::Status Post(Written& frame, Instant now);
  absl::Status Accept(const Exchange::Reply& reply);
  absl::Status TakeParts(uint32_t frame_ordinal);
  void Learn(const PlannedFrame& planned, const Frame& frame, const Exchange::Reply& reply);
  double ObserveKernel(HolderPeer& peer, const PlannedFrame& planned, const Exchange::Reply& reply);
  void JudgeRounds();
  void JudgeCall(Duration took);
  void NoteTarget(KernelTargetId target);
  // Whether the time from a post to its reply is the holder's. False if this thread did something
  // else meanwhile.
  bool Timed() const { return (call_->polled_at_once || call_->prompt) && here_pieces_.empty(); }

  // Attends the rows that are here: own rows, and locally cached chunks.
  absl::Status AttendHere();
  bool LearnsHere() const;
  bool TakeHere(const PlannedUnit& unit, const ContextState& context, uint32_t rotation);
  void TrimHere();
  void AddOwnPieces();
  uint64_t OwnPairs() const;
  absl::Status AddNearPieces();
  absl::Status ReserveCopies();
  absl::StatusOr<QueryView> QueriesOf(uint32_t unit, uint32_t rotation);
  absl::Status CoverNear();
  bool IsInPlace(const PlannedUnit& unit) const;
  void PlaceAnswers();
  PartialView TargetRows(uint32_t row) const;
  void AddHerePart(const PartialView& made, size_t row);
  absl::Status MergeReady();
  absl::Status CloseMerged();
  absl::Status MergeBlocks(std::span<const uint32_t> blocks);
  absl::Status AddMerge(uint32_t block);
  void CollectParts(const PlannedBlock& block);
  void AddOwnParts(const PlannedBlock& block);
  void CloseBlock(uint32_t block);
  void CountPairs(AttendReport& report) const;
  void CountCall(Duration elapsed, Duration lost);

  std::span<Flow> flows() { return {flows_.data(), lines_.size()}; }

  Clock* const clock_;
  LiveHere* const live_here_;
  LiveCalls* const live_calls_;
  CallCounters* const counters_;  // may be null
  const LaneShape shape_;
  LinkTable& links_;
  Exchange& exchange_;
  AttendPlan plan_;
  ShareCoverage coverage_;
  CallSpans spans_;
  ComputeStream& stream_;
  Backend& backend_;

  // The state of the call in progress.
  const RouteCall* call_ = nullptr;
  RouteCall taken_;  // *call_, but its queries wait for no stream once stream_ is ordered after
                     // theirs
  Instant begin_;
  std::vector<PlannedLine> lines_;
  std::vector<Flow> flows_;  // the first lines_.size() are in use; the rest keep their memory
  std::vector<Frame> frames_;
  std::vector<Written> written_;       // not posted yet, in order
  std::vector<BackendMemory> copies_;  // replies, if a flow copies out
  std::vector<uint32_t> free_copies_;
  std::vector<uint32_t> missing_;  // [blocks] parts that have not arrived
  std::vector<uint32_t> ready_;    // blocks whose parts have all arrived and that are not closed
  uint32_t merging_count_ = 0;     // the first of ready_, whose merges are on the stream
  Instant merge_begin_;
  std::vector<bool> merged_block_;  // [blocks]
  uint32_t merged_count_ = 0;
  uint32_t first_open_ = 0;  // all blocks before it are merged
  // The merges of one operation, and their parts one after another.
  std::vector<MergeJob> merges_;
  std::vector<size_t> part_ends_;  // [merges] in parts_ and levels_
  std::vector<ConstPartialView> parts_;
  std::vector<uint8_t> levels_;
  std::vector<AttentionPiece> here_pieces_;  // own rows, then cached chunks in the plan's order
  BackendMemory here_;                       // their partials: f32 o, m, l of each piece
  std::vector<uint32_t> own_begin_;          // [segments + 1] in here_pieces_
  // Queries of cached chunks that are not at their canonical positions: a copy for each unit and
  // rotation.
  struct NearCopy {
    uint32_t unit = 0, rotation = 0;
    size_t begin = 0, end = 0;  // bytes of near_q_
  };
  uint64_t near_bytes_ = 0;  // memory for the cached chunks' pieces planned so far
  uint64_t near_pairs_ = 0;
  double here_us_ = 0;  // predicted for the attend of cached and own rows; 0 if unknown
  std::vector<NearCopy> near_copies_;
  BackendMemory near_q_;
  bool queries_taken_ = false;  // stream_ is ordered after the stream that makes the queries
  // When last checked, the streams that stream_ is ordered after had done their work.
  bool producers_ready_ = true;
  // Streams of another backend: one to wait for first, and those already waited for.
  ComputeStream* held_by_ = nullptr;
  std::vector<ComputeStream*> waited_for_;
  bool started_ = false;    // the attend of rows that are here is on the stream
  bool ending_ = false;     // the last work is on the stream
  bool progress_ = false;   // the last Advance did something
  bool merge_late_ = true;  // all replies fit their slots, so they are merged at the end
  PartialView target_;      // the caller's output buffer, or merged_
  BackendMemory merged_;    // f32 o, m, l of a call that is merged block by block
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;
  std::optional<KernelTargetId> target_kernel_;
  bool targets_differ_ = false;
};

}  // namespace ckv
