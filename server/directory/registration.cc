#include "server/registration.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"

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
  return state_->Register(member, ttl);
}
absl::StatusOr<Duration> LocalRegistrar::KeepAlive(uint64_t lease_id, Instant /*deadline*/) {
  return state_->KeepAlive(lease_id);
}
absl::Status LocalRegistrar::Deregister(uint64_t lease_id, Instant /*deadline*/) {
  return state_->Deregister(lease_id);
}

Registration::Registration(const RegistrationOptions& options, DirectoryRegistrar* registrar,
                           LeaseGate* gate)
    : options_(options), registrar_(registrar), gate_(gate), backoff_(options.backoff_min) {
  thread_ = std::thread([this] { Run(); });
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
      options_.clock->Await(mu_, absl::Condition(&stop_), next);
      lease = report_.lease;
      if (stop_) break;
    }
    next = lease.has_value() ? Renew(*lease) : Register();
  }
  EndLease();
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
  const absl::StatusOr<LeaseGrant> grant =
      registrar_->Register(options_.member, options_.ttl, sent + options_.call_timeout);
  absl::MutexLock lock(&mu_);
  if (!grant.ok()) return NoteFailure(grant.status());
  if (const absl::Status usable = CheckTtl(grant->ttl); !usable.ok()) return NoteFailure(usable);
  report_.lease = *grant;
  report_.last_error = absl::OkStatus();
  ++report_.registration_count;
  backoff_ = options_.backoff_min;
  OpenGate(*grant, sent);
  spdlog::info("{} registered in epoch {}", options_.member.id.name, grant->epoch.value);
  return sent + grant->ttl / 3;
}

Instant Registration::Renew(const LeaseGrant& lease) {
  const Instant sent = options_.clock->Now();
  const Duration timeout = std::min(options_.call_timeout, lease.ttl / 3);
  const absl::StatusOr<Duration> ttl = registrar_->KeepAlive(lease.lease_id, sent + timeout);
  absl::MutexLock lock(&mu_);
  if (absl::IsNotFound(ttl.status())) {
    // Another life of this name may be answering already.
    if (gate_ != nullptr) gate_->Revoke();
    report_.lease.reset();
    report_.last_error = ttl.status();
    ++report_.failure_count;
    spdlog::warn("{} lost its lease of epoch {}: {}", options_.member.id.name, lease.epoch.value,
                 std::string(ttl.status().message()));
    return sent;
  }
  if (!ttl.ok()) return NoteFailure(ttl.status());
  if (const absl::Status usable = CheckTtl(*ttl); !usable.ok()) return NoteFailure(usable);
  report_.lease->ttl = *ttl;
  report_.last_error = absl::OkStatus();
  ++report_.renewal_count;
  backoff_ = options_.backoff_min;
  OpenGate(*report_.lease, sent);
  return sent + *ttl / 3;
}

// Logged when it begins, not at every try.
Instant Registration::NoteFailure(const absl::Status& status) {
  if (report_.last_error.ok()) {
    spdlog::warn("{}: the directory does not register it: {}", options_.member.id.name,
                 std::string(status.message()));
  }
  report_.last_error = status;
  ++report_.failure_count;
  const Instant next = options_.clock->Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, options_.backoff_max);
  return next;
}

void Registration::OpenGate(const LeaseGrant& lease, Instant sent) {
  if (gate_ != nullptr) gate_->Grant(lease.epoch, sent + lease.ttl / 2);
}

absl::StatusOr<Epoch> Registration::AwaitLease(Instant deadline) {
  absl::MutexLock lock(&mu_);
  if (options_.clock->Await(mu_, absl::Condition(this, &Registration::HasLease), deadline)) {
    return report_.lease->epoch;
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "not registered: %s", report_.last_error.ok() ? "the directory has not answered"
                                                    : std::string(report_.last_error.message())));
}

Registration::Report Registration::report() const {
  absl::MutexLock lock(&mu_);
  return report_;
}

}  // namespace ckv
