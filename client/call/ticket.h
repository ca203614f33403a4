// Calls in flight that hold no thread.
//
//   CKV_ASSIGN_OR_RETURN(ckv::Ticket first, requester->Submit(call, out));
//   ... other work; submit more ...
//   CKV_RETURN_IF_ERROR(first.Wait());  // or Poll until it is true
//
// A thread that drives many: TryPoll each; if all are in flight, TicketWait::Rest
// (client/call/ticket_wait.h); then again. A deadline passes when somebody looks.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace ckv {

struct TicketState;  // client/call/ticket_state.h

enum class TicketProgress : uint8_t {
  kDone,
  kInFlight,
  // The next step may wait for a holder, or attends many near rows: only Poll and Wait take it.
  kMustWait,
};

// A call that Requester::Submit began. Nothing happens but in Submit, Poll and Wait, on the thread
// that calls them. Use a ticket by one thread at a time. It holds a call context of its requester
// until it is done, but not while it waits for a holder to come back. It must not outlive the
// requester.
//
// A cure that the call needs (a new session, another replica) runs inside Poll and Wait, too. Poll
// then waits for the holders: at most connect_timeout for each session, and until the call's
// deadline for its chunks' handles.
//
// A thread that holds call_count_max tickets in flight must not make a blocking call without a
// deadline: it would wait for itself.
class Ticket {
 public:
  Ticket();  // done, with the status OK
  Ticket(Ticket&& other) noexcept;
  Ticket& operator=(Ticket&& other) noexcept;
  // Cancels a call that is not done.
  ~Ticket();

  // Looks at what came. Returns true once the call is done. The first Poll, TryPoll or Wait after
  // the queries were posted also attends the call's own rows, on this thread if the processor
  // computes. Neither Poll nor TryPoll waits for a device: queries that it has not written are
  // posted, and partials merged, by a later one. To end a call before its answer is there, by
  // Cancel or a failure, waits for what the device has begun.
  bool Poll();
  // The same, but never waits for a holder, for a thread that drives many calls. Once it returns
  // kMustWait, let another thread Poll or Wait.
  TicketProgress TryPoll();
  // As Wait, but returns kInFlight once the call waits for a holder to come back. That wait needs
  // no thread of its own: continue with TryPoll in the thread that drives many tickets.
  TicketProgress Work();
  // Waits until the call is done, at most until its deadline. Returns how it ended: the errors of
  // Requester::Attend. May be called again.
  absl::Status Wait();
  // Gives the call up: it ends with Cancelled, unless it is done. Nothing is written any more.
  // Replies that come later are dropped.
  void Cancel();

 private:
  friend class Requester;
  friend class TicketWait;  // client/call/ticket_wait.h
  explicit Ticket(std::unique_ptr<TicketState> state);
  std::unique_ptr<TicketState> state_;
};

}  // namespace ckv
