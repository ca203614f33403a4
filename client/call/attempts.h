// Decides how often a call is attempted, when, and at which holders. All calls use the same policy.

#pragma once

#include <atomic>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/call_context_pool.h"
#include "client/holders/counters.h"
#include "client/holders/directory_view.h"
#include "client/holders/retry.h"
#include "client/trace/call_tries.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/corpus.h"

namespace ckv {

// The result of one attempt of a call.
struct AttemptResult {
  absl::Status status;
  bool repeatable = true;  // false if the caller ended the call, for example by its sink
  // False for a call that reports the current state of holders, and so must not wait for one.
  bool may_wait = true;
  // True if rows arrived that need not be sent again. The pauses between attempts then start over.
  bool progressed = false;
  // The corpora of the call. Read only after an error. May be empty if no holder was asked.
  std::span<const Corpus* const> corpora = {};
};

// Thread-safe. NextActFor (proto/base/status.h) determines what may cure an error. This class
// limits how often each cure is tried (I5). A call fails only when no holder of a chunk is left,
// and waiting cannot help or the deadline has passed (deploy/adr/0044-calls-that-wait.md):
//
//   code of the failure   cure
//   UNAVAILABLE, ABORTED  a new session once per holder, a few times while its epoch changes
//                         (LinkTable::Reopen); then another replica; then waits for a holder
//   DEADLINE_EXCEEDED     of a step with its own limit, for example connect_timeout, or of a holder
//                         that is silent for half of the time (Exchange): another replica; then
//                         waits
//   CANCELLED             by a holder that stops: the same
//   INTERNAL, UNKNOWN     of a holder: another replica
//   NOT_FOUND             of a chunk: a new session, another replica; resolve the corpus again
//   DATA_LOSS, FAILED_PRECONDITION  another replica
//   RESOURCE_EXHAUSTED    another replica, or the same holder after the wait that it requests: at
//                         most kRetryCountMax times, if the budget of retries allows it
//   all others            none: the call is wrong, or not permitted
//
// "Waits for a holder": a failed holder may be restarting. The call is retried after the pauses of
// client/holders/retry.h, and immediately if the directory reports a change of a holder. A call
// that was refused with a hint does not wait.
//
// An attend whose holders are late is hedged (client/call/hedge.h). All repetitions share a budget.
//
// No attempt begins after the deadline. Calls only read, so sending one twice is safe. Replies to
// an abandoned attempt match no request of the next (I1).
class Attempts {
 public:
  using Attempt = absl::FunctionRef<AttemptResult(CallContext&)>;

  // All must outlive this object.
  Attempts(Clock* clock, CallContextPool* pool, DirectoryView* view, CallCounters* counters)
      : clock_(clock), pool_(pool), view_(view), counters_(counters) {}

  // Takes a call context and runs `attempt` until it succeeds or the policy ends the call. Returns
  // the last status, which also names the causes of earlier failures. If the error casts doubt on a
  // corpus, the directory is queried about it before its next use. During the call, the context's
  // `tries` belong to it. Errors, and log lines about them, name `trace` if it is set. If `corpus`
  // is null, the results of attempts name the call's corpora.
  //   DeadlineExceeded, ResourceExhausted  also as CallContextPool::Take.
  absl::Status Run(const Corpus* corpus, Instant deadline, Attempt attempt,
                   const TraceContext& trace = {});

  // As Run, step by step, for calls that do not wait here. Begin once, and Enter each context that
  // the call takes. After a failed attempt, Cure returns whether to try again immediately. If not,
  // AgainAt returns whether to try again later, in any context.
  void Begin() {
    budget_.Earn();
    hedges_.Earn();
  }
  static void Enter(CallContext& context, CallTries& tries);
  bool Cure(CallContext& context, Instant deadline, const AttemptResult& result,
            const TraceContext& trace = {});
  // Returns when to try again; unset if the call has failed.
  std::optional<Instant> AgainAt(CallTries& tries, Instant deadline, const AttemptResult& result,
                                 const TraceContext& trace = {});
  // Waits until `again`, or until a holder that the call waits for may be available.
  void Rest(CallTries& tries, Instant again);
  // Call it instead of Rest if the caller has done the waiting.
  void EndRest(CallTries& tries);
  // Takes a context for a call that returned its own. As CallContextPool::TryTake.
  absl::StatusOr<CallContextPool::Lease> TryTake() { return pool_->TryTake(); }

  // Takes a context for a hedge (client/call/hedge.h), if one is free and the budgets of hedges and
  // of retries allow it. None is taken for kOverloadMax after a holder was overloaded. ReturnHedge
  // gives back the budget of a hedge that was not begun; CountHedge counts one that was.
  std::optional<CallContextPool::Lease> TakeHedge(Instant now);
  void ReturnHedge();
  void CountHedge() { counters_->hedges.fetch_add(1, std::memory_order_relaxed); }
  void CountHedgeWon() { counters_->hedges_won.fetch_add(1, std::memory_order_relaxed); }
  // Takes the error of one of the two attempts of a hedged call, of which Cure does not learn.
  void NoteFailure(const absl::Status& status);
  static constexpr Duration kOverloadMax = std::chrono::seconds(1);

  // Ends all waits for holders and prevents new ones. The waiting calls fail.
  void Stop();

 private:
  std::optional<Instant> RetryAt(CallTries& tries, Instant deadline, const absl::Status& status);
  std::optional<Instant> ReturnAt(CallTries& tries, Instant deadline, const AttemptResult& result);

  Clock* const clock_;
  CallContextPool* const pool_;
  DirectoryView* const view_;
  CallCounters* const counters_;
  std::atomic<bool> stopping_{false};
  RetryBudget budget_;
  RetryBudget hedges_{kCallsPerHedge};
  std::atomic<int64_t> overloaded_ns_{0};  // when a holder was last overloaded
};

}  // namespace ckv
