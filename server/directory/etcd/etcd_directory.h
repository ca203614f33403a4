// A directory that is one of several, whose state is in etcd.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "server/directory/directory_state.h"
#include "server/directory/etcd/etcd_journal.h"
#include "server/directory/etcd/etcd_mirror.h"
#include "server/directory/etcd/etcd_store.h"
#include "server/directory/etcd/leader_election.h"

namespace ckv {

// Makes a DirectoryState lead or follow, as etcd elects. Thread-safe, except that Open, Start and
// End come in this order.
//
//   elected      the mirror catches up and pauses; the journal begins; the state leads
//   lead ends    the state follows; the journal ends; the mirror goes on after it, or reads the
//                state again if members are not saved
class EtcdDirectory final : public LeaderSink {
 public:
  // The shortest lease that a directory on etcd grants. Half of it outlasts a renewal's pause, the
  // leader's lease in etcd, and what the next leader needs: 1 + 2.5 + 0.5 s. So no holder stops
  // because a leader is lost.
  static constexpr Duration kLeaseTtlMin = std::chrono::seconds(9);
  // How long the start waits for etcd: less than systemd waits for the start (TimeoutStartSec).
  static constexpr Duration kOpenMax = std::chrono::seconds(45);

  // Reads the state from etcd, and mirrors it into `state`, which follows. Logs what it read.
  // `state` and `clock` must outlive this object.
  //   Unavailable, DeadlineExceeded    etcd does not answer by `deadline`.
  //   DataLoss                         what is there is no state of a directory; names the key.
  static absl::StatusOr<std::unique_ptr<EtcdDirectory>> Open(const EtcdStore& store, Clock* clock,
                                                             DirectoryState* state,
                                                             Instant deadline);
  // Begins to stand for election. `address` is where clients and other directories find this one.
  void Start(const std::string& address);
  // Returns OK once the tables have every change that was acknowledged before the call. On the one
  // that leads, that is at once. If etcd has not answered for kSilenceMax, also returns OK: nothing
  // is acknowledged meanwhile, but a last change may be missing.
  //   Unavailable         etcd does not answer, which may be an election in it: try again.
  absl::Status CatchUp(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // An election in etcd takes 1 to 2 s.
  static constexpr Duration kSilenceMax = std::chrono::milliseconds(2500);
  // How long one call waits for etcd, and then how long other calls do not ask it.
  static constexpr Duration kAskMax = std::chrono::milliseconds(400);
  static constexpr Duration kAskPause = std::chrono::seconds(1);
  // Gives the lead up, if it has it, so that another leads at once. Ends the candidacy. Before, it
  // waits up to kSaveMax until all members are saved.
  void End();
  static constexpr Duration kSaveMax = std::chrono::milliseconds(500);
  ~EtcdDirectory() override;

  struct Report {
    bool leads = false;
    std::string leader;          // its address; empty if none leads
    int64_t revision = 0;        // this directory has everything up to this revision of etcd
    absl::Status mirror;         // last error of the watch
    EtcdJournal::Stats journal;  // while it leads
    uint64_t lead_count = 0;     // how often it began to lead
  };
  Report report() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns why the last change was refused, or why the state is not followed; "" if neither is so.
  std::string Refusal() const;

 private:
  EtcdDirectory(const EtcdStore& store, Clock* clock, DirectoryState* state);

  absl::Status Lead(int64_t fence, const LeaderElection& election) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Follow() override ABSL_LOCKS_EXCLUDED(mu_);
  void SeeLeader(const std::string& address) override;

  Clock& clock_;
  DirectoryState& state_;
  const EtcdLayout layout_;
  EtcdClient watching_, electing_;  // each for one watch, which its user ends
  EtcdClient calling_;
  EtcdMirror mirror_;
  mutable absl::Mutex mu_;
  std::shared_ptr<EtcdJournal> journal_ ABSL_GUARDED_BY(mu_);  // while it leads
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t lead_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Since when etcd does not answer CatchUp, and when it was last asked in vain.
  std::optional<Instant> silent_since_ ABSL_GUARDED_BY(mu_);
  Instant silent_at_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LeaderElection> election_;  // last: its thread uses the others
};

}  // namespace ckv
