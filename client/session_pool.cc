#include "client/session_pool.h"

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
  Waiter waiter;
  const auto place = waiters_.insert(waiters_.end(), &waiter);
  const auto served = [](Waiter* w) { return w->engine != nullptr; };
  if (clock_->Await(mu_, absl::Condition(+served, &waiter), deadline))
    return Lease(this, std::move(waiter.engine));
  waiters_.erase(place);
  return absl::DeadlineExceededError(
      absl::StrFormat("all %d engines of this requester were in use", engine_count_max_));
}

void EnginePool::GiveBack(std::unique_ptr<CallEngine> engine) {
  absl::MutexLock lock(&mu_);
  if (waiters_.empty()) {
    free_.push_back(std::move(engine));
    return;
  }
  waiters_.front()->engine = std::move(engine);
  waiters_.pop_front();
}

}  // namespace ckv
