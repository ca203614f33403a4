#include "server/edge/attend_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv {

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

void AttendLoop::Wake() {
  absl::MutexLock lock(&mu_);
  Signal();
}

void AttendLoop::Drive() {
  while (TakePosted()) {
    SubmitWaiting();
    if (Step()) {
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
  return !stopping_;
}

void AttendLoop::SubmitWaiting() {
  while (!waiting_.empty()) {
    AttendJob* const job = waiting_.front();
    const auto leave = [this] { waiting_.pop_front(); };
    if (job->unwanted.load(std::memory_order_relaxed)) {
      leave();
      End(job, absl::CancelledError("the caller has gone"));
      continue;
    }
    auto ticket = requester_.TrySubmit(job->call, job->out, &job->report);
    if (ticket.ok()) {
      leave();
      job->ticket = *std::move(ticket);
      in_flight_.push_back(job);
    } else if (!absl::IsResourceExhausted(ticket.status())) {
      leave();
      End(job, ticket.status());
    } else if (clock_->Now() >= job->call.deadline) {
      leave();
      End(job, LaneWait::PassedError());
    } else if (in_flight_.empty()) {
      // Other calls have every call context. Those wait for theirs in one queue, and so does this.
      leave();
      helpers_.Run([this, job] { End(job, requester_.Attend(job->call, job->out, &job->report)); });
    } else {
      return;  // one of these jobs gives its context back
    }
  }
}

bool AttendLoop::Step() {
  const size_t left = std::erase_if(in_flight_, [this](AttendJob* job) { return StepOne(job); });
  return left > 0;
}

bool AttendLoop::StepOne(AttendJob* job) {
  if (job->unwanted.load(std::memory_order_relaxed)) job->ticket.Cancel();
  switch (job->ticket.TryPoll()) {
    case TicketProgress::kInFlight:
      return false;
    case TicketProgress::kDone:
      End(job, job->ticket.Wait());
      return true;
    case TicketProgress::kMustWait:
      helpers_.Run([job] { End(job, job->ticket.Wait()); });
      return true;
  }
  return false;
}

void AttendLoop::Rest() {
  if (in_flight_.empty()) {
    // Nothing waits here either: TakePosted was the last to look.
    pollfd wake = {wake_fd_, POLLIN, 0};
    poll(&wake, 1, /*timeout=*/-1);
    return;
  }
  tickets_.clear();
  for (const AttendJob* job : in_flight_) tickets_.push_back(&job->ticket);
  wait_.Rest(tickets_, wake_fd_);
}

// The job may be gone once `done` has been called.
void AttendLoop::End(AttendJob* job, absl::Status status) {
  job->ticket = Ticket();
  job->done(std::move(status));
}

}  // namespace ckv
