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
  Ticket ticket;
};

// Thread-safe. Its thread waits for no answer of a holder or the directory: what may wait goes to
// helpers. A stream that has trouble with its holder so holds up no other. It does tell a holder,
// now and then, that an idle session ends, which takes 100 ms at most (CallContextPool).
class AttendLoop {
 public:
  // As many as a requester has call contexts by default. Each may wait for a holder that is gone.
  static constexpr uint32_t kHelperCountMax = 16;

  // Both must outlive it. `spin_max` as in RequesterOptions.
  AttendLoop(Requester* requester, Clock* clock, Duration spin_max);
  AttendLoop(const AttendLoop&) = delete;
  AttendLoop& operator=(const AttendLoop&) = delete;
  // Every job is done.
  ~AttendLoop();

  // Jobs begin in order of Post. One that finds every call context in use waits for one.
  void Post(AttendJob* job) ABSL_LOCKS_EXCLUDED(mu_);
  // Looks at unwanted jobs soon.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs work that may wait on a helper.
  void Run(HelperThreads::Work work) { helpers_.Run(std::move(work)); }

 private:
  void Drive();
  // Takes what was posted. Returns false if the loop is to end.
  bool TakePosted() ABSL_LOCKS_EXCLUDED(mu_);
  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SubmitWaiting();
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
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool signalled_ ABSL_GUARDED_BY(mu_) = false;  // wake_fd_ is readable
  std::vector<AttendJob*> posted_ ABSL_GUARDED_BY(mu_);
  // The loop's own.
  std::deque<AttendJob*> waiting_;  // for a call context
  std::vector<AttendJob*> in_flight_;
  std::vector<const Ticket*> tickets_;
  TicketWait wait_;
  std::thread thread_;
};

}  // namespace ckv
