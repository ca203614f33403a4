// One thread of a verbs fabric for what would hold up a polling thread: tearing lanes down, which
// waits for their peers, and registering pieces of the store, which pins thousands of pages.

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
#include "proto/clock.h"
#include "transport/verbs_fabric.h"

namespace ckv {

// What the thread does for its owner, one call at a time.
class VerbsJob {
 public:
  // The teardown.
  virtual ~VerbsJob() = default;
  // What was asked for. Runs beside the owner, so what both touch is ordered by them.
  virtual void Run() noexcept = 0;
  // Called right before the teardown where there is no time to wait for anybody.
  virtual void Hurry() noexcept {}
};

// Whose jobs they are: a listener's, or those of the lanes a fabric dials.
struct VerbsSourceId {
  uint64_t value = 0;
};

// Thread-safe. Jobs are done in the order in which they came.
class VerbsSideThread {
 public:
  // Jobs that wait at once. As many lanes as one account may have: they may all go together. A
  // teardown takes 150 ms at most, where its peer is silent, so the last begins within 40 s; until
  // then it is in use, and counts.
  static constexpr size_t kJobCountMax = 256;

  VerbsSideThread();
  ~VerbsSideThread();  // Stop
  VerbsSideThread(const VerbsSideThread&) = delete;
  VerbsSideThread& operator=(const VerbsSideThread&) = delete;

  VerbsSourceId Open() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when every job of the source is done, in a hurry. Its later ones are not taken: see
  // Ask, Retire.
  void Close(VerbsSourceId source) ABSL_LOCKS_EXCLUDED(mu_);

  // Has `job` run, once however often it was asked since it last began to. It stays the caller's,
  // who destroys it by Retire only. False: too many wait, or the source is closed; nothing happens.
  bool Ask(VerbsSourceId source, VerbsJob* job) ABSL_LOCKS_EXCLUDED(mu_);

  // Destroys `job`, after what was asked of it. Where too many wait, or the source is closed, the
  // calling thread does it before this returns, in a hurry.
  void Retire(VerbsSourceId source, std::unique_ptr<VerbsJob> job) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes every source, returns when every job is done, and ends the thread. Call once at a time.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Source {
    size_t job_count = 0;  // waiting or in progress
    bool closed = false;
  };
  struct Entry {
    uint64_t source = 0;
    VerbsJob* job = nullptr;
    std::unique_ptr<VerbsJob> retired;  // the same, if it is to be destroyed
    bool hurry = false;
  };
  // Beyond kJobCountMax, only jobs that wait or run already are taken, to be destroyed.
  static constexpr size_t kEntryCountMax = 2 * kJobCountMax + 1;

  void RunJobs() ABSL_LOCKS_EXCLUDED(mu_);
  bool Take(Entry& entry) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteDone(uint64_t source) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ > 0 || stopping_; }
  bool Waits(const VerbsJob* job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Source* Find(uint64_t source) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Push(Source& source, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  // A ring: asking for a piece of the store allocates nothing.
  std::array<Entry, kEntryCountMax> entries_ ABSL_GUARDED_BY(mu_);
  size_t begin_ ABSL_GUARDED_BY(mu_) = 0;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
  const VerbsJob* running_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  uint64_t last_source_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// What a lane has of it.
struct VerbsSide {
  std::shared_ptr<VerbsSideThread> thread;
  VerbsSourceId source;

  bool Ask(VerbsJob* job) const { return thread->Ask(source, job); }
  void Retire(std::unique_ptr<VerbsJob> job) const { thread->Retire(source, std::move(job)); }
};

// NewVerbsFabric with its side thread given, which tests hold up; null makes one. The fabric's end
// stops it.
absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock,
                                                            std::shared_ptr<VerbsSideThread> side);

}  // namespace ckv
