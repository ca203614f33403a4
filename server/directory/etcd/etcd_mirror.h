// Keeps a following directory's tables as the state is in etcd.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/directory/directory_changes.h"
#include "server/directory/etcd/etcd_client.h"
#include "server/directory/etcd/etcd_state.h"

namespace ckv {

// Thread-safe, except that Open comes first. Owns a thread that watches all keys of the fleet.
//
//   state      from                                      next state
//   mirrors    Open, and Resume                          paused, by Pause
//   paused     the tables have a wanted revision         mirrors, by Resume
//
// The state is read again as a whole if the watch falls behind what etcd has compacted away, or
// sees what no directory does. It also is if Resume says so. No lock is held while it is read.
class EtcdMirror {
 public:
  // How long Pause waits for the watch. Then it reads the whole state: 1,000,000 chunks take a
  // second.
  static constexpr Duration kWatchWaitMax = std::chrono::milliseconds(300);
  // The time limit of reading the whole state, and of a look whether etcd answers before that.
  static constexpr Duration kReadMax = std::chrono::seconds(30);
  static constexpr Duration kLookMax = std::chrono::seconds(1);

  // Everything borrowed must outlive the mirror. `client` is used by the mirror alone.
  EtcdMirror(EtcdClient* client, EtcdLayout layout, Clock* clock, DirectoryChanges* changes);
  ~EtcdMirror();
  EtcdMirror(const EtcdMirror&) = delete;
  EtcdMirror& operator=(const EtcdMirror&) = delete;

  // Reads the state, and begins to mirror. Errors of ReadEtcdState.
  absl::Status Open(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once the tables have everything up to `revision`, and mirrors no more. The
  // result is for the writer of a leader.
  //   Unavailable, DeadlineExceeded    etcd does not answer: it mirrors as before.
  absl::StatusOr<EtcdIndex> Pause(int64_t revision, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the tables have everything up to `revision`, and it mirrors. Returns whether they
  // do.
  bool Await(int64_t revision, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Mirrors what follows `index`, which the tables have. If `why` is not OK, they have more than
  // etcd, and the whole state is read again as soon as etcd answers.
  void Resume(EtcdIndex index, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    int64_t revision = 0;     // the tables have everything up to it
    absl::Status last_error;  // why the watch ended; OK while it is up
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Watch(uint64_t round, int64_t revision) ABSL_LOCKS_EXCLUDED(mu_);
  bool Take(uint64_t round, std::span<const EtcdEvent> events, int64_t seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the whole state into the tables, as the only one that reads. Releases the lock meanwhile.
  absl::Status ReadAll(Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<EtcdIndex> ReadState(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads it again if it must be, and if etcd answers.
  absl::Status ReadAgain() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> ReadParts(uint64_t version, uint32_t count, int64_t revision);
  bool IsAwake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ending_ || (!paused_ && !reading_);
  }

  EtcdClient& client_;
  const EtcdLayout layout_;
  Clock& clock_;
  DirectoryChanges& changes_;

  mutable absl::Mutex mu_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // the whole state, by one thread
  // The number of the current watch. Events of earlier watches are ignored.
  uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  EtcdIndex index_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);  // not OK: the state must be read again
  Stats stats_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace ckv
