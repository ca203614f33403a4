// The slots of one call, on the thread of the call. A slot's states:
//   kFree     Post sends a request                         -> kPosted
//   kPosted   Take finds the reply with the request's id   -> kArrived, and passes it on
//   kArrived  Release, once the reply has been read        -> kFree
// A round posts, collects, and ends. Without progress, EndRound checks lanes and deadline (Check),
// and waits for an event of a lane (Pause). GiveUp frees every slot: it abandons posted requests,
// and closes a lane that carried an unexpected reply.

#include "client/call/exchange.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "proto/base/planted_bug.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kCompletionCountMax = 16;  // looked at per poll

}  // namespace

Exchange::Exchange(Clock* clock, Duration spin_max, LinkTable* links, CallCounters* counters)
    : clock_(clock),
      links_(links),
      counters_(counters),
      wait_(clock, spin_max),
      completions_(kCompletionCountMax) {}

uint32_t Exchange::Add(HolderLink& link) {
  for (uint32_t i = 0; i < peer_count_; ++i) {
    if (peers_[i].link == &link) return i;
  }
  if (peers_.size() == peer_count_) peers_.emplace_back();
  Peer& peer = peers_[peer_count_];
  peer.link = &link;
  // Until Start there is nothing to give up.
  peer.slots.clear();
  peer.outstanding = 0;
  peer.strange = peer.damaged = peer.held = false;
  return static_cast<uint32_t>(peer_count_++);
}

void Exchange::Start(Instant deadline, bool may_be_refused) {
  links_->AssertHeld();
  deadline_ = deadline;
  wake_ = kInstantMax;
  may_be_refused_ = may_be_refused;
  heard_ = false;
  for (Peer& peer : peers()) {
    peer.slots.assign(peer.link->lane().shape().slot_count, Slot{});
    peer.outstanding = 0;
    peer.strange = peer.damaged = peer.held = false;
  }
  wait_.Begin(peer_count_);
  waiting_.reserve(peer_count_);  // a warm context may wait on more lanes than before
}

absl::Status Exchange::Post(uint32_t peer_index, uint32_t slot, const RequestHeader& header,
                            uint32_t tag, Instant now, Send send) {
  Peer& to = peers_[peer_index];
  RequestLane& lane = to.link->lane();
  RequestHeader stamped = header;
  stamped.request_id = to.link->NextRequestId();
  stamped.epoch = to.link->epoch().value;
  stamped.session = to.link->session().value;
  stamped.deadline_us = RemainingUs(deadline_, now);
  EncodeHeader(stamped, lane.request(slot));
  const auto bytes = static_cast<uint32_t>(sizeof(stamped) + stamped.body_bytes);
  const absl::Status status =
      send == Send::kNow ? lane.Post(slot, bytes) : lane.PostLater(slot, bytes);
  if (!status.ok()) return links_->Fail(*to.link, status);
  to.held |= send == Send::kWithNext;
  to.slots[slot] = {State::kPosted, tag, stamped.request_id, now};
  heard_ |= to.outstanding++ == 0;
  to.link->peer().in_flight.Begin(1);
  return absl::OkStatus();
}

absl::StatusOr<bool> Exchange::Collect(Accept accept) {
  bool any = false;
  for (uint32_t i = 0; i < peer_count_; ++i) {
    if (!Awaited(peers_[i])) continue;
    CKV_ASSIGN_OR_RETURN(const bool came, CollectFrom(i, accept));
    any |= came;
  }
  if (any) wait_.Came();
  heard_ |= any;
  return any;
}

bool Exchange::AwaitsAny() {
  return std::any_of(peers().begin(), peers().end(),
                     [](const Peer& peer) { return peer.outstanding > 0; });
}

absl::Status Exchange::ReadLate() {
  for (bool more = true; more;) {
    CKV_ASSIGN_OR_RETURN(more, Collect([](const Reply&) { return absl::OkStatus(); }));
  }
  return AwaitsAny() ? absl::OkStatus() : LaneWait::PassedError();
}

absl::StatusOr<bool> Exchange::CollectFrom(uint32_t peer_index, Accept accept) {
  const size_t count = peers_[peer_index].link->lane().Poll(completions_);
  absl::Status first_error;
  // All of them are taken, errors or not: a slot that completed can no longer be abandoned.
  for (size_t i = 0; i < count; ++i) first_error.Update(Take(peer_index, completions_[i], accept));
  if (first_error.ok()) return count > 0;
  Peer& from = peers_[peer_index];
  return from.damaged ? links_->FailLane(*from.link, first_error)
                      : links_->Fail(*from.link, first_error);
}

absl::Status Exchange::Take(uint32_t peer_index, const Completion& done, Accept accept) {
  Peer& from = peers_[peer_index];
  const RequestLane& lane = from.link->lane();
  const bool takes_again = CKV_PLANTED_BUG("duplicate") && done.slot < from.slots.size() &&
                           from.slots[done.slot].state == State::kArrived;
  if (done.slot >= from.slots.size() ||
      (from.slots[done.slot].state != State::kPosted && !takes_again)) {
    counters_->discarded.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  Slot& slot = from.slots[done.slot];
  const std::span<const std::byte> bytes =
      lane.reply(done.slot).first(std::min(done.bytes, lane.shape().reply_bytes_max));
  const auto header = DecodeReplyHeader(bytes);
  const bool is_other = header.ok() && header->request_id != slot.request_id;
  if (!header.ok() || (is_other && !CKV_PLANTED_BUG("earlier-reply"))) {
    // A late or duplicate reply to an earlier request of this slot: the awaited one is still due
    // (I1).
    from.strange = true;
    counters_->discarded.fetch_add(1, std::memory_order_relaxed);
    if (!header.ok()) from.damaged = true;
    return header.status();
  }
  if (takes_again) return accept({peer_index, done.slot, slot.tag, slot.posted, *header, bytes});
  // From here on the slot is ours again, whatever the reply contains.
  slot.state = State::kArrived;
  --from.outstanding;
  from.link->peer().in_flight.End(1);
  absl::Status accepted = accept({peer_index, done.slot, slot.tag, slot.posted, *header, bytes});
  if (!accepted.ok()) {
    // The holder reported no error, so its answer was damaged on the way.
    from.damaged |= header->code == 0 && absl::IsDataLoss(accepted);
    return accepted;
  }
  from.link->peer().avoidance.End();
  return absl::OkStatus();
}

absl::Status Exchange::Check() {
  waiting_.clear();
  for (Peer& peer : peers()) {
    if (!Awaited(peer)) continue;
    if (absl::Status status = peer.link->lane().status(); !status.ok()) {
      // The fabric found a frame that breaks its rules.
      return absl::IsInvalidArgument(status) ? links_->FailLane(*peer.link, status)
                                             : links_->Fail(*peer.link, status);
    }
    waiting_.push_back(&peer.link->lane());
  }
  const Instant now = clock_->Now();
  checked_at_ = now;
  if (std::exchange(heard_, false)) quiet_since_ = now;
  if (now >= deadline_) return Silence(LaneWait::PassedError());
  if (!OthersShouldBeTried(now)) return absl::OkStatus();
  return Silence(absl::DeadlineExceededError("no answer within half of the time"));
}

bool Exchange::OthersShouldBeTried(Instant now) {
  const Duration left = deadline_ == kInstantMax ? kQuietMax : deadline_ - now;
  return now - quiet_since_ >= left && !may_be_refused_ && OthersMayAnswer();
}

bool Exchange::OthersMayAnswer() {
  return AwaitsAny() && std::all_of(peers().begin(), peers().end(), [this](const Peer& peer) {
           return peer.outstanding == 0 || links_->OthersMayAnswer(peer.link->peer());
         });
}

void Exchange::AvoidAwaited() {
  for (Peer& peer : peers()) {
    if (peer.outstanding > 0) links_->AvoidLate(*peer.link);
  }
}

absl::Status Exchange::EndRound(bool progress) {
  if (progress) {
    wait_.Again();
    return absl::OkStatus();
  }
  CKV_RETURN_IF_ERROR(Check());
  return Pause();
}

absl::Status Exchange::Pause() {
  const absl::Status status = wait_.Pause(waiting_, deadline_, wake_);
  return status.ok() ? status : Silence(status);
}

// Adds the silent holders to `status`. If this call awaits nothing, these are the holders whose
// slots are taken by requests that earlier calls gave up.
absl::Status Exchange::Silence(const absl::Status& status) {
  const bool awaits = AwaitsAny();
  std::vector<const HolderPeer*> silent;
  for (Peer& peer : peers()) {
    if (awaits ? peer.outstanding == 0 : peer.link->lane().in_flight() == 0) continue;
    silent.push_back(&peer.link->peer());
    if (!may_be_refused_) links_->NoteSilent(*peer.link);
  }
  return silent.empty() ? status : Annotate(status, DescribePeers(silent));
}

void Exchange::Release(uint32_t peer_index, uint32_t slot) {
  peers_[peer_index].slots[slot].state = State::kFree;
  peers_[peer_index].link->lane().Release(slot);
}

void Exchange::GiveUp() {
  for (Peer& peer : peers()) {
    if (peer.outstanding > 0) peer.link->peer().in_flight.End(peer.outstanding);
    peer.outstanding = 0;
    if (peer.strange) peer.link->Close();
    if (!peer.link->is_up()) continue;
    RequestLane& lane = peer.link->lane();
    for (uint32_t slot = 0; slot < peer.slots.size(); ++slot) {
      if (peer.slots[slot].state == State::kPosted) lane.Abandon(slot);
      if (peer.slots[slot].state == State::kArrived) lane.Release(slot);
      peer.slots[slot].state = State::kFree;
    }
    // Sends the requests held back, before the deadlines in them are wrong.
    if (peer.held) (void)lane.Poll(completions_);
  }
}

}  // namespace ckv
