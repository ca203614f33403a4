// The engines of a requester: taken for the length of a call, given back for the next.

#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/fetch.h"
#include "client/link_table.h"
#include "client/route.h"

namespace ckv {

// What one call uses, exclusively.
struct CallEngine {
  CallEngine(const LinkOptions* options, PeerTable* peers, Duration spin_max,
             RouteCounters* counters)
      : router(options, peers, spin_max, counters), fetcher(options, &router, counters) {}
  Router router;
  Fetcher fetcher;
  // While nobody uses it: when one of its links may have been idle for too long.
  Instant next_tidy = kInstantMax;
};

// Thread-safe. Engines are made as they are needed, up to a limit; whoever waits is served in the
// order of coming.
//
// An engine that was needed for a burst may never be used again, while its sessions keep memory of
// their holders. So whoever gives an engine back closes one link, at most, that has been idle for
// LinkTable::kLinkIdleMax in another: one round trip, for one call in many. Where no call is made
// at all, nothing is closed.
class EnginePool {
 public:
  // Calls that may wait for an engine; more are refused at once (I5).
  static constexpr uint32_t kWaiterCountMax = 4096;

  // The engine goes back to its pool when this is destroyed.
  class Lease {
   public:
    Lease(EnginePool* pool, std::unique_ptr<CallEngine> engine)
        : pool_(pool), engine_(std::move(engine)) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (engine_ != nullptr) pool_->GiveBack(std::move(engine_));
    }
    CallEngine& operator*() const { return *engine_; }
    CallEngine* operator->() const { return engine_.get(); }

   private:
    EnginePool* pool_;
    std::unique_ptr<CallEngine> engine_;
  };

  EnginePool(Clock* clock, uint32_t engine_count_max,
             absl::AnyInvocable<std::unique_ptr<CallEngine>()> make);

  //   DeadlineExceeded    every engine was in use until the deadline.
  //   ResourceExhausted   kWaiterCountMax calls wait already.
  absl::StatusOr<Lease> Take(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Kept and used again: waiting takes no memory once there are as many as ever waited at once.
  struct Waiter {
    std::unique_ptr<CallEngine> engine;  // handed over by GiveBack
    // Atomic, because the mutex's own library looks at it where no sanitizer sees the mutex.
    std::atomic<bool> served{false};
    const absl::Condition condition{
        +[](Waiter* waiter) { return waiter->served.load(std::memory_order_relaxed); }, this};
  };

  void GiveBack(std::unique_ptr<CallEngine> engine) ABSL_LOCKS_EXCLUDED(mu_);
  // The free engine with a link to close now, taken out; null: there is none.
  std::unique_ptr<CallEngine> TakeUntidy(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // To the waiter that came first, else to the free ones.
  void Hand(std::unique_ptr<CallEngine> engine, bool warm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const uint32_t engine_count_max_;
  absl::Mutex mu_;
  absl::AnyInvocable<std::unique_ptr<CallEngine>()> make_ ABSL_GUARDED_BY(mu_);
  uint32_t engine_count_ ABSL_GUARDED_BY(mu_) = 0;
  // The engine used last is taken first: its lanes are the warmest.
  std::vector<std::unique_ptr<CallEngine>> free_ ABSL_GUARDED_BY(mu_);
  Instant next_tidy_ ABSL_GUARDED_BY(mu_) = kInstantMax;  // no free engine's is sooner
  std::list<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);       // in order of coming
  std::vector<std::unique_ptr<Waiter>> idle_waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
