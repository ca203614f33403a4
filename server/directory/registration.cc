// The thread's loop, Run, is first: it waits for the time of the next call, for the end of the
// gate's time, or for Prod, and then makes one call. Register and Renew return the time of the next
// call. The functions after them handle the replies: a grant or a renewal opens the gate, a failure
// waits with a growing pause, a lost lease registers at once (registration.h has the states).

#include "server/directory/registration.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/planted_bug.h"

namespace ckv {
namespace {

// A lease that a directory gives is renewed every third of it; a shorter one than this is a mistake
// there, and must not become a loop here.
constexpr Duration kLeaseTtlMin = std::chrono::milliseconds(30);

absl::Status CheckTtl(Duration ttl) {
  if (ttl >= kLeaseTtlMin) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("the directory gave a lease of %d ns", ttl.count()));
}

}  // namespace

absl::StatusOr<LeaseGrant> LocalRegistrar::Register(const Member& member, Duration ttl,
                                                    Instant /*deadline*/) {
  return state_->Register(member, ttl, kInstantMax, reports_parts_);
}
absl::StatusOr<LeaseRenewal> LocalRegistrar::KeepAlive(uint64_t lease_id,
                                                       const MemberHealth* health,
                                                       Instant /*deadline*/) {
  return state_->KeepAlive(lease_id, health);
}
absl::Status LocalRegistrar::Deregister(uint64_t lease_id, Instant /*deadline*/) {
  return state_->Deregister(lease_id);
}

Registration::Registration(const RegistrationOptions& options, DirectoryRegistrar* registrar,
                           LeaseGate* gate)
    : options_(options),
      registrar_(registrar),
      gate_(gate),
      backoff_(options.backoff_min),
      last_epoch_(options.member.epoch) {
  thread_ = Thread([this] { Run(); });
}

Registration::~Registration() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void Registration::Run() {
  Instant next = options_.clock->Now();
  for (;;) {
    std::optional<LeaseGrant> lease;
    {
      absl::MutexLock lock(&mu_);
      options_.clock->Await(mu_, absl::Condition(this, &Registration::IsAwake),
                            std::min(next, gate_until_));
      if (stop_) break;
      const Instant now = options_.clock->Now();
      if (std::exchange(prodded_, false) && !report_.gave_up) {
        next = now;
        backoff_ = options_.backoff_min;
      }
      if (now >= gate_until_) NoteClosed();
      if (now < next) continue;
      lease = report_.lease;
    }
    next = lease.has_value() ? Renew(*lease) : Register();
  }
  EndLease();
}

void Registration::Prod() {
  absl::MutexLock lock(&mu_);
  prodded_ = true;
}

void Registration::EndLease() {
  if (gate_ != nullptr) gate_->Revoke();
  std::optional<LeaseGrant> lease;
  {
    absl::MutexLock lock(&mu_);
    std::swap(lease, report_.lease);
  }
  if (!lease.has_value()) return;
  const Instant deadline = options_.clock->Now() + options_.call_timeout;
  // Not answered: the lease runs out by itself.
  registrar_->Deregister(lease->lease_id, deadline).IgnoreError();
}

Instant Registration::Register() {
  const Instant sent = options_.clock->Now();
  Member member = options_.member;
  {
    absl::MutexLock lock(&mu_);
    member.epoch = last_epoch_;
  }
  const absl::StatusOr<LeaseGrant> grant =
      registrar_->Register(member, options_.ttl, sent + options_.call_timeout);
  const Instant next = TakeGrant(grant, sent);
  if (grant.ok() && options_.on_lease) options_.on_lease(*grant, 0);
  return next;
}

Instant Registration::TakeGrant(const absl::StatusOr<LeaseGrant>& grant, Instant sent) {
  absl::MutexLock lock(&mu_);
  if (absl::IsAlreadyExists(grant.status())) return NoteNameTaken(grant.status(), sent);
  const absl::Status usable = grant.ok() ? CheckTtl(grant->ttl) : grant.status();
  if (!usable.ok()) return NoteFailure(usable, "the directory does not register it");
  report_.lease = *grant;
  last_epoch_ = grant->epoch;
  report_.last_error = absl::OkStatus();
  ++report_.registration_count;
  name_taken_until_.reset();
  backoff_ = options_.backoff_min;
  OpenGate(*grant, sent);
  Log().info("{} registered in epoch {}", options_.member.id.name, grant->epoch.value);
  return sent + grant->ttl / 3;
}

Instant Registration::Renew(const LeaseGrant& lease) {
  std::optional<MemberHealth> health;
  if (options_.health) health = options_.health();
  const Instant sent = options_.clock->Now();
  const Duration timeout = std::min(options_.call_timeout, lease.ttl / 3);
  const auto renewal =
      registrar_->KeepAlive(lease.lease_id, health ? &*health : nullptr, sent + timeout);
  if (renewal.ok() && options_.on_lease) options_.on_lease(lease, renewal->placed_change_count);
  const absl::StatusOr<Duration> ttl =
      renewal.ok() ? absl::StatusOr<Duration>(renewal->ttl) : renewal.status();
  absl::MutexLock lock(&mu_);
  if (absl::IsNotFound(ttl.status())) {
    NoteLost(lease, ttl.status());
    return sent;
  }
  const absl::Status usable = ttl.ok() ? CheckTtl(*ttl) : ttl.status();
  if (!usable.ok())
    return NoteFailure(usable, "the directory does not renew its lease (KeepAlive)");
  report_.lease->ttl = *ttl;
  report_.last_error = absl::OkStatus();
  ++report_.renewal_count;
  backoff_ = options_.backoff_min;
  OpenGate(*report_.lease, sent);
  return sent + *ttl / 3;
}

void Registration::NoteLost(const LeaseGrant& lease, const absl::Status& status) {
  report_.lease.reset();
  report_.last_error = status;
  ++report_.failure_count;
  const auto incarnation = DirectoryIncarnationOf(status);
  if (incarnation && lease.directory_incarnation != 0 &&
      *incarnation != lease.directory_incarnation) {
    Log().warn("{}: the directory has restarted and does not have its lease of epoch {}",
               options_.member.id.name, lease.epoch.value);
    return;
  }
  Log().warn("{} lost its lease of epoch {}: {}", options_.member.id.name, lease.epoch.value,
             std::string(status.message()));
  // Another life of this name may be answering already.
  CloseGate();
}

void Registration::CloseGate() {
  if (gate_ == nullptr) return;
  gate_->Revoke();
  if (!closed_) NoteClosed();
}

// Logged when it begins, not at every try.
Instant Registration::NoteFailure(const absl::Status& status, std::string_view what) {
  if (report_.last_error.ok()) {
    Log().warn("{}: {}: {}", options_.member.id.name, what, std::string(status.message()));
  }
  report_.last_error = status;
  ++report_.failure_count;
  const Instant next = options_.clock->Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, options_.backoff_max);
  return next;
}

Instant Registration::NoteNameTaken(const absl::Status& status, Instant sent) {
  const bool registered_before = report_.registration_count > 0;
  if (!name_taken_until_) {
    // A process that lives renews its lease, so the lease is there when this time is over.
    const Duration wait = std::max(options_.ttl, LeaseEndOf(status).value_or(Duration(0)));
    name_taken_until_ = sent + wait;
    const auto wait_ms = std::chrono::duration_cast<std::chrono::milliseconds>(wait);
    Log().warn("{}: {}. {}", options_.member.id.name, std::string(status.message()),
               registered_before
                   ? std::string("It keeps trying, and is no member until that lease ends")
                   : absl::StrFormat("Waiting %d ms for that lease to run out: it may be of an "
                                     "earlier life of this process",
                                     wait_ms.count()));
  }
  report_.last_error = status;
  if (gate_until_ != kInstantMax) CloseGate();
  const Instant next = NoteFailure(status, "");  // which has been said
  if (registered_before) return next;
  if (sent < *name_taken_until_) return std::min(next, *name_taken_until_);
  report_.gave_up = true;
  return kInstantMax;
}

void Registration::OpenGate(const LeaseGrant& lease, Instant sent) {
  lease_until_ = sent + lease.ttl;
  if (gate_ == nullptr) return;
  gate_until_ = sent + lease.ttl / 2;
  if (CKV_PLANTED_BUG("half-lease")) gate_until_ = lease_until_;
  if (CKV_PLANTED_BUG("wall-clock")) {
    // As if the wall clock counted: a jump of it moves the end.
    static thread_local const int64_t ahead_ns = WallClockAheadNs(*options_.clock);
    gate_until_ = gate_until_ + Duration(WallClockAheadNs(*options_.clock) - ahead_ns);
  }
  gate_->Grant(lease.epoch, gate_until_);
  if (std::exchange(closed_, false)) {
    Log().warn("{} answers requests again, in epoch {}", options_.member.id.name,
               lease.epoch.value);
  }
}

void Registration::NoteClosed() {
  gate_until_ = kInstantMax;
  closed_ = true;
  Log().warn(
      "{} refuses every request until the directory renews its lease or registers it again: {}",
      options_.member.id.name,
      report_.last_error.ok() ? "no KeepAlive was sent in time"
                              : std::string(report_.last_error.message()));
}

absl::StatusOr<Epoch> Registration::AwaitLease(Instant deadline) {
  absl::MutexLock lock(&mu_);
  if (options_.clock->Await(mu_, absl::Condition(this, &Registration::IsDecided), deadline)) {
    if (report_.gave_up) return report_.last_error;
    return report_.lease->epoch;
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "not registered: %s", report_.last_error.ok() ? "the directory has not answered"
                                                    : std::string(report_.last_error.message())));
}

Registration::Report Registration::report() const {
  absl::MutexLock lock(&mu_);
  Report report = report_;
  if (options_.clock->Now() >= lease_until_) report.lease.reset();
  return report;
}

}  // namespace ckv
