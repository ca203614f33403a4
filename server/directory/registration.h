// Keeps a process registered in the directory, and its lease gate open for as long as it may be.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "server/directory/directory_state.h"
#include "server/session/lease_gate.h"

namespace ckv {

// The directory, as a member uses it. It is called by one thread at a time. Every call returns by
// `deadline`.
class DirectoryRegistrar {
 public:
  virtual ~DirectoryRegistrar() = default;

  // Registers the member. Errors as DirectoryService in proto/ckv/v1/directory.proto, and:
  //   Unavailable, DeadlineExceeded    the directory does not answer.
  virtual absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                              Instant deadline) = 0;
  // Renews the lease. `health` is what the member tells of itself; null tells nothing.
  //   NotFound            the lease expired or was replaced: register again.
  virtual absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                                 Instant deadline) = 0;
  virtual absl::Status Deregister(uint64_t lease_id, Instant deadline) = 0;
};

// The directory of the same process. `state` must outlive it. `reports_parts`: the member is a
// holder that has a PlacementKeeper.
class LocalRegistrar final : public DirectoryRegistrar {
 public:
  explicit LocalRegistrar(DirectoryState* state, bool reports_parts = false)
      : state_(state), reports_parts_(reports_parts) {}

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline) override;
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState* const state_;
  const bool reports_parts_;
};

struct RegistrationOptions {
  Member member;  // epoch: what it had in an earlier life, or 0
  // The lease to request; 0 takes the directory's. A first registration waits this long for a name
  // that another address holds, and at least until the lease of that address would end.
  Duration ttl{0};
  Clock* clock = Clock::Real();
  // The longest wait for one answer; a renewal waits at most a third of the lease.
  Duration call_timeout = std::chrono::seconds(1);
  // The wait between tries while the directory is away; it doubles from min to max.
  Duration backoff_min = std::chrono::milliseconds(50);
  Duration backoff_max = std::chrono::seconds(2);
  // Called on the registration's thread when the lease was granted or renewed, with what the
  // directory counts (LeaseRenewal); after a grant with 0. It must not wait. It may be empty.
  std::function<void(const LeaseGrant& lease, uint64_t placed_change_count)> on_lease;
  // Returns what the member tells of itself with each renewal. Called on the registration's thread;
  // it must not wait. If empty, it tells nothing.
  std::function<MemberHealth()> health;
};

// Thread-safe. It owns a thread that registers and renews every third of the lease. If the
// directory no longer knows the lease, it registers anew, with a new epoch.
//
// The gate is opened for half a lease from the moment a request was sent. So a holder that is cut
// off stops answering before the directory may give its place away. A failed renewal is tried again
// while the gate expires by itself. A lease that the directory denies closes the gate at once.
// If another life of the directory says so, the gate waits for the next registration: that life
// knows no leases of the one before. It closes then if the name was given to somebody else.
//
// A name that another address holds may be that of an earlier process, whose lease will expire. So
// the first registration is tried again for one lease, and then never again. A process that was
// registered before keeps trying.
class Registration {
 public:
  // `gate` may be null: a requester has a lease but answers nobody. `registrar` and `gate` must
  // outlive the registration. The constructor does not wait for the directory.
  Registration(const RegistrationOptions& options, DirectoryRegistrar* registrar, LeaseGate* gate);
  // Closes the gate, ends the lease and joins the thread. It waits at most call_timeout twice.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Waits until a lease is held and returns its epoch.
  //   DeadlineExceeded    with the directory's last error.
  //   AlreadyExists       another member has the name: the registration has given up.
  absl::StatusOr<Epoch> AwaitLease(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the next call at once: call it when the directory can be reached again.
  void Prod() ABSL_LOCKS_EXCLUDED(mu_);

  struct Report {
    std::optional<LeaseGrant> lease;  // as far as this side knows; unset once it has run out
    absl::Status last_error;          // result of the last call; OK after a success
    bool gave_up = false;             // never registered: last_error says who has the name
    uint64_t registration_count = 0;
    uint64_t renewal_count = 0;
    uint64_t failure_count = 0;
  };
  Report report() const ABSL_LOCKS_EXCLUDED(mu_);
  MemberRole role() const { return options_.member.role; }

 private:
  void Run();
  // Each makes one call and returns when the next is due.
  Instant Register() ABSL_LOCKS_EXCLUDED(mu_);
  Instant Renew(const LeaseGrant& lease) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes what the directory answered to a registration that was sent at `sent`.
  Instant TakeGrant(const absl::StatusOr<LeaseGrant>& grant, Instant sent) ABSL_LOCKS_EXCLUDED(mu_);
  Instant NoteFailure(const absl::Status& status, std::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes the failure of an attempt sent at `sent`, refused because another member has the name.
  Instant NoteNameTaken(const absl::Status& status, Instant sent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease() ABSL_LOCKS_EXCLUDED(mu_);
  void OpenGate(const LeaseGrant& lease, Instant sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the directory does not know the lease.
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
  // When the gate closes by itself; kInstantMax if it is closed or there is none.
  Instant gate_until_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // closed after it was open, and logged
  // When the name was first refused, since the last registration.
  std::optional<Instant> name_taken_until_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ckv
