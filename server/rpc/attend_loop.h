// Drives the attend calls of all streams on one thread.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/call/ticket_wait.h"
#include "client/requester.h"
#include "client/ticket.h"
#include "proto/base/clock.h"
#include "server/rpc/helper_threads.h"

namespace ckv {

// One attend call. From Post until `done` is called, the loop uses the job and everything it points
// to; the caller may only set `unwanted`.
struct AttendJob {
  LayerCall call;
  PartialView out;
  AttendReport report;
  // Called once, with the result, on the loop's thread or a helper's.
  absl::AnyInvocable<void(absl::Status)> done;
  // Any thread may set it and then call Wake: the job ends with Cancelled. If a helper works on the
  // job just then, the job ends later and may still succeed.
  std::atomic<bool> unwanted{false};

 private:
  friend class AttendLoop;
  Ticket ticket_;
};

// Thread-safe. The loop's thread opens no session and queries no directory. Helper threads do so,
// and also run calls that attend many rows of the local row cache. The loop's thread does close
// failed or idle sessions at their holders, which takes a round trip of at most 100 ms.
class AttendLoop {
 public:
  // Threads for work that waits for peers and holds no call context.
  static constexpr uint32_t kHelperCountMax = 16;
  // Threads that open contexts of policy `cache`. Only two prefetches run at a time
  // (client/prefetch/prefetcher.h), so more threads would only wait.
  static constexpr uint32_t kLongHelperCountMax = 16;

  // `requester` and `clock` must outlive the loop. `spin_max` as in RequesterOptions.
  AttendLoop(Requester* requester, Clock* clock, Duration spin_max);
  AttendLoop(const AttendLoop&) = delete;
  AttendLoop& operator=(const AttendLoop&) = delete;
  // All jobs must be done.
  ~AttendLoop();

  // Jobs begin in order of Post. While every call context is in use, they wait for one, at most
  // until their deadlines.
  void Post(AttendJob* job) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the loop check for unwanted jobs soon.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how many iterations the loop has made. Wake makes an idle loop iterate once. Callable
  // from any thread.
  uint64_t turn_count() const { return turn_count_.load(std::memory_order_relaxed); }
  // Runs work that may wait, on a helper thread.
  void Run(HelperThreads::Work work) { helpers_.Run(std::move(work)); }
  // Runs work that waits for prefetches, on other helper threads. It takes seconds; work for Run
  // takes milliseconds.
  void RunLong(HelperThreads::Work work) { long_helpers_.Run(std::move(work)); }
  // Runs short work that must not wait behind work of Run or RunLong.
  void RunSoon(HelperThreads::Work work) { soon_.Run(std::move(work)); }

 private:
  void Drive();
  // Takes posted and returned jobs. Returns false if the loop must end.
  bool TakePosted() ABSL_LOCKS_EXCLUDED(mu_);
  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SubmitWaiting();
  // Ends the waiting jobs whose deadlines have passed or that are unwanted. Does nothing and
  // returns false if the last sweep was less than a millisecond ago.
  bool SweepWaiting();
  // Passes the first waiting job to a helper, which waits for a call context in the queue of all
  // calls.
  void HandOver(AttendJob* job);
  // Takes a job back from a helper. The job waits for an unreachable holder to return, which needs
  // no thread.
  void Return(AttendJob* job) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if a job left the loop.
  bool Step();
  // Returns true if the job left the loop.
  bool StepOne(AttendJob* job);
  void Rest();
  static void End(AttendJob* job, absl::Status status);

  Requester& requester_;
  Clock* const clock_;
  const int wake_fd_;
  HelperThreads helpers_;
  // For tickets that may wait. Each ticket has a call context, for which work in `helpers_` may
  // wait. So tickets have separate threads, one for each ticket that may exist.
  HelperThreads ticket_helpers_{RequesterOptions::kCallCountMax};
  HelperThreads soon_{1};
  HelperThreads long_helpers_{kLongHelperCountMax};
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool signalled_ ABSL_GUARDED_BY(mu_) = false;  // wake_fd_ is readable
  std::vector<AttendJob*> posted_ ABSL_GUARDED_BY(mu_);
  std::vector<AttendJob*> returned_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> handed_over_{false};  // a helper waits for a call context
  std::atomic<uint64_t> turn_count_{0};   // written by the loop only; orders nothing
  // Used by the loop's thread only.
  Instant next_sweep_;
  bool full_ = false;  // the last try found every call context in use, and no job has left since
  std::deque<AttendJob*> waiting_;  // for a call context
  std::vector<AttendJob*> in_flight_;
  std::vector<const Ticket*> tickets_;
  TicketWait wait_;
  std::thread thread_;
};

}  // namespace ckv
