// A directory that is one of several, whose state is in etcd.

#pragma once

#include <memory>
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
//   lead ends    the state follows; the journal ends; the mirror goes on after it
class EtcdDirectory final : public LeaderSink {
 public:
  // The shortest lease that a directory on etcd grants. Half of it outlasts a renewal's pause, the
  // leader's lease in etcd, and what the next leader needs: 1 + 2.5 + 0.5 s. So no holder stops
  // because a leader is lost.
  static constexpr Duration kLeaseTtlMin = std::chrono::seconds(9);
  // How long the start waits for etcd.
  static constexpr Duration kOpenMax = std::chrono::seconds(60);

  // Reads the state from etcd, and mirrors it into `state`, which follows. Logs what it read.
  // `state` and `clock` must outlive this object.
  //   Unavailable, DeadlineExceeded    etcd does not answer by `deadline`.
  //   DataLoss                         what is there is no state of a directory; names the key.
  static absl::StatusOr<std::unique_ptr<EtcdDirectory>> Open(const EtcdStore& store, Clock* clock,
                                                             DirectoryState* state,
                                                             Instant deadline);
  // Begins to stand for election. `address` is where clients and other directories find this one.
  void Start(const std::string& address);
  // Waits until the tables have every change that was acknowledged before the call, if this one
  // follows. While etcd does not answer, that is unknown: a call waits for kCatchUpMax in vain, and
  // those of the next kStaleMax return at once.
  void CatchUp(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // An election in etcd takes 1 to 2 s.
  static constexpr Duration kCatchUpMax = std::chrono::milliseconds(2500);
  static constexpr Duration kStaleMax = std::chrono::seconds(5);
  // Gives the lead up, if it has it, so that another leads at once. Ends the
  // candidacy.
  void End();
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
  EtcdClient watching_, writing_, electing_, asking_;
  EtcdMirror mirror_;
  mutable absl::Mutex mu_;
  std::shared_ptr<EtcdJournal> journal_ ABSL_GUARDED_BY(mu_);  // while it leads
  uint64_t lead_count_ ABSL_GUARDED_BY(mu_) = 0;
  Instant stale_until_ ABSL_GUARDED_BY(mu_);  // until then CatchUp waits no more
  std::unique_ptr<LeaderElection> election_;  // last: its thread uses the others
};

}  // namespace ckv
