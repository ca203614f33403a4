// Calls in flight.

#include "client/ticket.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <utility>

#include "client/bindings/c/attend_arguments.h"
#include "client/bindings/c/ckv_attend.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/call/lane_wait.h"
#include "client/call/ticket_wait.h"
#include "proto/base/status.h"

struct ckv_ticket {
  explicit ckv_ticket(ckv_requester* of) : owner(of->owner), requester(of) {
    requester->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  ~ckv_ticket() {
    ticket.Cancel();
    requester->in_flight.fetch_sub(1, std::memory_order_release);
  }

  const ckv::c::Owner owner;
  ckv_requester* const requester;
  ckv::c::AttendArguments arguments;  // spans of own rows point into it
  ckv::AttendReport made;
  ckv_attend_report* report = nullptr;  // until it is written
  ckv::Ticket ticket;
  ckv::TicketWait wait{ckv::Clock::Real(), ckv::RequesterOptions().spin_max};
};

namespace ckv::c {
namespace {

// A timer that ends a sleep earlier than LaneWait::kSleepMax, the limit of every sleep.
class WakeTimer {
 public:
  explicit WakeTimer(Instant until) {
    if (until - Clock::Real()->Now() >= LaneWait::kSleepMax) return;
    fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    itimerspec at = {};
    at.it_value.tv_sec = until.ns / 1'000'000'000;
    at.it_value.tv_nsec = until.ns % 1'000'000'000;
    if (fd_ >= 0) timerfd_settime(fd_, TFD_TIMER_ABSTIME, &at, nullptr);
  }
  ~WakeTimer() {
    if (fd_ >= 0) close(fd_);
  }
  WakeTimer(const WakeTimer&) = delete;
  WakeTimer& operator=(const WakeTimer&) = delete;
  // -1 if there is no timer. If none could be made, the sleep ends late.
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Returns whether the call is done, by `until`. Returns later only if a step must wait for a holder
// or attends many cached rows (kMustWait).
bool WaitUntil(ckv_ticket& ticket, Instant until) {
  if (until == kInstantMax) {
    ticket.ticket.Wait().IgnoreError();  // EndOf returns the status
    return true;
  }
  ticket.wait.Again();
  while (true) {
    switch (ticket.ticket.TryPoll()) {
      case TicketProgress::kDone:
        ticket.wait.Came();
        return true;
      case TicketProgress::kMustWait:
        if (ticket.ticket.Poll()) return true;
        break;
      case TicketProgress::kInFlight:
        break;
    }
    if (Clock::Real()->Now() >= until) return false;
    const WakeTimer timer(until);
    const Ticket* const one = &ticket.ticket;
    ticket.wait.Rest({&one, 1}, timer.fd());
  }
}

absl::Status EndOf(ckv_ticket& ticket) {
  CKV_RETURN_IF_ERROR(ticket.ticket.Wait());
  return GiveReport(ticket.made, std::exchange(ticket.report, nullptr));
}

template <typename IsDone>
ckv_status Look(ckv_ticket* ticket, int* done, IsDone&& is_done) {
  return Guard(ckv::c::OwnerOf(ticket), [&]() -> absl::Status {
    if (ticket == nullptr) return Missing("ticket");
    if (done == nullptr) return Missing("done");
    *done = is_done(*ticket) ? 1 : 0;
    return *done != 0 ? EndOf(*ticket) : absl::OkStatus();
  });
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_submit(ckv_requester* requester, const ckv_attend_call* call,
                                 ckv_attend_report* report, ckv_ticket** ticket) {
  if (ticket != nullptr) *ticket = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (ticket == nullptr) return ckv::c::Missing("ticket");
    auto made = std::make_unique<ckv_ticket>(requester);
    CKV_RETURN_IF_ERROR(made->arguments.Take(call, report, *requester->backend));
    if (made->arguments.has_part())
      return absl::InvalidArgumentError("submit: a segment has a part; open a context for it");
    made->report = report;
    CKV_ASSIGN_OR_RETURN(made->ticket, requester->requester->Submit(
                                           made->arguments.layer_call(), made->arguments.out(),
                                           report == nullptr ? nullptr : &made->made));
    *ticket = made.release();
    return absl::OkStatus();
  });
}

extern "C" ckv_status ckv_poll(ckv_ticket* ticket, int* done) {
  return ckv::c::Look(ticket, done, [](ckv_ticket& one) { return one.ticket.Poll(); });
}

extern "C" ckv_status ckv_wait(ckv_ticket* ticket, uint64_t timeout_ns, int* done) {
  return ckv::c::Look(ticket, done, [timeout_ns](ckv_ticket& one) {
    return ckv::c::WaitUntil(one, ckv::c::After(timeout_ns));
  });
}

extern "C" void ckv_cancel(ckv_ticket* ticket) {
  if (ticket == nullptr) return;
  ckv::c::Guard(ticket->owner, [&] {
    ticket->ticket.Cancel();
    return absl::OkStatus();
  });
}

extern "C" void ckv_ticket_free(ckv_ticket* ticket) {
  if (ticket == nullptr) return;
  ckv::c::Guard(ticket->owner, [&] {
    delete ticket;
    return absl::OkStatus();
  });
}
