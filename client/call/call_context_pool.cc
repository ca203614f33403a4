#include "client/session_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv {

EnginePool::EnginePool(Clock* clock, uint32_t engine_count_max,
                       absl::AnyInvocable<std::unique_ptr<CallEngine>()> make)
    : clock_(clock), engine_count_max_(engine_count_max), make_(std::move(make)) {
  free_.reserve(engine_count_max);
}

absl::StatusOr<EnginePool::Lease> EnginePool::Take(Instant deadline) {
  absl::MutexLock lock(&mu_);
  if (!free_.empty()) {
    std::unique_ptr<CallEngine> engine = std::move(free_.back());
    free_.pop_back();
    return Lease(this, std::move(engine));
  }
  if (engine_count_ < engine_count_max_) {
    ++engine_count_;
    return Lease(this, make_());
  }
  if (waiters_.size() >= kWaiterCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d calls in progress and %d waiting: the limit of this requester",
                        engine_count_max_, kWaiterCountMax));
  }
  std::unique_ptr<Waiter> waiter;
  if (idle_waiters_.empty()) {
    waiter = std::make_unique<Waiter>();
  } else {
    waiter = std::move(idle_waiters_.back());
    idle_waiters_.pop_back();
  }
  waiter->served.store(false, std::memory_order_relaxed);
  const auto place = waiters_.insert(waiters_.end(), waiter.get());
  const bool served = clock_->Await(mu_, waiter->condition, deadline);
  if (!served) waiters_.erase(place);
  std::unique_ptr<CallEngine> engine = std::move(waiter->engine);
  idle_waiters_.push_back(std::move(waiter));
  if (served) return Lease(this, std::move(engine));
  return absl::DeadlineExceededError(
      absl::StrFormat("all %d engines of this requester were in use", engine_count_max_));
}

void EnginePool::GiveBack(std::unique_ptr<CallEngine> engine) {
  const Instant now = clock_->Now();
  std::unique_ptr<CallEngine> untidy;
  {
    absl::MutexLock lock(&mu_);
    // A link that it did not use just now is found with the others, a while later.
    engine->next_tidy = now + LinkTable::kLinkIdleMax;
    Hand(std::move(engine), /*warm=*/true);
    untidy = TakeUntidy(now);
  }
  if (untidy == nullptr) return;
  untidy->next_tidy = untidy->router.links().CloseOneIdle(now);
  absl::MutexLock lock(&mu_);
  Hand(std::move(untidy), /*warm=*/false);
}

void EnginePool::Hand(std::unique_ptr<CallEngine> engine, bool warm) {
  if (waiters_.empty()) {
    next_tidy_ = std::min(next_tidy_, engine->next_tidy);
    free_.insert(warm ? free_.end() : free_.begin(), std::move(engine));
    return;
  }
  Waiter* const next = waiters_.front();
  waiters_.pop_front();
  next->engine = std::move(engine);
  next->served.store(true, std::memory_order_relaxed);
}

std::unique_ptr<CallEngine> EnginePool::TakeUntidy(Instant now) {
  if (now < next_tidy_) return nullptr;
  std::unique_ptr<CallEngine> untidy;
  next_tidy_ = kInstantMax;
  for (auto& engine : free_) {
    if (untidy == nullptr && engine->next_tidy <= now) {
      untidy = std::move(engine);
    } else {
      next_tidy_ = std::min(next_tidy_, engine->next_tidy);
    }
  }
  std::erase(free_, nullptr);
  return untidy;
}

}  // namespace ckv
