// The states of an attempt:
//   first      the context's router runs. MaybeHedge begins a hedge when it is late   -> both
//   both       two routers run. The first complete one wins                           -> won
//              The first router fails                                                 -> hedge
//              The hedge fails, or cannot begin                                       -> first
//   hedge      only the hedge runs. If it fails, the first error is the attempt's     -> failed
//   won        Finish reports the winner; the other router has given up

#include "client/call/hedge.h"

#include <algorithm>
#include <utility>

#include "proto/base/planted_bug.h"

namespace ckv {

absl::Status HedgedAttend::Run(CallContext& context, const RouteCall& call, AttendBuffers buffers,
                               AttendReport* report) {
  const auto run = [&]() -> absl::Status {
    Take(context, call);
    CKV_RETURN_IF_ERROR(context.router.Begin(call));
    Watch();
    while (true) {
      CKV_ASSIGN_OR_RETURN(const bool done, Advance(buffers, /*may_wait=*/true));
      if (done) return absl::OkStatus();
      CKV_RETURN_IF_ERROR(Rest());
    }
  };
  absl::Status status = run();
  status.ok() ? Finish(report) : GiveUp();
  return status;
}

absl::Status HedgedAttend::Begin(CallContext& context, const RouteCall& call) {
  Take(context, call);
  CKV_RETURN_IF_ERROR(context.router.Begin(call));
  Watch();
  return absl::OkStatus();
}

void HedgedAttend::Take(CallContext& context, const RouteCall& call) {
  context_ = &context;
  call_ = call;
  first_runs_ = true;
  must_wait_ = false;
  hedge_at_ = kInstantMax;
  winner_ = Winner::kNone;
}

void HedgedAttend::Watch() {
  // Other holders do not have the candidates of a choice.
  const auto has_choice = [](const RouteSegment& segment) { return segment.choice != nullptr; };
  if (std::any_of(call_.segments.begin(), call_.segments.end(), has_choice)) return;
  hedge_at_ = context_->router.late_at();
  if (hedge_at_ == kInstantMax) return;
  hedge_at_ = std::max(hedge_at_, context_->router.posted() + kAfterMin);
  context_->exchange.set_wake(hedge_at_);
}

void HedgedAttend::Claim() {
  context_->links.Claim();
  if (hedge_) (*hedge_)->links.Claim();
}

absl::StatusOr<bool> HedgedAttend::Advance(AttendBuffers buffers, bool may_wait) {
  must_wait_ = false;
  if (first_runs_) {
    CKV_ASSIGN_OR_RETURN(const bool done, AdvanceFirst(buffers));
    if (done) return true;
    if (first_runs_ && !hedge_ && context_->exchange.checked_at() >= hedge_at_)
      MaybeHedge(may_wait);
  }
  if (hedge_ && !may_wait && (*hedge_)->router.cached_pairs_left() > kShortPairsMax) {
    must_wait_ = true;
  } else if (hedge_) {
    AdvanceHedge(buffers);
  }
  if (!hedge_ && !first_runs_) return first_error_;
  return winner_ == Winner::kHedge;
}

absl::StatusOr<bool> HedgedAttend::AdvanceFirst(AttendBuffers buffers) {
  absl::StatusOr<bool> done = context_->router.Advance(buffers);
  if (done.ok()) {
    if (!*done) return false;
    if (CKV_PLANTED_BUG("hedge-loser") && hedge_) {
      // As if its replies had been merged, too: each row is there twice.
      const PartialView out = buffers();
      for (uint32_t i = 0; i < call_.q.count; ++i) out.l[i] *= 2;
    }
    EndHedge();
    winner_ = Winner::kFirst;
    return true;
  }
  if (!hedge_) return done.status();
  // The hedge may still answer. If it does not, this is the attempt's error.
  first_error_ = done.status();
  attempts_->NoteFailure(first_error_);
  first_runs_ = false;
  context_->router.GiveUp();
  return false;
}

void HedgedAttend::MaybeHedge(bool may_wait) {
  Router& first = context_->router;
  if (first.progressed() || first.waits_for_stream()) return;
  const Instant now = clock_->Now();
  auto lease = context_->exchange.OthersMayAnswer() ? attempts_->TakeHedge(now) : std::nullopt;
  if (!lease) {
    // Until then, a holder may be back, and another call's hedge over.
    hedge_at_ = now + refused_pause_;
    refused_pause_ = std::min(2 * refused_pause_, kRefusedPauseMax);
    context_->exchange.set_wake(hedge_at_);
    return;
  }
  hedge_at_ = kInstantMax;
  context_->exchange.set_wake(kInstantMax);
  hedge_.emplace(*std::move(lease));
  // Before the hedge chooses, so that it chooses others.
  context_->exchange.AvoidAwaited();
  hedge_tries_ = {};
  hedge_tries_.begun = first.begun();
  hedge_tries_.attempt_count = 1;
  if (call_.tries != nullptr) {
    hedge_tries_.begun = call_.tries->begun;
    hedge_tries_.attempt_count = call_.tries->attempt_count;
    // Both are below the call's span, which the winner ends.
    hedge_tries_.sink = call_.tries->sink;
    hedge_tries_.span = call_.tries->span;
  }
  CallContext& context = **hedge_;
  Attempts::Enter(context, hedge_tries_);
  context.links.set_may_wait(may_wait);
  context.links.set_wait_end(now + kConnectMax);
  RouteCall call = call_;
  call.q.after = nullptr;  // the frames of the first are posted, so the queries are there
  call.tries = &hedge_tries_;
  const absl::Status begun = context.router.Begin(call);
  if (begun.ok()) return attempts_->CountHedge();
  if (context.links.would_wait()) {
    // A thread that may wait begins it.
    must_wait_ = true;
    hedge_at_ = now;
    attempts_->ReturnHedge();
  } else {
    attempts_->NoteFailure(begun);
  }
  EndHedge();
}

void HedgedAttend::AdvanceHedge(AttendBuffers buffers) {
  const absl::StatusOr<bool> done = (*hedge_)->router.Advance(buffers);
  if (!done.ok()) {
    attempts_->NoteFailure(done.status());
    return EndHedge();
  }
  if (!*done) return;
  winner_ = Winner::kHedge;
  if (first_runs_) context_->router.GiveUpLate();
  first_runs_ = false;
}

void HedgedAttend::EndHedge() {
  if (!hedge_) return;
  (*hedge_)->router.GiveUp();
  hedge_.reset();
}

absl::Status HedgedAttend::Rest() {
  if (!hedge_) return context_->router.Rest();
  if (progressed()) return absl::OkStatus();
  // Nothing signals the end of a stream's work, which is short.
  if (waits_for_stream()) return absl::OkStatus();
  lanes_.clear();
  AddWaiting(lanes_);
  // At the deadline, the next Advance fails and names the silent holders.
  const Duration left = std::max(Duration(0), call_.deadline - clock_->Now());
  sleep_.Sleep(lanes_, /*wake_fd=*/-1, std::min(LaneWait::kSleepMax, left));
  return absl::OkStatus();
}

void HedgedAttend::Finish(AttendReport* report) {
  if (winner_ == Winner::kHedge) {
    (*hedge_)->router.Finish(report);
    if (call_.tries != nullptr) call_.tries->span.reset();  // the hedge ended it
    hedge_.reset();
    attempts_->CountHedgeWon();
  } else {
    context_->router.Finish(report);
  }
  context_ = nullptr;
}

void HedgedAttend::GiveUp() {
  if (context_ == nullptr) return;
  EndHedge();
  if (first_runs_) context_->router.GiveUp();
  context_ = nullptr;
}

bool HedgedAttend::progressed() const {
  return (first_runs_ && context_->router.progressed()) ||
         (hedge_ && (*hedge_)->router.progressed());
}

bool HedgedAttend::waits_for_stream() const {
  return (first_runs_ && context_->router.waits_for_stream()) ||
         (hedge_ && (*hedge_)->router.waits_for_stream());
}

void HedgedAttend::AddWaiting(std::vector<RequestLane*>& lanes) const {
  const auto add = [&](const Router& router) {
    lanes.insert(lanes.end(), router.waiting().begin(), router.waiting().end());
  };
  if (first_runs_) add(context_->router);
  if (hedge_) add((*hedge_)->router);
}

}  // namespace ckv
