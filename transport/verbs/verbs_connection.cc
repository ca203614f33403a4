// The running connection, on its lane's thread. Front harvests completions: received messages go to
// the inbox, finished sends are counted (Reap), buffers are posted again. Messages of the
// connection's own (ping, pong, bye) are handled here (Understand). Liveness: Tick probes a peer
// that has been silent. The states: established; failed, with the first error kept (Fail); left,
// after a goodbye (Leave). The destructor leaves, waits until the last sends have arrived (Linger),
// and stops the pair (Stop).

#include "transport/verbs/verbs_connection.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kHarvestMax = 16;  // completions taken at once
// Empty polls between two looks at the clock, as in ring_lane.cc.
constexpr uint32_t kLookInterval = 256;

// The error of a connection whose work request failed.
absl::Status FailureOf(const ibv_wc& completion, const char* what) {
  switch (completion.status) {
    case IBV_WC_REM_ACCESS_ERR:
      return absl::InvalidArgumentError("the peer's landing region refused a reply");
    case IBV_WC_RETRY_EXC_ERR:
      return absl::UnavailableError("the peer's device does not answer");
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return absl::UnavailableError("the peer has posted no receive");
    default:
      return absl::UnavailableError(
          absl::StrFormat("%s: %s", what, ibv_wc_status_str(completion.status)));
  }
}

}  // namespace

VerbsConnection::VerbsConnection(const VerbsDomain* domain, Clock* clock,
                                 const VerbsLinkShape& shape)
    : domain_(domain),
      clock_(clock),
      shape_(shape),
      queues_(domain, shape),
      // A harvest takes whole batches only.
      inbox_(shape.receive_count + kHarvestMax) {
  taken_.reserve(shape.receive_count);
}

absl::StatusOr<std::unique_ptr<VerbsConnection>> VerbsConnection::Create(
    const VerbsDomain* domain, Clock* clock, const VerbsLinkShape& shape) {
  std::unique_ptr<VerbsConnection> connection(new VerbsConnection(domain, clock, shape));
  CKV_RETURN_IF_ERROR(connection->queues_.Create());
  return connection;
}

absl::Status VerbsConnection::PostReceives(std::byte* base, uint32_t stride, uint32_t local_key) {
  receive_ = {reinterpret_cast<uint64_t>(base), base == nullptr ? 0 : stride, local_key};
  for (uint32_t i = 0; i < shape_.receive_count; ++i) Repost(i);
  return failed_;
}

void VerbsConnection::Start() {
  started_ = true;
  probed_ = clock_->Now();
  // Wakes a sleeper to look after its peer too. The timer runs by itself, so a sleep needs no call
  // for it.
  queues_.StartTimer(domain_->device()->options().probe_interval_ms);
}

bool VerbsConnection::Arm(bool blocked) noexcept {
  if (inbox_.empty() && !failed_.ok()) status_ = failed_;
  if (!status_.ok() || (!inbox_.empty() && !blocked)) return false;
  const size_t before = inbox_.count();
  // Arms sends too while any is in flight. The head of the inbox may wait for one, and a failed
  // send reveals a dead peer.
  if (!queues_.ArmReceives() || (posted_ != retired_ && !queues_.ArmSends())) {
    Fail(absl::UnavailableError("the device arms no completion queue"));
    return false;
  }
  const uint64_t retired = retired_;
  Harvest();  // messages that arrived before the arming ring no bell
  return inbox_.count() == before && retired_ == retired && failed_.ok();
}

void VerbsConnection::Disarm() noexcept {
  queues_.DrainEvents();
  empty_polls_ = kLookInterval;
}

const VerbsMessage* VerbsConnection::Front() noexcept {
  if (inbox_.empty() || posted_ != retired_) Harvest();
  while (!inbox_.empty()) {
    if (!status_.ok()) return nullptr;
    const VerbsMessage& message = inbox_.at(0);
    if (!started_ || !Understand(message)) return &message;
    Pop();
    if (inbox_.empty()) Harvest();
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
  while (count == kHarvestMax && inbox_.HasRoom(kHarvestMax)) {
    count = queues_.PollReceives(completions);
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
    Fail(FailureOf(completion, "receive"));
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
  inbox_.Push(message);
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
  if (!failed_.ok() || queues_.PostReceives(&request)) return;
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
    if (!queues_.PostReceives(chain.data())) {
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
  if (!queues_.PostSends(first)) {
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
  request.wr_id = ++posted_;
  request.send_flags = IBV_SEND_SIGNALED | (body.empty() ? 0 : IBV_SEND_INLINE);
  if (!queues_.PostSends(&request)) {
    Fail(absl::UnavailableError("the device takes no work request"));
  }
}

void VerbsConnection::BindWindow(ibv_mw* window, uint32_t key, const VerbsRegion& region,
                                 uint64_t address, uint64_t bytes) noexcept {
  queues_.TakeWindow(window);
  ibv_send_wr request = {};
  request.wr_id = ++posted_;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = window;
  request.bind_mw.rkey = key;
  request.bind_mw.bind_info = {region.get(), address, bytes, IBV_ACCESS_REMOTE_WRITE};
  if (!queues_.PostSends(&request)) {
    Fail(absl::UnavailableError("the device binds no memory window: switch windows off"));
  }
}

void VerbsConnection::Reap() noexcept {
  std::array<ibv_wc, kHarvestMax> completions;
  int count = kHarvestMax;
  while (posted_ != retired_ && count == kHarvestMax) {
    count = queues_.PollSends(completions);
    if (count < 0) Fail(absl::UnavailableError("polling the completion queue failed"));
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<size_t>(i)];
      if (completion.status != IBV_WC_SUCCESS) Fail(FailureOf(completion, "send"));
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
  if (!queues_.PostSends(&request)) {
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
  if (queues_.alarm() < 0) return;
  const auto event = static_cast<ibv_event_type>(queues_.alarm());
  const std::string text = absl::StrFormat("the device reports: %s", ibv_event_type_str(event));
  // The first two mean that the peer tried an access it may not have.
  Fail(event == IBV_EVENT_QP_ACCESS_ERR || event == IBV_EVENT_QP_REQ_ERR
           ? absl::InvalidArgumentError(text)
           : absl::UnavailableError(text));
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
  if (!queues_.established() || dead_ || bye_sent_) return;
  bye_sent_ = true;
  SendControl(VerbsControl::kBye);
}

void VerbsConnection::Leave() noexcept {
  if (!queues_.established() || left_) return;
  left_ = true;
  // Do not wait for a peer that has gone first, or was never there.
  Harvest();
  if (!shape_.requester && !started_ && inbox_.empty()) return;
  for (size_t i = 0; i < inbox_.count(); ++i) {
    const VerbsMessage& message = inbox_.at(i);
    dead_ |= message.immediate.control == VerbsControl::kBye;
  }
  SayGoodbye();
}

// Waits until the last sends have arrived, or their fate is known.
void VerbsConnection::Linger() noexcept {
  if (!queues_.established() || stopped_ || hurried_) return;
  const auto limit = std::chrono::milliseconds(domain_->device()->options().linger_ms_max);
  const Instant deadline = clock_->Now() + limit;
  while (posted_ != retired_ && !dead_ && clock_->Now() < deadline) {
    queues_.DrainEvents();
    if (!queues_.ArmSends()) return;
    Reap();
    if (posted_ == retired_) return;
    // A signal repeats the wait; the time-out ends it, regardless of the clock.
    if (queues_.AwaitEvent(static_cast<int>(limit.count())) == 0) return;
  }
}

void VerbsConnection::Stop() noexcept {
  if (!queues_.has_pair() || stopped_) return;
  stopped_ = true;
  queues_.StopPair();
  // Every send completes now, as flushed, and the marker last; earlier sends may have had no
  // completion asked for. If a driver does not complete the marker, destroying the queue pair below
  // returns only when the device is done with it.
  if (queues_.established() && posted_ != retired_) SendControl(VerbsControl::kBye);
  constexpr int kRoundsMax = 10;
  for (int round = 0; round < kRoundsMax && posted_ != retired_; ++round) {
    queues_.DrainEvents();
    if (!queues_.ArmSends()) break;
    Reap();
    if (posted_ == retired_) break;
    (void)queues_.AwaitEvent(10);
  }
  queues_.FreeWindow();
  if (posted_ != retired_) queues_.DestroyPair();
}

VerbsConnection::~VerbsConnection() {
  Leave();
  Linger();
  Stop();
}

}  // namespace ckv
