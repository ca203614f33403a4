// Decides how often a call is tried, when, and at which holders. One policy serves every call.

#pragma once

#include <atomic>
#include <optional>

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

// How an attempt of a call ended.
struct AttemptResult {
  absl::Status status;
  bool repeatable = true;  // false if the caller ended the call, for example by its sink
  // False for a call that reports the current state of holders, and so does not wait for one.
  bool may_wait = true;
  // True if rows arrived that need not be sent again. The pauses between attempts then restart.
  bool progressed = false;
};

// Thread-safe. NextActFor (proto/base/status.h) says what may cure an error. This class says how
// often each cure is tried (I5). A call fails only when no holder of a chunk is left, and
// waiting cannot help or the deadline is reached (deploy/adr/0044-calls-that-wait.md):
//
//   code of the failure   cure
//   UNAVAILABLE, ABORTED  a new session once per holder, a few times while its epoch moves on
//                         (LinkTable::Reopen); then another replica; then waits for a holder
//   DEADLINE_EXCEEDED     of a step with a limit of its own, as connect_timeout, or of a holder
//                         that is silent for half of the time (Exchange): another replica; then
//                         waits
//   CANCELLED             by a holder that stops: the same
//   INTERNAL, UNKNOWN     of a holder: another replica
//   NOT_FOUND             of a chunk: a new session, another replica; resolve the corpus again
//   DATA_LOSS, FAILED_PRECONDITION  another replica
//   RESOURCE_EXHAUSTED    another replica, or the same holder after the wait that it asks for: at
//                         most kRetryCountMax times, if the budget of retries allows it
//   all others            none: the call is wrong, or not permitted
//
// "Waits for a holder": a holder that failed may be restarting. The call is tried again after the
// pauses of client/holders/retry.h, and at once if the directory reports a change of a holder. A
// call that was refused with a hint does not wait.
//
// No attempt begins after the deadline. Calls only read, so asking twice is safe. Replies to an
// attempt that was given up match no request of the next (I1).
class Attempts {
 public:
  using Attempt = absl::FunctionRef<AttemptResult(CallContext&)>;
  // Calls its argument with every corpus of the call.
  using Corpora = absl::FunctionRef<void(absl::FunctionRef<void(const Corpus&)>)>;

  // All must outlive it.
  Attempts(Clock* clock, CallContextPool* pool, DirectoryView* view, CallCounters* counters)
      : clock_(clock), pool_(pool), view_(view), counters_(counters) {}

  // Takes a call context and runs `attempt` until it succeeds or the policy ends it. Returns the
  // last status, which names the causes of the others. If the error casts doubt on a corpus, the
  // directory is asked about it before its next use. The context's `tries` then belong to the call.
  // Errors, and lines of the log about them, name `trace` if it is set.
  //   DeadlineExceeded, ResourceExhausted  also as CallContextPool::Take.
  absl::Status Run(Corpora corpora, Instant deadline, Attempt attempt,
                   const TraceContext& trace = {});
  // The same for a call over one corpus.
  absl::Status Run(const Corpus* corpus, Instant deadline, Attempt attempt,
                   const TraceContext& trace = {}) {
    return Run([corpus](absl::FunctionRef<void(const Corpus&)> visit) { visit(*corpus); }, deadline,
               attempt, trace);
  }

  // The same, step by step, for calls that do not wait here. Begin once, and Enter each context
  // that the call takes. After an attempt failed, Cure says whether to try again at once.
  // AgainAt says whether to try again later, in any context.
  void Begin() { budget_.Earn(); }
  static void Enter(CallContext& context, CallTries& tries);
  bool Cure(CallContext& context, Corpora corpora, Instant deadline, const AttemptResult& result,
            const TraceContext& trace = {});
  // Returns when to try again, or nothing if the call has failed.
  std::optional<Instant> AgainAt(CallTries& tries, Corpora corpora, Instant deadline,
                                 const AttemptResult& result, const TraceContext& trace = {});
  // Waits until `again`, or until a holder that the call waits for may be back.
  void Rest(CallTries& tries, Instant again);
  // Call it instead of Rest if the caller has waited itself.
  void EndRest(CallTries& tries);
  // Takes a context for a call that gave its own back. As CallContextPool::TryTake.
  absl::StatusOr<CallContextPool::Lease> TryTake() { return pool_->TryTake(); }

  // Ends all waits for holders, and allows no new ones. The waiting calls fail.
  void Stop();

 private:
  std::optional<Instant> RetryAt(CallTries& tries, Instant deadline, const absl::Status& status);
  std::optional<Instant> ReturnAt(CallTries& tries, Corpora corpora, Instant deadline,
                                  const absl::Status& status);

  Clock* const clock_;
  CallContextPool* const pool_;
  DirectoryView* const view_;
  CallCounters* const counters_;
  std::atomic<bool> stopping_{false};
  RetryBudget budget_;
};

}  // namespace ckv
