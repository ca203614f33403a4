// Keeps a process registered in the directory, and its lease gate open while the lease allows it.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "proto/host/thread.h"
#include "server/directory/directory_state.h"
#include "server/session/lease_gate.h"

namespace ckv {

// The directory as a member uses it. One thread at a time calls it. Every call returns by
// `deadline`.
class DirectoryRegistrar {
 public:
  virtual ~DirectoryRegistrar() = default;

  // Registers the member. `continues`: this process had `member.epoch`, and keeps it if the
  // directory still has the member under it. Returns the errors of DirectoryService in
  // proto/ckv/v1/directory.proto, and:
  //   Unavailable, DeadlineExceeded    the directory does not reply.
  virtual absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl, bool continues,
                                              Instant deadline) = 0;
  // Renews the lease. `health` is what the member reports about itself; null reports nothing.
  //   NotFound            the lease expired or was replaced: register again.
  virtual absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                                 Instant deadline) = 0;
  virtual absl::Status Deregister(uint64_t lease_id, Instant deadline) = 0;
};

// A directory in the same process. `state` must outlive it. `reports_parts`: the member is a holder
// that has a PlacementKeeper.
class LocalRegistrar final : public DirectoryRegistrar {
 public:
  explicit LocalRegistrar(DirectoryState* state, bool reports_parts = false)
      : state_(state), reports_parts_(reports_parts) {}

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl, bool continues,
                                      Instant deadline) override;
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState* const state_;
  const bool reports_parts_;
};

struct RegistrationOptions {
  Member member;  // epoch: that of an earlier incarnation, or 0
  // The lease to request; 0 takes the directory's default. If another address has the name, a first
  // registration waits this long, and at least until the lease of that address would end.
  Duration ttl{0};
  Clock* clock = Clock::Real();
  // The limit of one call; that of a renewal is also at most a third of the lease.
  Duration call_timeout = std::chrono::seconds(1);
  // The wait between tries while the directory is unreachable. It doubles from min to max.
  Duration backoff_min = std::chrono::milliseconds(50);
  Duration backoff_max = std::chrono::milliseconds(500);
  // Called on the registration's thread when the lease was granted or renewed.
  // `placed_change_count` is the directory's count (LeaseRenewal), or 0 after a grant. Must not
  // wait. May be empty.
  std::function<void(const LeaseGrant& lease, const LeaseRenewal& renewal)> on_lease;
  // Returns what the member reports about itself with each renewal. Called on the registration's
  // thread; must not wait. If empty, nothing is reported.
  std::function<MemberHealth()> health;
};

// Thread-safe. Owns a thread that registers the member and renews after each third of the lease,
// and at least each kRenewPeriodMax. If the directory no longer has the lease, the thread registers
// again. That gives a new epoch, unless another of several directories leads now, and knows the
// member from the one before.
//
// The gate opens for half a lease from the moment a request was sent. So a holder that is cut off
// stops serving before the directory may give its place to another. After a failed renewal the
// thread tries again, and the gate expires at its time. If the directory denies the lease, the gate
// closes at once. If the directory was restarted and therefore has no leases, the gate stays open
// until it expires or the next registration extends it. It closes early if the name was given to
// another member.
//
//   state          calls               next state
//   registering    Register            registered by a grant; given up if the name stays taken and
//                                      the process never had a lease; otherwise unchanged, later
//   registered     KeepAlive           registering at once if the directory has no such lease;
//                                      otherwise unchanged
//   given up       none                none
//   stopping       Deregister          none; from each state, by the destructor
//
// A name that another address has may be that of an earlier process, whose lease will expire. So
// the first registration is tried for one lease (see ttl), and then gives up. A process that was
// registered before keeps trying.
class Registration {
 public:
  // So the gate of a long lease has at least half of it, less this, left at any time: enough until
  // another directory leads.
  static constexpr Duration kRenewPeriodMax = std::chrono::seconds(1);

  // `gate` may be null: a requester has a lease but serves no requests. `registrar` and `gate` must
  // outlive the registration. The constructor does not wait for the directory.
  Registration(const RegistrationOptions& options, DirectoryRegistrar* registrar, LeaseGate* gate);
  // Closes the gate, ends the lease and joins the thread. Waits at most twice call_timeout.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Waits until the member has a lease, and returns its epoch.
  //   DeadlineExceeded    with the directory's last error.
  //   AlreadyExists       another member has the name: the registration has given up.
  absl::StatusOr<Epoch> AwaitLease(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the next call at once. Call it when the directory can be reached again.
  void Prod() ABSL_LOCKS_EXCLUDED(mu_);

  struct Report {
    std::optional<LeaseGrant> lease;  // from this side's view; unset once it has run out
    absl::Status last_error;          // result of the last call; OK after a success
    bool gave_up = false;             // never registered: last_error names the member with the name
    uint64_t registration_count = 0;
    uint64_t renewal_count = 0;
    uint64_t failure_count = 0;
  };
  Report report() const ABSL_LOCKS_EXCLUDED(mu_);
  MemberRole role() const { return options_.member.role; }

 private:
  void Run();
  // Each makes one call and returns the time of the next.
  Instant Register() ABSL_LOCKS_EXCLUDED(mu_);
  Instant Renew(const LeaseGrant& lease) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the reply to a registration that was sent at `sent`.
  Instant TakeGrant(const absl::StatusOr<LeaseGrant>& grant, Instant sent) ABSL_LOCKS_EXCLUDED(mu_);
  Instant NoteFailure(const absl::Status& status, std::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles a registration, sent at `sent`, that was refused because another member has the name.
  Instant NoteNameTaken(const absl::Status& status, Instant sent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease() ABSL_LOCKS_EXCLUDED(mu_);
  void OpenGate(const LeaseGrant& lease, Instant sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles the loss of the lease: the directory does not have it.
  void NoteLost(const LeaseGrant& lease, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes the gate if it is open, and logs that it is closed.
  void CloseGate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Logs that the gate is closed.
  void NoteClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsAwake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || prodded_; }
  bool IsDecided() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return report_.lease.has_value() || report_.gave_up;
  }

  const RegistrationOptions options_;
  DirectoryRegistrar* const registrar_;
  LeaseGate* const gate_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool prodded_ ABSL_GUARDED_BY(mu_) = false;
  Report report_ ABSL_GUARDED_BY(mu_);
  Duration backoff_ ABSL_GUARDED_BY(mu_);
  Instant lease_until_ ABSL_GUARDED_BY(mu_);  // end of report_.lease
  Epoch last_epoch_ ABSL_GUARDED_BY(mu_);
  // When the gate expires; kInstantMax if it is closed or there is none.
  Instant gate_until_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // closed after it was open, and logged
  // Until when a first registration waits for the name. Set when the name is first refused, and
  // cleared by a registration.
  std::optional<Instant> name_taken_until_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace ckv
