// Decides how often a call is tried, when, and at which holders. One policy serves every call.

#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/call/call_context_pool.h"
#include "client/holders/counters.h"
#include "client/holders/directory_view.h"
#include "client/holders/retry.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/corpus.h"

namespace ckv {

// How an attempt of a call ended.
struct AttemptResult {
  absl::Status status;
  bool repeatable = true;  // false if the caller ended the call, for example by its sink
};

// Thread-safe. NextActFor (proto/base/status.h) says what may cure an error. This class says how
// often each cure is tried (I5):
//   a new session          once per holder, if its session or lane failed; a few times while its
//                          epoch moves on (LinkTable::Reopen)
//   another replica        once each; after an overload it spends a retry of the budget
//   the same again, later  kRetryCountMax times, after the wait that an overloaded holder asks for,
//                          if the budget of retries allows it
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
  // last status. If the error casts doubt on a corpus, the directory is asked about it before its
  // next use.
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

  // The same, step by step, for calls that do not wait here. Begin once; after an attempt failed,
  // Cure says whether to try again at once, and RetryAt whether to try again later.
  void Begin(CallContext& context);
  bool Cure(CallContext& context, Corpora corpora, Instant deadline, const AttemptResult& result,
            const TraceContext& trace = {});
  // Returns when to try again, or nothing if the call has failed. `retry_count` retries were made.
  std::optional<Instant> RetryAt(const AttemptResult& result, int retry_count, Instant deadline,
                                 const TraceContext& trace = {});

 private:
  Clock* const clock_;
  CallContextPool* const pool_;
  DirectoryView* const view_;
  CallCounters* const counters_;
  RetryBudget budget_;
};

}  // namespace ckv
