#include "client/call/attempts.h"

#include <optional>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status Attempts::Run(const Corpus* corpus, Instant deadline, Attempt attempt) {
  budget_.Earn();
  for (int retry = 0;; ++retry) {
    AttemptResult result = RunAtOnce(corpus, deadline, attempt);
    if (NextActFor(result.status) != NextAct::kRetryLater || !result.repeatable ||
        retry == kRetryCountMax || !AwaitRetry(result.status, deadline)) {
      return std::move(result.status);
    }
    Log().debug("{}; trying again", result.status.ToString());
  }
}

AttemptResult Attempts::RunAtOnce(const Corpus* corpus, Instant deadline, Attempt attempt) {
  auto context = pool_->Take(deadline);
  if (!context.ok()) return {context.status()};
  LinkTable& links = (*context)->links;
  links.BeginCall();
  while (true) {
    AttemptResult result = attempt(**context);
    const NextAct act = NextActFor(result.status);
    if (act == NextAct::kNone) return result;
    const bool may_repeat = result.repeatable && clock_->Now() < deadline;
    if (may_repeat && links.Reopen()) {
      if (act == NextAct::kReopen) counters_->reopens.fetch_add(1, std::memory_order_relaxed);
      Log().debug("{}; opening a new session", result.status.ToString());
      continue;
    }
    if (act == NextAct::kResolveAgain) view_->Forget(*corpus);
    // Its chunks may have been placed elsewhere meanwhile.
    if (act == NextAct::kReopen) view_->Doubt(*corpus);
    if (!may_repeat || act == NextAct::kGiveUp || !links.FailOver(result.status) ||
        (act == NextAct::kRetryLater && !budget_.Spend())) {
      return result;
    }
    counters_->failovers.fetch_add(1, std::memory_order_relaxed);
    Log().debug("{}; asking a replica", result.status.ToString());
  }
}

bool Attempts::AwaitRetry(const absl::Status& status, Instant deadline) {
  const std::optional<Duration> after = RetryAfterOf(status);
  const Instant now = clock_->Now();
  if (!after || *after > kRetryWaitMax || *after >= deadline - now) return false;
  if (!budget_.Spend()) {
    counters_->retries_refused.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  counters_->retries.fetch_add(1, std::memory_order_relaxed);
  clock_->WaitUntil(now + *after);
  return true;
}

}  // namespace ckv
