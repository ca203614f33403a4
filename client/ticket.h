// Tickets: attend calls in flight that need no thread of their own.
//
//   CKV_ASSIGN_OR_RETURN(ckv::Ticket first, requester->Submit(call, out));
//   ... other work; submit more ...
//   CKV_RETURN_IF_ERROR(first.Wait());  // or Poll until it is true
//
// To drive many tickets with one thread: TryPoll each of them. If all are in flight, call
// TicketWait::Rest (client/call/ticket_wait.h), then repeat. A deadline takes effect only at the
// next Poll, TryPoll, Work or Wait.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace ckv {

struct TicketState;  // client/call/ticket_state.h

enum class TicketProgress : uint8_t {
  kDone,
  kInFlight,
  // The next step may wait for a holder or attends many rows of the local row cache. Only Poll,
  // Work and Wait take that step.
  kMustWait,
};

// A call that Requester::Submit began. Work is done only in Submit, Poll, TryPoll, Work and Wait,
// on the calling thread. Use a ticket by one thread at a time. It must not outlive the requester. A
// ticket occupies one call context of its requester until the call is done, except while it waits
// for an unreachable holder to return.
//
// Recovery (a new session, another replica) also runs inside Poll and Wait. Poll then waits for the
// holders: at most connect_timeout for each session, and until the call's deadline for the handles
// of its chunks.
//
// A thread that holds call_count_max tickets in flight must not make a blocking call without a
// deadline. That call would wait forever for a call context that its own tickets occupy.
class Ticket {
 public:
  Ticket();  // done, with the status OK
  Ticket(Ticket&& other) noexcept;
  Ticket& operator=(Ticket&& other) noexcept;
  // Cancels a call that is not done.
  ~Ticket();

  // Processes the replies that have arrived. Returns true once the call is done. The first Poll,
  // TryPoll or Wait after the queries were posted also attends the call's own rows, on this thread
  // if the CPU computes. Neither Poll nor TryPoll waits for a device. If the device has not
  // finished writing queries or partials, a later call posts or merges them. Ending a call early,
  // by Cancel or a failure, does wait for the work that the device has begun.
  bool Poll();
  // Does the same but never waits for a holder. For a thread that drives many calls. If TryPoll
  // returns kMustWait, another thread must call Poll, Work or Wait.
  TicketProgress TryPoll();
  // Works like Wait, but returns kInFlight as soon as the call waits for an unreachable holder to
  // return. That wait needs no thread of its own: continue with TryPoll in the thread that drives
  // many tickets.
  TicketProgress Work();
  // Blocks until the call is done, at most until its deadline. Returns the call's result, with the
  // errors of Requester::Attend. May be called again.
  absl::Status Wait();
  // Cancels the call: it ends with Cancelled, unless it is already done. Nothing more is written to
  // the output, and later replies are dropped.
  void Cancel();

 private:
  friend class Requester;
  friend class TicketWait;  // client/call/ticket_wait.h
  explicit Ticket(std::unique_ptr<TicketState> state);
  std::unique_ptr<TicketState> state_;
};

}  // namespace ckv
