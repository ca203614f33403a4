// The call contexts of a requester. A call takes one for its duration and returns it for the next.

#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "client/call/exchange.h"
#include "client/call/fetch.h"
#include "client/call/route.h"
#include "client/call/row_chooser.h"
#include "client/call/row_selector.h"
#include "client/context/context_cache.h"
#include "client/holders/link_table.h"
#include "client/holders/retry.h"
#include "client/plan/layer_call.h"
#include "client/trace/call_tries.h"

namespace ckv {

// The links to holders and the memory that one call uses exclusively. Belongs to the thread that
// took it from the pool; debug builds check that.
struct CallContext {
  //   Errors of Backend::NewStream.
  static absl::StatusOr<std::unique_ptr<CallContext>> Make(const LinkOptions* options,
                                                           PeerTable* peers, Duration spin_max,
                                                           CallCounters* counters,
                                                           uint32_t thread_count = 1);
  CallContext(const LinkOptions* options, std::unique_ptr<ComputeStream> stream_in,
              PeerTable* peers, Duration spin_max, CallCounters* counters)
      : stream(std::move(stream_in)),
        links(options, peers, stream.get()),
        exchange(options->clock, spin_max, &links, counters),
        router(options, &links, &exchange, stream.get()),
        fetcher(options, &links, &exchange, stream.get()),
        selector(options, &links, &exchange) {}
  // Computes on this host for the calls; with the processor as backend, on the calling thread only.
  const std::unique_ptr<ComputeStream> stream;
  LinkTable links;
  Exchange exchange;  // serves the call in progress
  Router router;
  Fetcher fetcher;
  RowSelector selector;
  RowChooser chooser{&selector};
  ContextCache contexts;
  LayerCallSegments segments;  // segments of the call in progress
  CallTries* tries = nullptr;  // belongs to the call in progress (Attempts)
  // When one of its links may have been idle for too long. Used only while the context is free.
  Instant next_tidy = kInstantMax;
};

// Thread-safe. Contexts are created on demand, up to a limit, and reused. A context whose stream
// failed is dropped when it is returned. Waiting calls are served in order of arrival. Hedges have
// a limit of their own, one for kCallsPerHedge calls, so that they take no place from a call.
//
// A context created for a burst may never be used again, but its sessions still use memory of their
// holders. So a call that returns its context closes at most one link of another context that has
// been idle for LinkTable::kLinkIdleMax. That costs one round trip, for one call in many. Without
// any calls, nothing is closed.
class CallContextPool {
 public:
  // The most calls that may wait for a context. More are refused immediately (I5).
  static constexpr uint32_t kWaiterCountMax = 4096;

  // Whom a context serves.
  enum class Use : uint8_t { kCall, kHedge };

  // The destructor returns the context to its pool.
  class Lease {
   public:
    Lease(CallContextPool* pool, Use use, std::unique_ptr<CallContext> context)
        : pool_(pool), use_(use), context_(std::move(context)) {
      context_->links.Claim();
    }
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (context_ != nullptr) pool_->GiveBack(use_, std::move(context_));
    }
    CallContext& operator*() const { return *context_; }
    CallContext* operator->() const { return context_.get(); }

   private:
    CallContextPool* pool_;
    Use use_;
    std::unique_ptr<CallContext> context_;
  };

  CallContextPool(Clock* clock, uint32_t call_count_max,
                  absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CallContext>>() const> make);

  // Takes a context, or waits for one. Passes on errors of `make`. Several threads may call `make`
  // at once.
  //   DeadlineExceeded    every context was in use until the deadline.
  //   ResourceExhausted   kWaiterCountMax calls are already waiting.
  absl::StatusOr<Lease> Take(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a context if one is free. For a caller that holds others and must not wait for itself.
  //   ResourceExhausted   every context is in use.
  absl::StatusOr<Lease> TryTake() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a context for a hedge of a call in progress.
  //   ResourceExhausted   their limit is reached.
  absl::StatusOr<Lease> TryTakeHedge() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Waiters are kept and reused, so that waiting allocates no memory after the first burst.
  struct Waiter {
    std::unique_ptr<CallContext> context;  // handed over; null if the waiter must create one
    // Atomic, because the mutex library reads it where sanitizers do not see the mutex.
    std::atomic<bool> served{false};
    const absl::Condition condition{
        +[](Waiter* waiter) { return waiter->served.load(std::memory_order_relaxed); }, this};
  };

  // Takes one of the places of that use. `context` stays null if the caller must create the place's
  // context. Returns false if all places are taken.
  bool TakePlace(Use use, std::unique_ptr<CallContext>& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitPlace(Instant deadline, std::unique_ptr<CallContext>& context)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Creates the context of a place that was taken without one. That takes milliseconds on a device,
  // so no other call waits meanwhile. On failure, ends the place.
  absl::StatusOr<Lease> Fill(Use use, std::unique_ptr<CallContext> context)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GiveBack(Use use, std::unique_ptr<CallContext> context) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes and returns the warmest free context, or null if there is none.
  std::unique_ptr<CallContext> TakeFree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes and returns a free context that has a link to close now, or null if there is none.
  std::unique_ptr<CallContext> TakeUntidy(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a place. A call's place and its context go to the waiter that arrived first, if there is
  // one. `context` may be null.
  void EndPlace(Use use, std::unique_ptr<CallContext> context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A context that is not `warm` is taken last.
  void AddFree(std::unique_ptr<CallContext> context, bool warm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const uint32_t call_count_max_, hedge_count_max_;
  const absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CallContext>>() const> make_;
  absl::Mutex mu_;
  uint32_t call_count_ ABSL_GUARDED_BY(mu_) = 0;   // places taken by calls
  uint32_t hedge_count_ ABSL_GUARDED_BY(mu_) = 0;  // and by hedges
  // The context used last is taken first, because its lanes are the warmest.
  std::vector<std::unique_ptr<CallContext>> free_ ABSL_GUARDED_BY(mu_);
  Instant next_tidy_ ABSL_GUARDED_BY(mu_) = kInstantMax;  // no free context has an earlier one
  std::list<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);       // in order of arrival
  std::vector<std::unique_ptr<Waiter>> idle_waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
