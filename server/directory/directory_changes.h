// How a change of a directory's state becomes durable and is applied.
//
//   who                          what it does
//   the caller, with the lock    AwaitTurn, checks, assigns the number, adds to the pending changes
//   the caller, without it       Commit: submits to the journal, after gaps that are not in it yet
//   the journal's thread         writes, then Settle: applies the change, or refuses it
//   the caller                   wakes, and takes the status and the orphans
//
// Without a journal, the caller itself settles the change at once. No caller sees a change before
// it is durable, and reads never wait for the disk.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "server/directory/directory_tables.h"
#include "server/directory/log/change_log.h"

namespace ckv {

// Thread-safe, except where noted.
class DirectoryChanges final : public ChangeSink {
 public:
  // `tables` must outlive this object.
  explicit DirectoryChanges(DirectoryTables* tables) : tables_(*tables) {}

  // Applies a change replayed from a log. Call before SetJournal.
  //   DataLoss            the change is inconsistent with the previous ones.
  absl::Status Replay(const DirectoryChange& change) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Makes all later changes durable. Call before other threads use the state. `journal` must
  // outlive all calls that change the state. `folder_id` is its folder's id, not 0.
  void SetJournal(ChangeJournal* journal, uint64_t folder_id) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Begins an incarnation in memory only. Holders keep their parts for it as for a directory with a
  // folder. Call before other threads use the state.
  void StartInMemory() ABSL_LOCKS_EXCLUDED(tables_.mu);
  bool HasJournal() const { return journal_ != nullptr; }

  // Submits the change to the journal, after gaps that are not in it yet. Settles it at once if
  // there is no journal, or if the journal refuses.
  void Submit(const std::shared_ptr<const DirectoryChange>& change) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Submits a pending change, and waits until it is settled.
  //   ResourceExhausted, Unavailable  the journal refuses it: nothing was changed.
  //   DeadlineExceeded                it is not durable yet, and may become so.
  absl::Status Commit(const std::shared_ptr<const DirectoryChange>& change,
                      const PendingChange* pending, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Reserves the next block of epochs if few are left.
  absl::Status ReserveEpochs(Instant deadline) ABSL_LOCKS_EXCLUDED(tables_.mu);

  void Settle(const DirectoryChange& change, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  DirectoryImage Image() override ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  void Start(uint64_t folder_id) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Checks that a replayed publication or drop follows the version that is here.
  absl::Status CheckReplayed(const DirectoryChange& change, uint64_t version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables& tables_;
  ChangeJournal* journal_ = nullptr;  // if null, changes are in memory only
};

}  // namespace ckv
