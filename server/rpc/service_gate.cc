#include "server/rpc/service_gate.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "client/holders/retry.h"

namespace ckv {
namespace {

// Streams last; a second is soon enough to look again.
constexpr uint32_t kRetryAfterUs = 1'000'000;

absl::Status FullError(absl::string_view text) {
  return WithRetryAfter(absl::ResourceExhaustedError(text), kRetryAfterUs);
}

}  // namespace

ServiceGate::Stream::Stream(Stream&& other) noexcept
    : gate_(std::exchange(other.gate_, nullptr)), entry_(other.entry_) {}

ServiceGate::Stream::~Stream() {
  if (gate_ == nullptr) return;
  absl::MutexLock lock(&gate_->mu_);
  if (entry_->holds_thread()) --gate_->thread_count_;
  if (entry_->kind != nullptr) --entry_->kind->count_;
  gate_->streams_.erase(entry_);
}

bool ServiceGate::Stream::BeginWait(Instant until) {
  absl::MutexLock lock(&gate_->mu_);
  if (gate_->closed_) return false;
  entry_->waiting = true;
  entry_->until = until;
  return true;
}

bool ServiceGate::Stream::BeginWrite() {
  absl::MutexLock lock(&gate_->mu_);
  if (gate_->ended_) return false;
  entry_->waiting = entry_->writing = true;
  entry_->until = kInstantMax;
  return true;
}

void ServiceGate::Stream::EndWait() {
  absl::MutexLock lock(&gate_->mu_);
  entry_->waiting = entry_->writing = entry_->stuck = false;
}

absl::StatusOr<ServiceGate::Stream> ServiceGate::Enter(CancelStream cancel, Kind* kind) {
  absl::MutexLock lock(&mu_);
  if (closed_) return ClosedError();
  const bool holds_thread = kind == nullptr || kind->holds_thread_;
  if (holds_thread && thread_count_ >= stream_count_max_) {
    return FullError(absl::StrFormat("%d streams are open, the limit", stream_count_max_));
  }
  if (kind != nullptr && kind->count_ >= kind->count_max_) {
    return FullError(
        absl::StrFormat("%d %s are in progress, the limit", kind->count_max_, kind->name_));
  }
  if (holds_thread) ++thread_count_;
  if (kind != nullptr) ++kind->count_;
  streams_.push_front({.cancel = std::move(cancel), .kind = kind});
  return Stream(this, streams_.begin());
}

void ServiceGate::Close() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(closed_, true)) return;
  CancelIf([](const Stream::Entry& entry) { return entry.waiting && !entry.writing; });
}

void ServiceGate::EndStuck() {
  absl::MutexLock lock(&mu_);
  CancelIf([](const Stream::Entry& entry) { return entry.stuck; });
  for (Stream::Entry& entry : streams_) entry.stuck = entry.writing;
}

void ServiceGate::End() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  CancelIf([](const Stream::Entry& entry) { return entry.waiting; });
}

void ServiceGate::CancelIf(bool (*ends)(const Stream::Entry&)) {
  for (Stream::Entry& entry : streams_) {
    if (ends(entry)) Cancel(entry, ClosedError());
  }
}

void ServiceGate::CancelOverdue(Instant now) {
  absl::MutexLock lock(&mu_);
  for (Stream::Entry& entry : streams_) {
    if (!entry.waiting || now < entry.until) continue;
    Cancel(entry, absl::DeadlineExceededError("the peer sent or took nothing for too long"));
  }
}

void ServiceGate::Cancel(Stream::Entry& entry, const absl::Status& why) {
  if (!std::exchange(entry.cancelled, true)) entry.cancel(why);
}

ServiceGate::Call::Call(Call&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}

ServiceGate::Call::~Call() {
  if (gate_ == nullptr) return;
  absl::MutexLock lock(&gate_->mu_);
  --gate_->call_count_;
}

absl::StatusOr<ServiceGate::Call> ServiceGate::EnterCall() {
  absl::MutexLock lock(&mu_);
  if (closed_) return ClosedError();
  ++call_count_;
  return Call(this);
}

bool ServiceGate::AwaitIdle(Clock& clock, Instant deadline) {
  absl::MutexLock lock(&mu_);
  return clock.Await(mu_, absl::Condition(this, &ServiceGate::Idle), deadline);
}

bool ServiceGate::closed() const {
  absl::MutexLock lock(&mu_);
  return closed_;
}

absl::Status ServiceGate::ClosedError() {
  return absl::UnavailableError("this server is draining; ask another");
}

}  // namespace ckv
