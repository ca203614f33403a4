// One thread drives the calls of all streams. Drive repeats: TakePosted takes new jobs;
// SubmitWaiting submits them to the requester while it has call contexts; Step polls every ticket
// once; Rest spins or sleeps if nothing moved. A job: posted, waiting, in flight, ended. If every
// call context is in use by other calls, one job waits for a context on a helper thread (HandOver).
// A ticket that must block also works on a helper, and then returns here (Return). End calls the
// job's callback once.

#include "server/rpc/attend_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status UnwantedError() { return absl::CancelledError("the caller has gone"); }

}  // namespace

AttendLoop::AttendLoop(Requester* requester, Clock* clock, Duration spin_max)
    : requester_(*requester),
      clock_(clock),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      helpers_(kHelperCountMax),
      wait_(clock, spin_max) {
  CKV_CHECK(wake_fd_ >= 0);
  thread_ = std::thread([this] { Drive(); });
}

AttendLoop::~AttendLoop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    Signal();
  }
  thread_.join();
  close(wake_fd_);
}

void AttendLoop::Signal() {
  if (std::exchange(signalled_, true)) return;
  eventfd_write(wake_fd_, 1);
}

void AttendLoop::Post(AttendJob* job) {
  absl::MutexLock lock(&mu_);
  posted_.push_back(job);
  Signal();
}

void AttendLoop::Return(AttendJob* job) {
  absl::MutexLock lock(&mu_);
  returned_.push_back(job);
  Signal();
}

void AttendLoop::Wake() {
  absl::MutexLock lock(&mu_);
  Signal();
}

void AttendLoop::Drive() {
  while (TakePosted()) {
    turn_count_.fetch_add(1, std::memory_order_relaxed);
    SubmitWaiting();
    if (Step()) {
      full_ = false;
      wait_.Came();
      wait_.Again();
    } else {
      Rest();
    }
  }
}

bool AttendLoop::TakePosted() {
  absl::MutexLock lock(&mu_);
  if (signalled_) {
    eventfd_t count = 0;
    eventfd_read(wake_fd_, &count);
    signalled_ = false;
  }
  if (in_flight_.empty() && !posted_.empty()) wait_.Again();
  waiting_.insert(waiting_.end(), posted_.begin(), posted_.end());
  posted_.clear();
  in_flight_.insert(in_flight_.end(), returned_.begin(), returned_.end());
  returned_.clear();
  return !stopping_;
}

void AttendLoop::SubmitWaiting() {
  if (waiting_.empty()) return;
  // While every call context is in use, another try would be wasted.
  if (!SweepWaiting() && full_) return;
  full_ = false;
  while (!waiting_.empty()) {
    AttendJob* const job = waiting_.front();
    auto ticket = requester_.TrySubmit(job->call, job->out, &job->report);
    if (absl::IsResourceExhausted(ticket.status())) {
      // Every call context is in use. Usually one of these jobs returns its own. Otherwise other
      // calls have them all. Those wait for contexts in one queue, and one of these jobs joins it.
      full_ = true;
      if (in_flight_.empty() && !handed_over_.exchange(true)) HandOver(job);
      return;
    }
    waiting_.pop_front();
    if (ticket.ok()) {
      job->ticket_ = *std::move(ticket);
      in_flight_.push_back(job);
    } else {
      End(job, ticket.status());
    }
  }
}

bool AttendLoop::SweepWaiting() {
  // A deadline may be late by this much.
  constexpr Duration kSweepEvery = std::chrono::milliseconds(1);
  const Instant now = clock_->Now();
  if (now < next_sweep_) return false;
  next_sweep_ = now + kSweepEvery;
  std::erase_if(waiting_, [&](AttendJob* job) {
    if (job->unwanted.load(std::memory_order_relaxed)) {
      End(job, UnwantedError());
    } else if (now >= job->call.deadline) {
      End(job, LaneWait::PassedError());
    } else {
      return false;
    }
    return true;
  });
  return true;
}

void AttendLoop::HandOver(AttendJob* job) {
  waiting_.pop_front();
  helpers_.Run([this, job] {
    absl::Status status = job->unwanted.load(std::memory_order_relaxed)
                              ? UnwantedError()
                              : requester_.Attend(job->call, job->out, &job->report);
    handed_over_.store(false);
    Wake();
    End(job, std::move(status));
  });
}

bool AttendLoop::Step() {
  const size_t left = std::erase_if(in_flight_, [this](AttendJob* job) { return StepOne(job); });
  return left > 0;
}

bool AttendLoop::StepOne(AttendJob* job) {
  if (job->unwanted.load(std::memory_order_relaxed)) job->ticket_.Cancel();
  switch (job->ticket_.TryPoll()) {
    case TicketProgress::kInFlight:
      return false;
    case TicketProgress::kDone:
      End(job, job->ticket_.Wait());
      return true;
    case TicketProgress::kMustWait:
      ticket_helpers_.Run([this, job] {
        if (job->unwanted.load(std::memory_order_relaxed)) job->ticket_.Cancel();
        if (job->ticket_.Work() == TicketProgress::kInFlight) return Return(job);
        End(job, job->ticket_.Wait());
      });
      return true;
  }
  return false;
}

void AttendLoop::Rest() {
  if (in_flight_.empty()) {
    // A waiting job has a deadline that must be checked.
    constexpr int kWaitingMs = 10;
    pollfd wake = {wake_fd_, POLLIN, 0};
    poll(&wake, 1, waiting_.empty() ? -1 : kWaitingMs);
    return;
  }
  tickets_.clear();
  for (const AttendJob* job : in_flight_) tickets_.push_back(&job->ticket_);
  wait_.Rest(tickets_, wake_fd_);
}

// The job may be gone once `done` has been called.
void AttendLoop::End(AttendJob* job, absl::Status status) {
  job->ticket_ = Ticket();
  job->done(std::move(status));
}

}  // namespace ckv
