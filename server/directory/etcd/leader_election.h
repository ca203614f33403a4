// Which of the directories of a fleet leads.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/directory/etcd/etcd_client.h"

namespace ckv {

class LeaderElection;

// Receives who leads. Called on the election's thread, one call at a time.
class LeaderSink {
 public:
  virtual ~LeaderSink() = default;
  // This process leads now. `fence` is the create revision of the leader's key: each write to etcd
  // must have the condition that it still is. Returns OK once the process is ready to serve. After
  // an error it gives the lead up, so that another may have it. `election` knows for how long it
  // leads, and lasts until Follow.
  virtual absl::Status Lead(int64_t fence, const LeaderElection& election) = 0;
  // It leads no more. Called before another Lead, if there was one.
  virtual void Follow() = 0;
  // Another process leads, at this address. If it is empty, none leads now.
  virtual void SeeLeader(const std::string& address) = 0;
};

// Owns a thread that campaigns for as long as this object exists.
//
//   state       what it does                                        next
//   campaigns   makes the leader's key under a lease of its own,    leads, if there was no key
//               if there is none. Else watches the key              campaigns, once the key is gone
//   leads       renews the lease each third of its life,            campaigns, if the key may be
//               checks the key                                      gone
//
// A process leads only while its lease surely lasts: from before it asked for a renewal until a
// tenth before the lease's end. So no two processes lead at a time, however long one of them was
// stopped, if clocks differ by less than a tenth. In addition, each write of a leader has the
// fence.
class LeaderElection {
 public:
  // etcd's shortest lease with its default election timeout. Then another leads within 3 s: the
  // lease ends in 2 s, and etcd looks each half second.
  static constexpr Duration kLeaseTtl = std::chrono::seconds(2);

  struct Options {
    std::string key;      // the leader's
    std::string address;  // this process's, for those that look for the leader
    Duration ttl = kLeaseTtl;
  };

  // `client`, `clock` and `sink` must outlive this object.
  LeaderElection(Options options, EtcdClient* client, Clock* clock, LeaderSink* sink);
  // Ends the lease, if this process leads, so that another leads at once. Calls Follow first.
  ~LeaderElection();
  LeaderElection(const LeaderElection&) = delete;
  LeaderElection& operator=(const LeaderElection&) = delete;

  // Whether this process leads now. Ask after the work whose validity depends on it, or give the
  // work no effect beyond LeadsUntil.
  bool Leads() const { return clock_.Now() < LeadsUntil(); }
  Instant LeadsUntil() const { return Instant{leads_until_ns_.load(std::memory_order_acquire)}; }

 private:
  void Run();
  // One campaign: returns the fence, or 0 if another leads.
  absl::StatusOr<int64_t> Campaign();
  void Serve(int64_t fence);
  // Renews the lease, and returns how long it lasts.
  //   NotFound            the lease has ended, or the key is not this leader's any more.
  absl::StatusOr<Duration> Renew(int64_t fence);
  void AwaitChange(int64_t revision);
  void EndLease();
  // Waits for `pause`. Returns false if the election ends.
  bool Rest(Duration pause) ABSL_LOCKS_EXCLUDED(mu_);
  bool is_ending() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return ending_;
  }

  const Options options_;
  EtcdClient& client_;
  Clock& clock_;
  LeaderSink& sink_;
  std::atomic<int64_t> leads_until_ns_{0};
  int64_t lease_ = 0;     // this process's; used by the thread
  int64_t revision_ = 0;  // the last look at the key was as of this revision
  mutable absl::Mutex mu_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace ckv
