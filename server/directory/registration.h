// Keeps a process registered in the directory, and its lease gate as open as the directory says.

#pragma once

#include <cstdint>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "server/directory/directory_state.h"
#include "server/lease_gate.h"

namespace ckv {

// The directory, as a member sees it. Called by one thread at a time; every call returns by
// `deadline`.
class DirectoryRegistrar {
 public:
  virtual ~DirectoryRegistrar() = default;

  // Errors as DirectoryService in proto/ckv/v1/directory.proto, and:
  //   Unavailable, DeadlineExceeded    the directory does not answer.
  virtual absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                              Instant deadline) = 0;
  //   NotFound            the lease has expired or was replaced: register again.
  virtual absl::StatusOr<Duration> KeepAlive(uint64_t lease_id, Instant deadline) = 0;
  virtual absl::Status Deregister(uint64_t lease_id, Instant deadline) = 0;
};

// The directory of the same process. `state` must outlive it.
class LocalRegistrar final : public DirectoryRegistrar {
 public:
  explicit LocalRegistrar(DirectoryState* state) : state_(state) {}

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline) override;
  absl::StatusOr<Duration> KeepAlive(uint64_t lease_id, Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState* const state_;
};

struct RegistrationOptions {
  Member member;    // epoch is ignored
  Duration ttl{0};  // asked for; 0 takes the directory's
  Clock* clock = Clock::Real();
  // The longest wait for one answer; of a renewal at most a third of the lease.
  Duration call_timeout = std::chrono::seconds(1);
  // Between tries while the directory is away: doubles from min to max.
  Duration backoff_min = std::chrono::milliseconds(50);
  Duration backoff_max = std::chrono::seconds(2);
};

// Thread-safe. Owns a thread that registers, renews every third of the lease, and registers anew
// (with a new epoch) when the directory no longer knows the lease.
//
// The gate is granted half a lease from the moment a request was sent: cut off, the holder stops
// answering before the directory may give its place away. A renewal that fails is tried again while
// the gate runs out by itself; a lease the directory denies closes the gate at once.
class Registration {
 public:
  // `gate` may be null: a requester has a lease but answers nobody. `registrar` and `gate` must
  // outlive the registration. Does not wait for the directory.
  Registration(const RegistrationOptions& options, DirectoryRegistrar* registrar, LeaseGate* gate);
  // Closes the gate, ends the lease, joins: waits call_timeout twice at most.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Waits until a lease is held and returns its epoch.
  //   DeadlineExceeded    with the last error of the directory.
  absl::StatusOr<Epoch> AwaitLease(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  struct Report {
    std::optional<LeaseGrant> lease;  // as far as this side knows
    absl::Status last_error;          // of the last call; OK after a success
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
  Instant NoteFailure(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease() ABSL_LOCKS_EXCLUDED(mu_);
  void OpenGate(const LeaseGrant& lease, Instant sent);
  bool HasLease() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return report_.lease.has_value(); }

  const RegistrationOptions options_;
  DirectoryRegistrar* const registrar_;
  LeaseGate* const gate_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Report report_ ABSL_GUARDED_BY(mu_);
  Duration backoff_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ckv
