#include "client/call/attempts.h"

#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status Attempts::Run(Corpora corpora, Instant deadline, Attempt attempt,
                           const TraceContext& trace) {
  budget_.Earn();
  for (int retry = 0;; ++retry) {
    AttemptResult result;
    {
      // Given back before a wait: others may use it meanwhile.
      auto context = pool_->Take(deadline);
      if (!context.ok()) return WithTrace(context.status(), trace);
      (*context)->links.BeginCall();
      do {
        result = attempt(**context);
        if (result.status.ok()) return absl::OkStatus();
      } while (Cure(**context, corpora, deadline, result, trace));
    }
    const std::optional<Instant> again = RetryAt(result, retry, deadline, trace);
    if (!again) return WithTrace(result.status, trace);
    clock_->WaitUntil(*again);
  }
}

void Attempts::Begin(CallContext& context) {
  budget_.Earn();
  context.links.BeginCall();
}

bool Attempts::Cure(CallContext& context, Corpora corpora, Instant deadline,
                    const AttemptResult& result, const TraceContext& trace) {
  const ScopedTrace scope(trace);
  const NextAct act = NextActFor(result.status);
  if (act == NextAct::kNone) return false;
  const bool may_repeat = result.repeatable && clock_->Now() < deadline;
  if (may_repeat && context.links.Reopen()) {
    if (act == NextAct::kReopen) counters_->reopens.fetch_add(1, std::memory_order_relaxed);
    Log().debug("{}; opening a new session", result.status.ToString());
    return true;
  }
  if (act == NextAct::kResolveAgain) corpora([&](const Corpus& c) { view_->Forget(c); });
  // Its chunks may have been placed elsewhere meanwhile.
  if (act == NextAct::kReopen) corpora([&](const Corpus& c) { view_->Doubt(c); });
  if (!may_repeat || act == NextAct::kGiveUp || !context.links.FailOver(result.status) ||
      (act == NextAct::kRetryLater && !budget_.Spend())) {
    return false;
  }
  counters_->failovers.fetch_add(1, std::memory_order_relaxed);
  Log().debug("{}; asking a replica", result.status.ToString());
  return true;
}

std::optional<Instant> Attempts::RetryAt(const AttemptResult& result, int retry_count,
                                         Instant deadline, const TraceContext& trace) {
  const ScopedTrace scope(trace);
  if (NextActFor(result.status) != NextAct::kRetryLater || !result.repeatable ||
      retry_count >= kRetryCountMax) {
    return std::nullopt;
  }
  const std::optional<Duration> after = RetryAfterOf(result.status);
  const Instant now = clock_->Now();
  if (!after || *after > kRetryWaitMax || *after >= deadline - now) return std::nullopt;
  if (!budget_.Spend()) {
    counters_->retries_refused.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  counters_->retries.fetch_add(1, std::memory_order_relaxed);
  Log().debug("{}; trying again", result.status.ToString());
  return now + *after;
}

}  // namespace ckv
