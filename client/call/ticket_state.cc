// The state machine of one submitted call. Each Step runs on the thread that drives the call:
//   running   an attempt is under way. If Advance completes it: done. If it fails, EndAttempt
//             chooses one of the other states
//   retrying  at again_at_ the next attempt begins, with the same call context: running. If it
//             would wait, only a Step that may wait begins it
//   waiting   for a holder to return, without a call context. At again_at_, TakeContext takes one:
//             running. While none is free, it tries each millisecond until wait_end, then: done
//   done      with the result. Cancel leads here from every state

#include "client/call/ticket_state.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/ticket.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// How often a sleeper looks at a stream. An engine's may take long; a decode step takes some 10 us.
constexpr Duration kStreamLook = std::chrono::microseconds(50);
// How often a call that gave its context back looks for another.
constexpr Duration kContextLook = std::chrono::milliseconds(1);

}  // namespace

TicketState::TicketState(Attempts* attempts, Clock* clock, CallContextPool::Lease lease,
                         LayerCallSegments segments, const RouteCall& call, const PartialView& out,
                         AttendReport* report, bool may_wait)
    : attempts_(attempts),
      clock_(clock),
      lease_(std::move(lease)),
      segments_(std::move(segments)),
      call_(call),
      hedged_(attempts, clock),
      out_(out),
      report_(report) {
  // The call's segments moved with their vector.
  call_.segments = segments_.segments;
  call_.polled_at_once = false;
  call_.prompt = !may_wait;  // a thread that drives many calls does nothing else
  call_.tries = &tries_;
  tries_.may_query = may_wait;
  attempts_->Begin();
  Attempts::Enter(**lease_, tries_);
  BeginAttempt(may_wait);
}

bool TicketState::TakeContext() {
  if (lease_) return true;
  auto lease = attempts_->TryTake();
  if (!lease.ok()) {
    const Instant now = clock_->Now();
    if (absl::IsResourceExhausted(lease.status()) && now < tries_.wait_end) {
      again_at_ = now + kContextLook;
    } else {
      End(tries_.Final(lease.status(), now));
    }
    return false;
  }
  lease_.emplace(*std::move(lease));
  Attempts::Enter(**lease_, tries_);
  return true;
}

void TicketState::BeginAttempt(bool may_wait) {
  CallContext& context = **lease_;
  again_at_.reset();
  running_ = true;
  context.links.set_may_wait(may_wait);
  absl::Status status = rows_lost_ ? FindRows(may_wait) : absl::OkStatus();
  if (status.ok() && !rows_lost_) status = hedged_.Begin(context, call_);
  must_wait_ = rows_lost_ ? !may_wait : !status.ok() && context.links.would_wait();
  if (must_wait_) {
    hedged_.GiveUp();
    tries_.Leave();
    running_ = false;
    again_at_ = clock_->Now();
  } else if (!status.ok()) {
    EndAttempt(std::move(status));
  }
}

// Finds the rows of choices again, for which it waits for holders.
absl::Status TicketState::FindRows(bool may_wait) {
  if (!may_wait) return absl::OkStatus();
  CKV_RETURN_IF_ERROR((*lease_)->chooser.FindAgain(call_, segments_));
  rows_lost_ = false;
  return absl::OkStatus();
}

// A failed attempt is followed by another, at once or later, or ends the call.
void TicketState::EndAttempt(absl::Status status) {
  running_ = false;
  CallContext& context = **lease_;
  hedged_.GiveUp();
  if (absl::IsOutOfRange(status) && segments_.HasCandidates()) {
    rows_lost_ = true;
    again_at_ = clock_->Now();
    return;
  }
  const CallCorpora corpora = CorporaOf(call_);
  const AttemptResult result = {.status = std::move(status), .corpora = corpora};
  if (attempts_->Cure(context, call_.deadline, result, call_.trace)) {
    again_at_ = clock_->Now();
    return;
  }
  again_at_ = attempts_->AgainAt(tries_, call_.deadline, result, call_.trace);
  if (!again_at_) return End(tries_.Final(result.status, clock_->Now()));
  if (tries_.waits) return lease_.reset();
  context.links.BeginCall();
}

void TicketState::End(const absl::Status& status) {
  if (!status.ok()) tries_.EndSpan(/*failed=*/true, clock_->Now());
  status_ = WithTrace(status, call_.trace);
  done_ = true;
  running_ = false;
  lease_.reset();
  segments_.Clear();
}

bool TicketState::Step(bool may_wait) {
  if (done()) return true;
  tries_.may_query = may_wait;
  if (lease_) (*lease_)->links.Claim();
  if (running_) hedged_.Claim();
  if (!running_) {
    if (clock_->Now() < *again_at_) return false;
    if (tries_.waits) attempts_->EndRest(tries_);
    if (!TakeContext()) return done();
    BeginAttempt(may_wait);
    if (!running_) return done();
  }
  must_wait_ = !may_wait && (*lease_)->router.cached_pairs_left() > kShortPairsMax;
  if (must_wait_) return false;
  const absl::StatusOr<bool> complete = hedged_.Advance([this] { return out_; }, may_wait);
  if (!complete.ok()) {
    EndAttempt(complete.status());
  } else if (*complete) {
    hedged_.Finish(report_);
    End(absl::OkStatus());
  } else {
    must_wait_ = hedged_.must_wait();
  }
  return done();
}

void TicketState::Rest() {
  if (done()) return;
  if (!running_) {
    attempts_->Rest(tries_, *again_at_);
    // Whatever ended the rest, the next step tries again.
    again_at_ = clock_->Now();
    return;
  }
  hedged_.Claim();
  if (absl::Status status = hedged_.Rest(); !status.ok()) EndAttempt(std::move(status));
}

bool TicketState::AddWaits(std::vector<RequestLane*>& lanes, Instant& until) const {
  if (done()) return false;
  if (!running_) {
    until = std::min(until, *again_at_);
    return true;
  }
  if (hedged_.progressed()) return false;
  if (hedged_.waits_for_stream()) {
    // Nothing signals the end of a device's work. Most of it ends within the time of polling.
    until = std::min(until, clock_->Now() + kStreamLook);
    return true;
  }
  hedged_.AddWaiting(lanes);
  until = std::min({until, call_.deadline, hedged_.hedge_at()});
  return true;
}

void TicketState::Cancel() {
  if (done()) return;
  if (running_) hedged_.Claim();
  hedged_.GiveUp();
  End(absl::CancelledError("attend: the caller gave it up"));
}

Ticket::Ticket() = default;
Ticket::Ticket(std::unique_ptr<TicketState> state) : state_(std::move(state)) {}
Ticket::Ticket(Ticket&& other) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept = default;
Ticket::~Ticket() = default;

bool Ticket::Poll() { return state_ == nullptr || state_->Step(/*may_wait=*/true); }

TicketProgress Ticket::TryPoll() {
  if (state_ == nullptr || state_->Step(/*may_wait=*/false)) return TicketProgress::kDone;
  return state_->must_wait() ? TicketProgress::kMustWait : TicketProgress::kInFlight;
}

TicketProgress Ticket::Work() {
  if (state_ == nullptr) return TicketProgress::kDone;
  while (!state_->Step(/*may_wait=*/true)) {
    if (state_->awaits_return()) return TicketProgress::kInFlight;
    state_->Rest();
  }
  return TicketProgress::kDone;
}

absl::Status Ticket::Wait() {
  if (state_ == nullptr) return absl::OkStatus();
  while (!state_->Step(/*may_wait=*/true)) state_->Rest();
  return state_->status();
}

void Ticket::Cancel() {
  if (state_ != nullptr) state_->Cancel();
}

}  // namespace ckv
