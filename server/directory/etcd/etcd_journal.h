// Makes the changes of a leading directory durable in etcd.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/directory/etcd/etcd_state.h"
#include "server/directory/log/change_log.h"

namespace ckv {

// Thread-safe. Owns a thread that takes the changes that wait, as many as one transaction holds,
// applies them and settles them. While etcd does not answer, it tries the same transaction again.
// A change is settled with an error only if etcd refused it, or if this process leads no more. Then
// the state of this process is not the fleet's, and is read from etcd again before it is used.
class EtcdJournal final : public ChangeJournal {
 public:
  // The most changes that wait; each is a caller's.
  static constexpr size_t kQueuedCountMax = 4096;
  // The time limit of one try of a transaction.
  static constexpr Duration kTryMax = std::chrono::seconds(2);

  // `leads` returns whether this process leads now. `clock` and `sink` must outlive the journal.
  EtcdJournal(std::unique_ptr<EtcdWriter> writer, std::function<bool()> leads, Clock* clock,
              ChangeSink* sink);
  // Ends it, unless that was done.
  ~EtcdJournal() override;

  // Settles what waits: it is refused, unless its transaction is under way. Returns what is surely
  // in etcd. Later changes are refused. One thread calls it, once.
  EtcdIndex End() ABSL_LOCKS_EXCLUDED(mu_);

  //   ResourceExhausted   too many changes wait.
  //   Unavailable         this process leads no more, or the journal is ending.
  absl::Status Submit(std::shared_ptr<const DirectoryChange> change) override
      ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t change_count = 0;       // durable since the start
    uint64_t transaction_count = 0;  // that made them durable
    uint64_t refused_count = 0;
    uint64_t retry_count = 0;  // tries without an answer
    absl::Status last_error;   // result of the last transaction
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Changes = std::vector<std::shared_ptr<const DirectoryChange>>;

  void Run();
  // Moves changes from the queue to the writer. Returns none only when the journal ends.
  Changes TakeBatch() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Write();
  void NoteEnd(size_t count, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ending_ || !queue_.empty(); }

  const std::unique_ptr<EtcdWriter> writer_;  // used by the thread
  const std::function<bool()> leads_;
  Clock& clock_;
  ChangeSink& sink_;
  mutable absl::Mutex mu_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);  // not OK once another process leads
  std::deque<std::shared_ptr<const DirectoryChange>> queue_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace ckv
