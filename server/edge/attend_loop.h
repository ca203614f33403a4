// Drives the attends of all streams on one thread.

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
#include "client/call/ticket.h"
#include "client/call/ticket_wait.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/edge/helper_threads.h"

namespace ckv {

// One attend. From Post to `done` it belongs to the loop, and so does everything it points to.
struct AttendJob {
  LayerCall call;
  PartialView out;
  AttendReport report;
  // Called once, with how it ended, on the loop's thread or a helper's.
  absl::AnyInvocable<void(absl::Status)> done;
  // Set by any thread, followed by Wake: the job then ends with Cancelled, unless it may wait for a
  // holder just then.
  std::atomic<bool> unwanted{false};

 private:
  friend class AttendLoop;
  Ticket ticket_;
};

// Thread-safe. Its thread opens no session and asks no directory: what may wait so goes to helpers.
// So does a call that attends many near rows.
// It does tell holders that sessions end which failed or are idle. That takes a round trip, and
// 100 ms at most.
class AttendLoop {
 public:
  // Threads for work that waits for others and holds no call context.
  static constexpr uint32_t kHelperCountMax = 16;
  // Threads for contexts of policy near that are opened. Two pulls run at once
  // (client/act/actor.h): more of them would only wait.
  static constexpr uint32_t kLongHelperCountMax = 16;

  // Both must outlive it. `spin_max` as in RequesterOptions.
  AttendLoop(Requester* requester, Clock* clock, Duration spin_max);
  AttendLoop(const AttendLoop&) = delete;
  AttendLoop& operator=(const AttendLoop&) = delete;
  // Every job is done.
  ~AttendLoop();

  // Jobs begin in order of Post. Those that find every call context in use wait for one, at most
  // until their deadlines.
  void Post(AttendJob* job) ABSL_LOCKS_EXCLUDED(mu_);
  // Looks at unwanted jobs soon.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the turns of the loop. An idle loop makes one after Wake. From any thread.
  uint64_t turn_count() const { return turn_count_.load(std::memory_order_relaxed); }
  // Runs work that may wait on a helper.
  void Run(HelperThreads::Work work) { helpers_.Run(std::move(work)); }
  // Runs work that waits for pulls: seconds, where other work takes milliseconds.
  void RunLong(HelperThreads::Work work) { long_helpers_.Run(std::move(work)); }
  // Runs short work that must not wait behind that.
  void RunSoon(HelperThreads::Work work) { soon_.Run(std::move(work)); }

 private:
  void Drive();
  // Takes what was posted. Returns false if the loop is to end.
  bool TakePosted() ABSL_LOCKS_EXCLUDED(mu_);
  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SubmitWaiting();
  // Ends the waiting jobs whose deadlines have passed, or which nobody wants any more. Returns
  // false if it did so less than a millisecond ago, and does nothing.
  bool SweepWaiting();
  // Lets a helper wait for a call context in the queue of all calls.
  void HandOver(AttendJob* job);
  // Takes a job back from a helper: it waits for a holder to come back, which takes no thread.
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
  // For tickets that may wait. Each has a call context, which work in `helpers_` may wait for. So
  // they have threads of their own, as many as there may be tickets.
  HelperThreads ticket_helpers_{RequesterOptions::kCallCountMax};
  HelperThreads soon_{1};
  HelperThreads long_helpers_{kLongHelperCountMax};
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool signalled_ ABSL_GUARDED_BY(mu_) = false;  // wake_fd_ is readable
  std::vector<AttendJob*> posted_ ABSL_GUARDED_BY(mu_);
  std::vector<AttendJob*> returned_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> handed_over_{false};  // a helper waits for a call context
  std::atomic<uint64_t> turn_count_{0};   // written by the loop alone; orders nothing
  // The loop's own.
  Instant next_sweep_;
  bool full_ = false;  // the last try found every call context in use, and no job has left since
  std::deque<AttendJob*> waiting_;  // for a call context
  std::vector<AttendJob*> in_flight_;
  std::vector<const Ticket*> tickets_;
  TicketWait wait_;
  std::thread thread_;
};

}  // namespace ckv
