// A place is what a call or a hedge takes: TakePlace counts it and finds a free context, and Fill
// makes one if none is free. GiveBack ends the place, and with EndPlace a call that waits gets it,
// with its context. AwaitPlace waits. Without a waiter the context is free, the warmest last.

#include "client/call/call_context_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<CallContext>> CallContext::Make(const LinkOptions* options,
                                                               PeerTable* peers, Duration spin_max,
                                                               CallCounters* counters,
                                                               uint32_t thread_count) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<ComputeStream> stream,
                       options->backend->NewStream(thread_count));
  return std::make_unique<CallContext>(options, std::move(stream), peers, spin_max, counters);
}

CallContextPool::CallContextPool(
    Clock* clock, uint32_t call_count_max,
    absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CallContext>>() const> make)
    : clock_(clock),
      call_count_max_(call_count_max),
      hedge_count_max_(std::max(1u, call_count_max / kCallsPerHedge)),
      make_(std::move(make)) {
  free_.reserve(call_count_max_ + hedge_count_max_);
}

bool CallContextPool::TakePlace(Use use, std::unique_ptr<CallContext>& context) {
  uint32_t& count = use == Use::kCall ? call_count_ : hedge_count_;
  if (count == (use == Use::kCall ? call_count_max_ : hedge_count_max_)) return false;
  ++count;
  context = TakeFree();
  return true;
}

std::unique_ptr<CallContext> CallContextPool::TakeFree() {
  if (free_.empty()) return nullptr;
  std::unique_ptr<CallContext> context = std::move(free_.back());
  free_.pop_back();
  return context;
}

absl::StatusOr<CallContextPool::Lease> CallContextPool::Fill(Use use,
                                                             std::unique_ptr<CallContext> context) {
  if (context != nullptr) return Lease(this, use, std::move(context));
  auto made = make_();
  if (made.ok()) return Lease(this, use, *std::move(made));
  absl::MutexLock lock(&mu_);
  // Another call or hedge may have returned one meanwhile.
  if (std::unique_ptr<CallContext> free = TakeFree(); free != nullptr)
    return Lease(this, use, std::move(free));
  EndPlace(use, nullptr);
  return made.status();
}

absl::StatusOr<CallContextPool::Lease> CallContextPool::TryTake() {
  std::unique_ptr<CallContext> context;
  {
    absl::MutexLock lock(&mu_);
    if (!TakePlace(Use::kCall, context)) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d calls in progress, the limit of this requester: wait for one of them, or raise "
          "call_count_max",
          call_count_max_));
    }
  }
  return Fill(Use::kCall, std::move(context));
}

absl::StatusOr<CallContextPool::Lease> CallContextPool::TryTakeHedge() {
  std::unique_ptr<CallContext> context;
  {
    absl::MutexLock lock(&mu_);
    if (!TakePlace(Use::kHedge, context))
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d hedges in progress, their limit", hedge_count_max_));
  }
  return Fill(Use::kHedge, std::move(context));
}

absl::StatusOr<CallContextPool::Lease> CallContextPool::Take(Instant deadline) {
  std::unique_ptr<CallContext> context;
  CKV_RETURN_IF_ERROR(AwaitPlace(deadline, context));
  return Fill(Use::kCall, std::move(context));
}

absl::Status CallContextPool::AwaitPlace(Instant deadline, std::unique_ptr<CallContext>& context) {
  absl::MutexLock lock(&mu_);
  if (TakePlace(Use::kCall, context)) return absl::OkStatus();
  if (waiters_.size() >= kWaiterCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d calls in progress and %d waiting: the limit of this requester",
                        call_count_max_, kWaiterCountMax));
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
  context = std::move(waiter->context);
  idle_waiters_.push_back(std::move(waiter));
  if (served) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("this requester was busy with %d other calls, its limit", call_count_max_));
}

void CallContextPool::GiveBack(Use use, std::unique_ptr<CallContext> context) {
  // All later work on a failed stream fails, too.
  if (const absl::Status failed = context->stream->Wait(); !failed.ok()) {
    Log().warn("requester: {}; the next call has another stream", failed.ToString());
    context.reset();  // before another is made, since a device has few of them
    absl::MutexLock lock(&mu_);
    EndPlace(use, nullptr);
    return;
  }
  const Instant now = clock_->Now();
  std::unique_ptr<CallContext> untidy;
  {
    absl::MutexLock lock(&mu_);
    // A link that this call did not use is checked together with the others, kLinkIdleMax later.
    context->next_tidy = now + LinkTable::kLinkIdleMax;
    EndPlace(use, std::move(context));
    untidy = TakeUntidy(now);
  }
  if (untidy == nullptr) return;
  untidy->links.Claim();
  untidy->next_tidy = untidy->links.CloseOneIdle(now);
  absl::MutexLock lock(&mu_);
  // A call that found no free context meanwhile has made another.
  if (free_.size() + call_count_ + hedge_count_ < call_count_max_ + hedge_count_max_)
    AddFree(std::move(untidy), /*warm=*/false);
}

void CallContextPool::EndPlace(Use use, std::unique_ptr<CallContext> context) {
  if (use == Use::kCall && !waiters_.empty()) {
    Waiter* const next = waiters_.front();
    waiters_.pop_front();
    next->context = context != nullptr ? std::move(context) : TakeFree();
    next->served.store(true, std::memory_order_relaxed);
    return;
  }
  --(use == Use::kCall ? call_count_ : hedge_count_);
  if (context != nullptr) AddFree(std::move(context), /*warm=*/true);
}

void CallContextPool::AddFree(std::unique_ptr<CallContext> context, bool warm) {
  next_tidy_ = std::min(next_tidy_, context->next_tidy);
  free_.insert(warm ? free_.end() : free_.begin(), std::move(context));
}

std::unique_ptr<CallContext> CallContextPool::TakeUntidy(Instant now) {
  if (now < next_tidy_) return nullptr;
  std::unique_ptr<CallContext> untidy;
  next_tidy_ = kInstantMax;
  for (auto& context : free_) {
    if (untidy == nullptr && context->next_tidy <= now) {
      untidy = std::move(context);
    } else {
      next_tidy_ = std::min(next_tidy_, context->next_tidy);
    }
  }
  std::erase(free_, nullptr);
  return untidy;
}

}  // namespace ckv
