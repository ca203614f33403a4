// One attempt of an attend. If its holders are late, replicas are queried, too: a hedge.

#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/call/attempts.h"
#include "client/call/call_context_pool.h"
#include "client/call/lane_wait.h"
#include "client/calls.h"
#include "client/plan/route_call.h"
#include "client/trace/call_tries.h"
#include "proto/base/clock.h"

namespace ckv {

// Drives the router of a call context, and that of a second one while a hedge is under way. Both
// compute the whole attend. The first that is complete writes the answer. The other is given up,
// and none of its replies is merged (I1). Replicas of one kernel target give the same bits (I2).
//
// An attempt is hedged once, and only
//   * after the time in which its holders answer 95 of 100 attempts of its size (LateRounds). Not
//     before kAfterMin: until then, a late reply mostly waits for a processor, as a replica's would
//   * if replicas that have not failed recently can give all the replies that are missing
//   * if no segment has a choice of rows: only the holders that scored them have the candidates
//   * within the budgets of hedges and of retries (Attempts::TakeHedge): at most one call in 20.
//     None is hedged soon after a holder was overloaded.
// From then on, later calls avoid the late holders until they answer. An attempt that is refused a
// hedge asks again after kAfterMin, then after twice that, and so on to kRefusedPauseMax.
//
// Only one thread at a time may use it, like its CallContext. The steps and errors are those of
// Router:
//
//   Begin(context, call)
//   until Advance(buffers, may_wait) returns true: Rest()
//   Finish(report)
//
// After an error call GiveUp.
class HedgedAttend {
 public:
  static constexpr Duration kAfterMin = std::chrono::milliseconds(2);
  // Between two questions for a hedge. Each looks at all replicas.
  static constexpr Duration kRefusedPauseMax = std::chrono::milliseconds(32);
  // The most pairs of a query row and a locally cached row that a step may attend itself if it may
  // not wait. At 20 ns of one core each, they take 40 us, about the cost of handing a call to
  // another thread.
  static constexpr uint64_t kShortPairsMax = 2048;
  // How long a hedge may wait for a session with a replica: the reply of the late holder, if it
  // arrives meanwhile, waits as long.
  static constexpr Duration kConnectMax = std::chrono::milliseconds(50);

  // Both must outlive this object.
  HedgedAttend(Attempts* attempts, Clock* clock) : attempts_(attempts), clock_(clock) {}
  ~HedgedAttend() { GiveUp(); }
  HedgedAttend(const HedgedAttend&) = delete;
  HedgedAttend& operator=(const HedgedAttend&) = delete;

  // Begins, advances and ends in one call. Errors as of Router.
  absl::Status Run(CallContext& context, const RouteCall& call, AttendBuffers buffers,
                   AttendReport* report);

  // `call` and what it borrows must not change until Finish or GiveUp.
  absl::Status Begin(CallContext& context, const RouteCall& call);
  // Makes the calling thread the owner of both contexts.
  void Claim();
  // Returns true once the answer is complete. If a hedge is due and would wait for a session, it is
  // begun only if `may_wait`; else must_wait() returns true until the next Advance.
  absl::StatusOr<bool> Advance(AttendBuffers buffers, bool may_wait);
  bool must_wait() const { return must_wait_; }
  // Waits, if the last Advance found nothing to do.
  absl::Status Rest();
  void Finish(AttendReport* report);
  void GiveUp();

  // After an Advance that did not complete the call, as of Router. Lanes are appended.
  bool progressed() const;
  bool waits_for_stream() const;
  void AddWaiting(std::vector<RequestLane*>& lanes) const;
  // When another Advance may begin a hedge.
  Instant hedge_at() const { return hedge_at_; }

 private:
  enum class Winner : uint8_t { kNone, kFirst, kHedge };

  void Take(CallContext& context, const RouteCall& call);
  // Notes when the attempt, whose first frames are posted, is late.
  void Watch();
  absl::StatusOr<bool> AdvanceFirst(AttendBuffers buffers);
  void AdvanceHedge(AttendBuffers buffers);
  void MaybeHedge(bool may_wait);
  void EndHedge();

  Attempts* const attempts_;
  Clock* const clock_;
  CallContext* context_ = nullptr;  // null if no attempt is under way
  RouteCall call_;
  bool first_runs_ = false;
  absl::Status first_error_;  // while only the hedge runs
  Instant hedge_at_ = kInstantMax;
  Duration refused_pause_ = kAfterMin;
  bool must_wait_ = false;
  std::optional<CallContextPool::Lease> hedge_;  // set while a hedge runs
  CallTries hedge_tries_;
  Winner winner_ = Winner::kNone;
  LaneSleep sleep_;  // while a hedge runs
  std::vector<RequestLane*> lanes_;
};

}  // namespace ckv
