// Attends: sends a call to its holders, and gathers and merges their partials.

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

// Part of a call context. Belongs to the thread that has the context.
//
//   Begin(call)                        plans the call and posts what the slots take
//   until Advance(room) says true:     takes replies, posts the rest, merges
//     Rest()                           waits until a lane may have something
//   Finish(report)
//
// Attend does all of it. After an error of any of them call GiveUp; the answer is as it was.
class Router {
 public:
  // Borrows its context's links, exchange and stream. All of them must outlive the router.
  Router(const LinkOptions* options, LinkTable* links, Exchange* exchange, ComputeStream* stream);

  // One attempt of an attend. After an error nothing is written to the room.
  absl::Status Attend(const RouteCall& call, AttendRoom room, AttendReport* report);

  // Opens the links that a call would use and resolves the handles of its chunks. The call needs
  // its segments and deadline only.
  absl::Status Warm(const RouteCall& call);

  // Starts an attempt. `call` must stay as it is until Finish or GiveUp. Opens the links that are
  // not up, which may wait for their holders.
  absl::Status Begin(const RouteCall& call);
  // Pairs of a query row and a near row that the first Advance will attend, on its thread.
  uint64_t near_pairs_left() const { return started_ ? 0 : near_pairs_; }
  // Returns true once the answer is complete. Does not wait, for holders or for streams. Once the
  // first queries are posted, it also attends the rows of the caller's own, and those that are
  // near. Near rows of a call that is polled at once are timed: it waits for those.
  //   Also as Exchange::EndRound, if it finds nothing to do.
  absl::StatusOr<bool> Advance(AttendRoom room);
  // Waits, if the last Advance found nothing to do.
  absl::Status Rest();
  // Ends an attempt that is complete. `report` may be null.
  void Finish(AttendReport* report);
  // Ends an attempt that failed or is no longer wanted. Waits for the stream.
  void GiveUp();

  // After an Advance that was not complete: whether it did something, so that another may too. If
  // not, whether a stream has to end its work first; nothing tells when it does. If neither, the
  // lanes to wait for.
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
    uint32_t open_block_count = 0;  // blocks of it that are not merged; the slot is kept for them
    uint32_t copy = 0;              // in copies_, if the reply was copied out
    std::span<const std::byte> reply;
    MemoryKind memory = MemoryKind::kHost;  // the reply's
  };
  // The part of the call that goes to one holder.
  struct Flow {
    uint32_t next = 0;  // the next frame to post
    bool asked = false;
    // A block has more frames than the lane has slots. Replies are then copied out as they come,
    // one block at a time.
    bool copy_out = false;
    bool approximate = false;  // an answer was approximate
    uint64_t compute_ns = 0;
    uint32_t last_compute_ns = 0;
    // Times of a round whose only frame had the holder to itself: as predicted and, if this thread
    // did nothing else meanwhile, as measured.
    double expected_us = 0, busy_us = 0, took_us = 0;
  };
  // A frame in its slot, which leaves once the stream has written it.
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
  // Whether the time from a post to its reply is the holder's. It is not if this thread did
  // something else meanwhile.
  bool Timed() const { return (call_->polled_at_once || call_->prompt) && here_pieces_.empty(); }

  // Attends what is here: own rows, and near chunks.
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
  RouteCall taken_;  // *call_, whose queries come after no stream once stream_ is behind theirs
  Instant begin_;
  std::vector<PlannedLine> lines_;
  std::vector<Flow> flows_;  // the first lines_.size() are in use; the rest keep their memory
  std::vector<Frame> frames_;
  std::vector<Written> written_;       // not posted yet, in order
  std::vector<BackendMemory> copies_;  // replies, if a flow copies out
  std::vector<uint32_t> free_copies_;
  std::vector<uint32_t> missing_;  // [blocks] parts that have not come
  std::vector<uint32_t> ready_;    // blocks whose parts all came and that are not closed
  uint32_t merging_count_ = 0;     // the first of them, whose merges are on the stream
  Instant merge_begin_;
  std::vector<bool> merged_block_;  // [blocks]
  uint32_t merged_count_ = 0;
  uint32_t first_open_ = 0;  // all blocks before it are merged
  // The merges of one operation, and their parts one after another.
  std::vector<MergeJob> merges_;
  std::vector<size_t> part_ends_;  // [merges] in parts_ and levels_
  std::vector<ConstPartialView> parts_;
  std::vector<uint8_t> levels_;
  std::vector<AttentionPiece> here_pieces_;  // own rows, then near chunks in the plan's order
  BackendMemory here_;                       // their partials: f32 o, m, l of each piece
  std::vector<uint32_t> own_begin_;          // [segments + 1] in here_pieces_
  // Queries of near chunks that are not at their canonical positions: a copy for each unit and
  // rotation.
  struct NearCopy {
    uint32_t unit = 0, rotation = 0;
    size_t begin = 0, end = 0;  // bytes of near_q_
  };
  uint64_t near_bytes_ = 0;  // memory for the near pieces planned so far
  uint64_t near_pairs_ = 0;
  double here_us_ = 0;  // predicted for the attend of near and own rows; 0 if it is not known
  std::vector<NearCopy> near_copies_;
  BackendMemory near_q_;
  bool queries_taken_ = false;  // stream_ is behind the stream that makes the queries
  // Streams behind which stream_ is had done their work when this thread last looked.
  bool producers_ready_ = true;
  // Another backend's: one to be waited for first, and those that were.
  ComputeStream* held_by_ = nullptr;
  std::vector<ComputeStream*> waited_for_;
  bool started_ = false;    // rows that are here have been put on the stream
  bool ending_ = false;     // the last work is on the stream
  bool progress_ = false;   // the last Advance did something
  bool merge_late_ = true;  // all replies fit their slots, so they are merged at the end
  PartialView target_;      // the caller's room, or merged_
  BackendMemory merged_;    // f32 o, m, l of a call that is merged block by block
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;
  std::optional<KernelTargetId> target_kernel_;
  bool targets_differ_ = false;
};

}  // namespace ckv
