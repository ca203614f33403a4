// Repeats a call on the thread of the call. After a failed attempt, in order:
//   Cure      while it has the call context: a new session, else another replica, at once
//   AgainAt   sets a later time. If a holder gave a hint, RetryAt takes it, within the budget. Else
//             ReturnAt waits for a holder to return, with growing pauses, but not for chunks that
//             have moved
//   Rest      waits until then. A wait for a holder ends early if the directory view changes
// If neither Cure nor AgainAt repeats the call, it fails.

#include "client/call/attempts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Returns what may resolve the error of a call. If a holder caused it, by ending calls as it stops
// or by a fault, its replicas may still succeed.
NextAct ActFor(const absl::Status& status, bool holder_failed) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return holder_failed ? NextAct::kTryAnother : NextAct::kGiveUp;
    default:
      return NextActFor(status);
  }
}

// Whether the failure passes once its holder is back.
bool PassesByItself(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

// How long a waiting call may query the directory for the current places of its chunks.
constexpr Duration kMovedLookMax = std::chrono::seconds(1);

// Whether a corpus that the view had kept has changed at the directory. Queries the directory only
// if the view no longer keeps the corpus.
bool HasMoved(DirectoryView& view, const Corpus& corpus, Instant deadline) {
  if (view.Keeps(corpus)) return false;
  if (!corpus.name.empty()) {
    const auto known = view.Resolve(corpus.name, corpus.tenant, deadline);
    return known.ok() ? (*known)->version != corpus.version : absl::IsNotFound(known.status());
  }
  // An Invalidate of any name drops nameless corpora too, so its chunks may not have moved.
  std::vector<ChunkId> ids;
  for (const ChunkPlacement& chunk : corpus.chunks) ids.push_back(chunk.id);
  const auto known = view.ResolveChunks(ids, corpus.geometry, corpus.tenant, deadline);
  return known.ok() ? **known != corpus : absl::IsNotFound(known.status());
}

}  // namespace

void Attempts::Enter(CallContext& context, CallTries& tries) {
  context.links.BeginCall();
  context.tries = &tries;
}

absl::Status Attempts::Run(const Corpus* corpus, Instant deadline, Attempt attempt,
                           const TraceContext& trace) {
  Begin();
  CallTries tries;
  while (true) {
    AttemptResult result;
    {
      // Released before a wait, so that others can use it meanwhile.
      auto context = pool_->Take(deadline);
      if (!context.ok()) {
        result = {context.status(), /*repeatable=*/false};
      } else {
        Enter(**context, tries);
        do {
          result = attempt(**context);
          if (result.status.ok()) return absl::OkStatus();
          if (corpus != nullptr) result.corpora = {&corpus, 1};
        } while (Cure(**context, deadline, result, trace));
      }
    }
    const std::optional<Instant> again = AgainAt(tries, deadline, result, trace);
    if (!again) {
      tries.EndSpan(/*failed=*/true, clock_->Now());
      return WithTrace(tries.Final(result.status, clock_->Now()), trace);
    }
    Rest(tries, *again);
  }
}

bool Attempts::Cure(CallContext& context, Instant deadline, const AttemptResult& result,
                    const TraceContext& trace) {
  const ScopedTrace scope(trace);
  const bool holder_failed = context.links.holder_failed();
  const NextAct act = ActFor(result.status, holder_failed);
  CallTries& tries = *context.tries;
  tries.Fail(result.status);
  tries.may_mend |= holder_failed && PassesByItself(result.status);
  // The call or this process is to blame.
  if (act == NextAct::kGiveUp) tries.may_mend = false;
  if (result.progressed) {
    tries.wait_count = 0;
    tries.pause = Duration(0);
  }
  if (act == NextAct::kNone) return false;
  NoteFailure(result.status);
  const bool may_repeat = result.repeatable && clock_->Now() < deadline;
  if (may_repeat && context.links.Reopen()) {
    if (act == NextAct::kReopen) counters_->reopens.fetch_add(1, std::memory_order_relaxed);
    Log().debug("{}; opening a new session", result.status.ToString());
    return true;
  }
  for (const Corpus* corpus : result.corpora) {
    if (act == NextAct::kResolveAgain) view_->Invalidate(*corpus);
    // Its chunks may have been placed elsewhere meanwhile.
    if (act == NextAct::kReopen) view_->Doubt(*corpus);
  }
  if (!may_repeat || act == NextAct::kGiveUp || !context.links.FailOver(result.status) ||
      (act == NextAct::kRetryLater && !budget_.Spend())) {
    return false;
  }
  counters_->failovers.fetch_add(1, std::memory_order_relaxed);
  Log().debug("{}; asking a replica", result.status.ToString());
  return true;
}

std::optional<Instant> Attempts::AgainAt(CallTries& tries, Instant deadline,
                                         const AttemptResult& result, const TraceContext& trace) {
  const ScopedTrace scope(trace);
  tries.waits = false;
  if (!result.repeatable) return std::nullopt;
  if (RetryAfterOf(result.status)) return RetryAt(tries, deadline, result.status);
  return result.may_wait ? ReturnAt(tries, deadline, result) : std::nullopt;
}

// Returns when to retry, as an overloaded holder requested.
std::optional<Instant> Attempts::RetryAt(CallTries& tries, Instant deadline,
                                         const absl::Status& status) {
  if (NextActFor(status) != NextAct::kRetryLater || tries.retry_count >= kRetryCountMax)
    return std::nullopt;
  const Duration after = *RetryAfterOf(status);
  const Instant now = clock_->Now();
  if (after > kRetryWaitMax || after >= deadline - now) return std::nullopt;
  if (!budget_.Spend()) {
    counters_->retries_refused.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  ++tries.retry_count;
  counters_->retries.fetch_add(1, std::memory_order_relaxed);
  Log().debug("{}; trying again", status.ToString());
  return now + after;
}

std::optional<Instant> Attempts::ReturnAt(CallTries& tries, Instant deadline,
                                          const AttemptResult& result) {
  if (!tries.may_mend || stopping_.load()) return std::nullopt;
  const Instant now = clock_->Now();
  if (tries.wait_count == 0) {
    tries.wait_begun = now;
    tries.wait_end = ReturnWaitEnd(now, deadline);
    tries.seen_changes = view_->changes();
    tries.was_kept = true;
    for (const Corpus* corpus : result.corpora)
      tries.was_kept = tries.was_kept && view_->Keeps(*corpus);
  }
  if (now >= tries.wait_end) return std::nullopt;
  // Does not wait for chunks that have moved: resolving the corpus again finds them.
  bool moved = false;
  const Instant look_end = std::min(tries.wait_end, now + kMovedLookMax);
  if (tries.was_kept && tries.may_query) {
    for (const Corpus* corpus : result.corpora)
      moved = moved || HasMoved(*view_, *corpus, look_end);
  }
  if (moved) return std::nullopt;
  ++tries.wait_count;
  tries.waits = true;
  tries.pause = std::clamp(2 * tries.pause, kReturnPauseMin, kReturnPauseMax);
  counters_->returns.fetch_add(1, std::memory_order_relaxed);
  Log().debug("{}; waiting for a holder to return", result.status.ToString());
  return std::min(now + tries.pause, tries.wait_end);
}

void Attempts::Rest(CallTries& tries, Instant again) {
  if (!tries.waits) return clock_->WaitUntil(again);
  view_->AwaitChange(tries.seen_changes, again);
  EndRest(tries);
}

void Attempts::EndRest(CallTries& tries) {
  tries.seen_changes = view_->changes();
  tries.stale = true;
  tries.waits = tries.may_mend = false;
}

std::optional<CallContextPool::Lease> Attempts::TakeHedge(Instant now) {
  const Instant overloaded{overloaded_ns_.load(std::memory_order_relaxed)};
  if (overloaded != Instant() && now - overloaded < kOverloadMax) return std::nullopt;
  if (!hedges_.Spend()) return std::nullopt;
  if (!budget_.Spend()) {
    hedges_.Return();
    return std::nullopt;
  }
  if (auto lease = pool_->TryTakeHedge(); lease.ok()) return *std::move(lease);
  ReturnHedge();
  return std::nullopt;
}

void Attempts::ReturnHedge() {
  hedges_.Return();
  budget_.Return();
}

void Attempts::NoteFailure(const absl::Status& status) {
  if (NextActFor(status) == NextAct::kRetryLater)
    overloaded_ns_.store(clock_->Now().ns, std::memory_order_relaxed);
}

void Attempts::Stop() {
  stopping_.store(true);
  view_->Wake();
}

}  // namespace ckv
