// The running connection, on its lane's thread. Front harvests completions: received messages go to
// the inbox, finished sends are counted (Reap), buffers are posted again. Messages of the
// connection's own (ping, pong, bye) are handled here (Understand). Liveness: Tick probes a peer
// that has been silent. The states: established; failed, with the first error kept (Fail); left,
// after a goodbye (Leave). The destructor leaves, waits until the last sends have arrived (Linger),
// and stops the pair (Stop).

#include "transport/verbs/verbs_connection.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kHarvestMax = 16;  // completions taken at once
// Empty polls between two looks at the clock, as in ring_lane.cc.
constexpr uint32_t kLookInterval = 256;

}  // namespace

bool VerbsConnection::Arm(bool blocked) noexcept {
  if (inbox_count_ == 0 && !failed_.ok()) status_ = failed_;
  if (!status_.ok() || (inbox_count_ > 0 && !blocked)) return false;
  const size_t before = inbox_count_;
  // Arms sends too while any is in flight. The head of the inbox may wait for one, and a failed
  // send reveals a dead peer.
  if (ibv_req_notify_cq(receive_queue_.get(), 0) != 0 ||
      (posted_ != retired_ && ibv_req_notify_cq(send_queue_.get(), 0) != 0)) {
    Fail(absl::UnavailableError("the device arms no completion queue"));
    return false;
  }
  const uint64_t retired = retired_;
  Harvest();  // messages that arrived before the arming ring no bell
  return inbox_count_ == before && retired_ == retired && failed_.ok();
}

void VerbsConnection::Disarm() noexcept {
  DrainEvents();
  empty_polls_ = kLookInterval;
}

void VerbsConnection::DrainEvents() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  uint64_t expirations = 0;
  (void)!read(timer_.get(), &expirations, sizeof(expirations));
}

const VerbsMessage* VerbsConnection::Front() noexcept {
  if (inbox_count_ == 0 || posted_ != retired_) Harvest();
  while (inbox_count_ > 0) {
    if (!status_.ok()) return nullptr;
    const VerbsMessage& message = inbox_[inbox_begin_];
    if (!started_ || !Understand(message)) return &message;
    Pop();
    if (inbox_count_ == 0) Harvest();
  }
  if (!failed_.ok()) status_ = failed_;
  return nullptr;
}

void VerbsConnection::NoteEmpty() noexcept {
  if (++empty_polls_ < kLookInterval) return;
  empty_polls_ = 0;
  CheckAlarm();
  if (failed_.ok() && started_) Tick(clock_->Now());
  // All these polls gave nothing. If a message is left in the inbox, it waits behind a send that
  // never completes.
  if (!failed_.ok()) status_ = failed_;
}

void VerbsConnection::Harvest() noexcept {
  Reap();
  std::array<ibv_wc, kHarvestMax> completions;
  int count = kHarvestMax;
  while (count == kHarvestMax && inbox_count_ + kHarvestMax <= inbox_.size()) {
    count = ibv_poll_cq(receive_queue_.get(), kHarvestMax, completions.data());
    if (count < 0) {
      Fail(absl::UnavailableError("polling the completion queue failed"));
      break;
    }
    for (int i = 0; i < count; ++i) Take(completions[static_cast<size_t>(i)]);
  }
  RepostTaken();
}

void VerbsConnection::Take(const ibv_wc& completion) noexcept {
  if (completion.status != IBV_WC_SUCCESS) {
    // A message that is too long gives one of the two, depending on the device.
    if (completion.status == IBV_WC_LOC_LEN_ERR || completion.status == IBV_WC_LOC_QP_OP_ERR) {
      Fail(absl::InvalidArgumentError("the peer sent more than a receive holds"));
    }
    FailFor(completion, "receive");
    return;
  }
  const auto buffer = static_cast<uint32_t>(completion.wr_id);
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    Break(absl::InvalidArgumentError("the peer sent a message without an immediate"));
    return;
  }
  heard_ = true;
  VerbsMessage message;
  message.immediate = DecodeImmediate(ntohl(completion.imm_data));
  message.buffer = buffer;
  message.bytes = completion.byte_len;
  message.write = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  inbox_[(inbox_begin_ + inbox_count_++) % inbox_.size()] = message;
  if (shape_.requester) taken_.push_back(buffer);
}

// Returns true if `message` was one of the connection's own, and has been handled.
bool VerbsConnection::Understand(const VerbsMessage& message) noexcept {
  if (!message.immediate.control.has_value()) return false;
  if (!shape_.requester) Repost(message.buffer);
  switch (*message.immediate.control) {
    case VerbsControl::kPing:
      if (shape_.requester || pong_due_) break;
      pong_due_ = true;
      if (!reading(pong_number_)) Reap();
      if (!reading(pong_number_)) {
        pong_due_ = false;
        SendControl(VerbsControl::kPong);
        pong_number_ = posted_;
      }
      return true;
    case VerbsControl::kPong:
      if (!shape_.requester || !probing_) break;
      probing_ = false;
      return true;
    case VerbsControl::kBye:
      Fail(absl::UnavailableError("the peer has closed its end of the lane"));
      return true;
    default:
      break;
  }
  Break(
      absl::InvalidArgumentError(absl::StrFormat("the peer sent control message %d out of its turn",
                                                 static_cast<int>(*message.immediate.control))));
  return true;
}

void VerbsConnection::Repost(uint32_t buffer) noexcept {
  ibv_sge sge = receive_;
  sge.addr += uint64_t{buffer} * receive_.length;
  ibv_recv_wr request = {};
  request.wr_id = buffer;
  request.sg_list = &sge;
  request.num_sge = receive_.length > 0 ? 1 : 0;
  ibv_recv_wr* bad = nullptr;
  if (!failed_.ok() || ibv_post_recv(pair_.get(), &request, &bad) == 0) return;
  Fail(absl::UnavailableError("the device takes no receive"));
}

void VerbsConnection::RepostTaken() noexcept {
  if (taken_.empty()) return;
  std::array<ibv_recv_wr, kHarvestMax> chain{};
  size_t done = 0;
  while (done < taken_.size() && failed_.ok()) {
    const size_t count = std::min(chain.size(), taken_.size() - done);
    for (size_t i = 0; i < count; ++i) {
      chain[i].wr_id = taken_[done + i];
      chain[i].next = i + 1 < count ? &chain[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(pair_.get(), chain.data(), &bad) != 0) {
      Fail(absl::UnavailableError("the device takes no receive"));
    }
    done += count;
  }
  taken_.clear();
}

uint64_t VerbsConnection::Send(ibv_send_wr* first, ibv_send_wr* last, uint32_t count,
                               bool copied) noexcept {
  const bool signalled = !copied || posted_ - retired_ >= kUnsignalledMax;
  const uint64_t number = posted_ + count;
  for (ibv_send_wr* request = first; request != nullptr; request = request->next) {
    uint64_t bytes = 0;
    for (int i = 0; i < request->num_sge; ++i) bytes += request->sg_list[i].length;
    // Not every driver refuses what the port cannot carry.
    CKV_CHECK(bytes <= domain_->device()->message_bytes_max());
    request->wr_id = number;
    request->send_flags = copied ? IBV_SEND_INLINE : 0;
  }
  if (signalled) last->send_flags |= IBV_SEND_SIGNALED;
  posted_ = number;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_.get(), first, &bad) != 0) {
    // Part of the chain may be with the device, so none of it counts as done before the end.
    Fail(absl::UnavailableError("the device takes no work request"));
    return number;
  }
  return signalled ? number : 0;
}

void VerbsConnection::SendControl(VerbsControl control, std::span<const std::byte> body) noexcept {
  ibv_sge sge = {reinterpret_cast<uint64_t>(body.data()), static_cast<uint32_t>(body.size()), 0};
  ibv_send_wr request = {};
  request.sg_list = &sge;
  request.num_sge = body.empty() ? 0 : 1;
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(EncodeImmediate(control));
  CKV_CHECK(inlines(static_cast<uint32_t>(body.size())));
  ibv_send_wr* bad = nullptr;
  request.wr_id = ++posted_;
  request.send_flags = IBV_SEND_SIGNALED | (body.empty() ? 0 : IBV_SEND_INLINE);
  if (ibv_post_send(pair_.get(), &request, &bad) != 0) {
    Fail(absl::UnavailableError("the device takes no work request"));
  }
}

void VerbsConnection::BindWindow(ibv_mw* window, uint32_t key, const VerbsRegion& region,
                                 uint64_t address, uint64_t bytes) noexcept {
  window_.reset(window);
  ibv_send_wr request = {};
  request.wr_id = ++posted_;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = window;
  request.bind_mw.rkey = key;
  request.bind_mw.bind_info = {region.get(), address, bytes, IBV_ACCESS_REMOTE_WRITE};
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_.get(), &request, &bad) != 0) {
    Fail(absl::UnavailableError("the device binds no memory window: switch windows off"));
  }
}

void VerbsConnection::Reap() noexcept {
  std::array<ibv_wc, kHarvestMax> completions;
  int count = kHarvestMax;
  while (posted_ != retired_ && count == kHarvestMax) {
    count = ibv_poll_cq(send_queue_.get(), kHarvestMax, completions.data());
    if (count < 0) Fail(absl::UnavailableError("polling the completion queue failed"));
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<size_t>(i)];
      if (completion.status != IBV_WC_SUCCESS) FailFor(completion, "send");
      retired_ = std::max(retired_, completion.wr_id);
    }
  }
  if (!shape_.requester && !reading(probe_number_)) probing_ = false;
}

// A requester probes the holder's software, which answers. A holder probes only the requester's
// device, by a write of no bytes, because a requester's thread may be busy elsewhere for long.
void VerbsConnection::Tick(Instant now) noexcept {
  const VerbsOptions& options = domain_->device()->options();
  if (pong_due_ && !reading(pong_number_)) {
    pong_due_ = false;
    SendControl(VerbsControl::kPong);
    pong_number_ = posted_;
  }
  if (probing_) {
    const auto silence = std::chrono::milliseconds(options.silence_ms_max);
    if (heard_) {
      probed_ = now;
      heard_ = false;
    } else if (shape_.requester && now - probed_ >= silence) {
      Fail(absl::UnavailableError(
          absl::StrFormat("the holder has not polled its lane for %d ms", options.silence_ms_max)));
    }
    return;
  }
  if (now - probed_ < probe_interval()) return;
  probed_ = now;
  if (shape_.requester) {
    Ask();
    return;
  }
  probing_ = true;
  heard_ = false;
  ibv_send_wr request = {};
  request.wr_id = ++posted_;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_.get(), &request, &bad) != 0) {
    Fail(absl::UnavailableError("the device takes no work request"));
  }
  probe_number_ = posted_;
}

void VerbsConnection::Ask() noexcept {
  probing_ = true;
  heard_ = false;
  SendControl(VerbsControl::kPing);
}

Duration VerbsConnection::probe_interval() const noexcept {
  return std::chrono::milliseconds(domain_->device()->options().probe_interval_ms);
}

void VerbsConnection::CheckAlarm() noexcept {
  if (alarm_->event() < 0) return;
  const auto event = static_cast<ibv_event_type>(alarm_->event());
  const std::string text = absl::StrFormat("the device reports: %s", ibv_event_type_str(event));
  // The first two mean that the peer tried an access it may not have.
  Fail(event == IBV_EVENT_QP_ACCESS_ERR || event == IBV_EVENT_QP_REQ_ERR
           ? absl::InvalidArgumentError(text)
           : absl::UnavailableError(text));
}

void VerbsConnection::FailFor(const ibv_wc& completion, const char* what) noexcept {
  switch (completion.status) {
    case IBV_WC_REM_ACCESS_ERR:
      Fail(absl::InvalidArgumentError("the peer's landing region refused a reply"));
      return;
    case IBV_WC_RETRY_EXC_ERR:
      Fail(absl::UnavailableError("the peer's device does not answer"));
      return;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      Fail(absl::UnavailableError("the peer has posted no receive"));
      return;
    default:
      Fail(absl::UnavailableError(
          absl::StrFormat("%s: %s", what, ibv_wc_status_str(completion.status))));
  }
}

void VerbsConnection::Fail(absl::Status status) noexcept {
  dead_ = true;
  if (failed_.ok()) failed_ = std::move(status);
}

void VerbsConnection::Break(absl::Status status) noexcept {
  if (!status_.ok()) return;
  // Notifies the peer now, not when the owner destroys this end.
  SayGoodbye();
  failed_ = status;
  status_ = std::move(status);
}

void VerbsConnection::SayGoodbye() noexcept {
  if (!established_ || dead_ || bye_sent_) return;
  bye_sent_ = true;
  SendControl(VerbsControl::kBye);
}

void VerbsConnection::Leave() noexcept {
  if (!established_ || left_) return;
  left_ = true;
  // Do not wait for a peer that has gone first, or was never there.
  Harvest();
  if (!shape_.requester && !started_ && inbox_count_ == 0) return;
  for (size_t i = 0; i < inbox_count_; ++i) {
    const VerbsMessage& message = inbox_[(inbox_begin_ + i) % inbox_.size()];
    dead_ |= message.immediate.control == VerbsControl::kBye;
  }
  SayGoodbye();
}

// Waits until the last sends have arrived, or their fate is known.
void VerbsConnection::Linger() noexcept {
  if (!established_ || stopped_ || hurried_) return;
  const auto limit = std::chrono::milliseconds(domain_->device()->options().linger_ms_max);
  const Instant deadline = clock_->Now() + limit;
  while (posted_ != retired_ && !dead_ && clock_->Now() < deadline) {
    DrainEvents();
    if (ibv_req_notify_cq(send_queue_.get(), 0) != 0) return;
    Reap();
    if (posted_ == retired_) return;
    pollfd entry = {channel_->fd, POLLIN, 0};
    // A signal repeats the wait; the time-out ends it, regardless of the clock.
    if (poll(&entry, 1, static_cast<int>(limit.count())) == 0) return;
  }
}

void VerbsConnection::Stop() noexcept {
  if (pair_ == nullptr || stopped_) return;
  stopped_ = true;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
  // Every send completes now, as flushed, and the marker last; earlier sends may have had no
  // completion asked for. If a driver does not complete the marker, destroying the queue pair below
  // returns only when the device is done with it.
  if (established_ && posted_ != retired_) SendControl(VerbsControl::kBye);
  constexpr int kRoundsMax = 10;
  for (int round = 0; round < kRoundsMax && posted_ != retired_; ++round) {
    DrainEvents();
    if (ibv_req_notify_cq(send_queue_.get(), 0) != 0) break;
    Reap();
    if (posted_ == retired_) break;
    pollfd entry = {channel_->fd, POLLIN, 0};
    (void)poll(&entry, 1, 10);
  }
  window_.reset();
  if (posted_ != retired_) pair_.reset();
}

VerbsConnection::~VerbsConnection() {
  Leave();
  Linger();
  Stop();
  if (alarm_.has_value()) domain_->device()->Unwatch(&*alarm_);
  pair_.reset();
  if (channel_ != nullptr) DrainEvents();
}

}  // namespace ckv
