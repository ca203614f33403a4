// Attends: sends a call to its holders, then gathers and merges their partials.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/attend/block_merger.h"
#include "client/attend/local_attend.h"
#include "client/attend/planned_call.h"
#include "client/attend/stream_order.h"
#include "client/call/exchange.h"
#include "client/call/frame_poster.h"
#include "client/call/late_rounds.h"
#include "client/call/route_learn.h"
#include "client/calls.h"
#include "client/holders/counters.h"
#include "client/holders/link_table.h"
#include "client/plan/route_call.h"
#include "client/trace/call_spans.h"
#include "proto/base/clock.h"
#include "proto/kernel_target.h"

namespace ckv {

// Part of a call context. Belongs to the thread that holds the context. FramePoster sends the
// frames, LocalAttend makes the partials of local rows, and BlockMerger merges all of them.
//
//   Begin(call)                        plans the call and posts as much as the slots take
//   until Advance(buffers) returns true:  takes replies, posts the rest, merges
//     Rest()                           waits until a lane may have something
//   Finish(report)
//
// Attend does all of this. After an error of any of them call GiveUp; the answer is unchanged.
class Router {
 public:
  // Borrows its context's links, exchange and stream. All of them must outlive the router.
  Router(const LinkOptions* options, LinkTable* links, Exchange* exchange, ComputeStream* stream);

  // One attempt of an attend. After an error, nothing is written to the output buffer.
  absl::Status Attend(const RouteCall& call, AttendBuffers buffers, AttendReport* report);

  // Opens the links that a call would use and resolves the handles of its chunks. The call needs
  // only its segments and deadline.
  absl::Status Warm(const RouteCall& call);

  // Starts an attempt. OutOfRange, also of Advance, if candidates of a choice are gone. All memory
  // that `call` borrows must not change until Finish or GiveUp. Opens missing links, which may wait
  // for their holders.
  absl::Status Begin(const RouteCall& call);
  // Pairs of a query row and a locally cached row that the first Advance will attend, on its
  // thread.
  uint64_t cached_pairs_left() const {
    return phase_ < Phase::kReplies ? local_.cached_pairs() : 0;
  }
  // Returns true once the answer is complete. Does not wait for holders or streams. Once the first
  // queries are posted, also attends the caller's own rows and the locally cached ones. If the call
  // is polled at once, the attend of cached rows is timed: Advance waits for it.
  //   Also as Exchange::EndRound, if there is nothing to do.
  absl::StatusOr<bool> Advance(AttendBuffers buffers);
  // Waits, if the last Advance found nothing to do.
  absl::Status Rest();
  // Ends a complete attempt. `report` may be null.
  void Finish(AttendReport* report);
  // Ends an attempt that failed or is no longer wanted. Waits for the stream.
  void GiveUp();

  // When the attempt began, and when it is late: 95 of 100 like it have all replies by then.
  // kInstantMax if that is not known, or no chunk has another holder.
  Instant begun() const { return begin_; }
  Instant posted() const { return late_.posted(); }  // if late_at is known
  Instant late_at() const { return late_.late_at(); }
  // As GiveUp, for an attempt whose answer came from elsewhere.
  void GiveUpLate();

  // After an Advance that did not complete the call. If progressed(), another Advance may do more
  // work. Else if waits_for_stream(), a stream must first end its work; nothing signals that. Else
  // wait for the lanes of waiting().
  bool progressed() const { return progress_; }
  bool waits_for_stream() const {
    return order_.must_wait() || frames_.holds_any() || merger_.merging() || phase_ == Phase::kEnd;
  }
  std::span<RequestLane* const> waiting() const { return exchange_.waiting(); }

  const LaneShape& shape() const { return shape_; }

 private:
  // The next step of an attempt.
  enum class Phase : uint8_t {
    kQueries,  // the stream of the queries
    kHere,     // the attend of local rows
    kReplies,  // replies and merges
    kEnd,      // the end of the last work on the stream
  };
  // The reports of one holder in its replies.
  struct Answers {
    bool approximate = false;
    uint64_t compute_ns = 0;
    uint32_t last_compute_ns = 0;
  };
  // The kernel targets of the partials and of a device's merges.
  struct Targets {
    std::optional<KernelTargetId> last;
    bool differ = false;
    void Note(KernelTargetId target);
  };

  absl::Status Prepare();
  absl::Status ChooseAndConnect();
  absl::Status FindHandles(const PlannedUnit& unit);
  HolderLink* ChooseCandidatesOf(const PlannedUnit& unit, const AttendedChunk& attended,
                                 LinkTable::ChunkLinks& chunk_links, const ContextChunk& chunk);
  absl::Status AddPeer(HolderLink& link, uint32_t peer_index);
  void StartFrames();
  absl::StatusOr<bool> TakeQueries();
  absl::StatusOr<bool> StartHere(AttendBuffers buffers);
  absl::Status AttendHere();
  absl::Status Accept(const Exchange::Reply& reply);
  absl::Status Merge();
  void CountUses(Duration took);
  void Report(Duration took, Duration lost, AttendReport& report) const;

  Clock* const clock_;
  CallCounters* const counters_;  // may be null
  const LaneShape shape_;
  LinkTable& links_;
  Exchange& exchange_;
  ComputeStream& stream_;
  CallSpans spans_;

  // The call in progress.
  PlannedCall planned_;
  StreamOrder order_;
  LocalAttend local_;
  BlockMerger merger_;
  FramePoster frames_;
  RouteLearner learner_;
  LateRounds late_;
  Instant begin_;
  Phase phase_ = Phase::kQueries;
  bool progress_ = false;         // the last Advance did something
  std::vector<Answers> answers_;  // [peers]
  uint64_t bytes_received_ = 0;
  Targets targets_;
};

}  // namespace ckv
