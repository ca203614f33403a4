// Decides how often a call is tried, when, and at which holders. One policy serves every call.

#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/call/call_context_pool.h"
#include "client/holders/counters.h"
#include "client/holders/directory_view.h"
#include "client/holders/retry.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// How an attempt of a call ended.
struct AttemptResult {
  absl::Status status;
  bool repeatable = true;  // false if the caller ended the call, for example by its sink
};

// Thread-safe. NextActFor (proto/base/status.h) says what may cure an error. This class says how
// often each cure is tried (I5):
//   a new session          once per holder, if its session or lane failed
//   another replica        once each; after an overload it spends a retry of the budget
//   the same again, later  kRetryCountMax times, after the wait that an overloaded holder asks for,
//                          if the budget of retries allows it
// No attempt begins after the deadline. Calls only read, so asking twice is safe. Replies to an
// attempt that was given up match no request of the next (I1).
class Attempts {
 public:
  using Attempt = absl::FunctionRef<AttemptResult(CallContext&)>;

  // All must outlive it.
  Attempts(Clock* clock, CallContextPool* pool, DirectoryView* view, CallCounters* counters)
      : clock_(clock), pool_(pool), view_(view), counters_(counters) {}

  // Takes a call context and runs `attempt` until it succeeds or the policy ends it. Returns the
  // last status. If the error casts doubt on `corpus`, the directory is asked about it before its
  // next use.
  //   DeadlineExceeded, ResourceExhausted  also as CallContextPool::Take.
  absl::Status Run(const Corpus* corpus, Instant deadline, Attempt attempt);

 private:
  // The attempts between two waits.
  AttemptResult RunAtOnce(const Corpus* corpus, Instant deadline, Attempt attempt);
  // Waits as long as the status asks. Returns false at once if it does not ask, if its wait is too
  // long, or if no retry is left.
  bool AwaitRetry(const absl::Status& status, Instant deadline);

  Clock* const clock_;
  CallContextPool* const pool_;
  DirectoryView* const view_;
  CallCounters* const counters_;
  RetryBudget budget_;
};

}  // namespace ckv
