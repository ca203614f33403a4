// A thread of a verbs fabric for work that would block a polling thread. It tears lanes down, which
// waits for their peers. It registers segments of the store, which pins thousands of pages.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {

// A job that the thread runs for the job's owner, one call at a time.
class VerbsJob {
 public:
  // Tears down.
  virtual ~VerbsJob() = default;
  // Does the work that Ask requested. Runs concurrently with the owner, so the two must order their
  // access to shared data.
  virtual void Run() noexcept = 0;
  // Called right before the teardown if there is no time to wait for a peer.
  virtual void Hurry() noexcept {}
};

// The origin of jobs: a listener, or the lanes that a fabric dials.
struct VerbsSourceId {
  uint64_t value = 0;
};

// Thread-safe. Jobs are done in the order in which they were queued.
class VerbsSideThread {
 public:
  // The maximum number of waiting jobs: the number of lanes that one account may have, because they
  // may all end together. A teardown takes at most 150 ms, if its peer is silent. So the last one
  // begins within 40 s; until then its resources count as in use.
  static constexpr size_t kJobCountMax = 256;

  VerbsSideThread();
  ~VerbsSideThread();  // calls Stop
  VerbsSideThread(const VerbsSideThread&) = delete;
  VerbsSideThread& operator=(const VerbsSideThread&) = delete;

  // Opens a source of jobs.
  VerbsSourceId Open() ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the source, once: Ask and Retire queue no later jobs of it. Hurries its jobs, and
  // returns when all are done.
  void Close(VerbsSourceId source) ABSL_LOCKS_EXCLUDED(mu_);

  // Queues a run of `job`. A second call before the run begins has no effect. The caller keeps the
  // job and destroys it by Retire only. Returns false, and does nothing, if kJobCountMax jobs wait
  // or the source is closed.
  bool Ask(VerbsSourceId source, VerbsJob* job) ABSL_LOCKS_EXCLUDED(mu_);

  // Destroys `job` on the thread, after the runs that Ask queued. If no run is left, and
  // kJobCountMax jobs wait or the source is closed, the calling thread hurries and destroys the job
  // itself.
  void Retire(VerbsSourceId source, std::unique_ptr<VerbsJob> job) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes every source, returns when every job is done, and ends the thread. Do not call it
  // concurrently.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Source {
    size_t job_count = 0;  // waiting or in progress
    bool closed = false;
  };
  struct Entry {
    uint64_t source = 0;
    VerbsJob* job = nullptr;
    std::unique_ptr<VerbsJob> retired;  // the same job, if it is to be destroyed
    bool hurry = false;
  };
  // Beyond kJobCountMax, Retire still queues jobs that already wait or run, to destroy them.
  static constexpr size_t kEntryCountMax = 2 * kJobCountMax + 1;

  void RunJobs() ABSL_LOCKS_EXCLUDED(mu_);
  bool Take(Entry& entry) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteDone(uint64_t source) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ > 0 || stopping_; }
  bool Waits(const VerbsJob* job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Source* Find(uint64_t source) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Push(Source& source, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  // A ring, so that Ask allocates nothing.
  std::array<Entry, kEntryCountMax> entries_ ABSL_GUARDED_BY(mu_);
  size_t begin_ ABSL_GUARDED_BY(mu_) = 0;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
  const VerbsJob* running_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  uint64_t last_source_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// A lane's access to the side thread.
struct VerbsSide {
  std::shared_ptr<VerbsSideThread> thread;
  VerbsSourceId source;

  bool Ask(VerbsJob* job) const { return thread->Ask(source, job); }
  void Retire(std::unique_ptr<VerbsJob> job) const { thread->Retire(source, std::move(job)); }
};

// NewVerbsFabric with a given side thread, which tests can block. If `side` is null, the fabric
// creates one. The fabric's destructor stops the thread.
absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock,
                                                            std::shared_ptr<VerbsSideThread> side);

}  // namespace ckv
