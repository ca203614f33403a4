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
//
// If several directories share a state, one leads (tables/leadership.h). The others follow:
// their tables are a mirror of what the leader made durable. A change that was checked in one term
// is refused if that term is over when it is submitted.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
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

  // Makes this directory one of several, which follows. Call before other threads use the state.
  void StartFollowing() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Applies a change that the leading directory made durable, or makes durable now. The same change
  // again, and one of an earlier version, changes nothing. Epoch 0 in a kMemberGone means any
  // epoch. Call
  // it while this one follows.
  void Mirror(const DirectoryChange& change) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Removes the corpora, members and drains that are not among these. Call it after all others were
  // mirrored.
  void MirrorOnly(const absl::btree_set<CorpusKey>& corpora,
                  const absl::btree_set<HolderId>& members,
                  const absl::btree_set<HolderId>& draining) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Begins to lead: the tables have all that was made durable. Members keep their epochs, and have
  // a whole lease from now on, in which they must register again. `is_sure` as for
  // Leadership::Lead. `folder_id` is not 0.
  void Lead(std::shared_ptr<ChangeJournal> journal, uint64_t folder_id,
            std::function<bool()> is_sure) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Follows again. Changes that wait are still to be settled by the journal. Once it has, ask
  // ForgetUnsavedMembers.
  void Follow() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns whether the tables have changes of members that are not surely durable, and forgets
  // them. Then read the state of the fleet again as soon as it can be read, and call MirrorOnly.
  // Until then reads here also see members that no other directory has.
  bool ForgetUnsavedMembers() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Another directory leads, or none does if `address` is empty.
  void SetLeader(const std::string& address) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Who leads, if this directory is one of several.
  struct Leader {
    bool is_this = false;
    std::string address;  // empty if none is known
  };
  std::optional<Leader> leader() const ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Submits the changes of members that wait. Those that were refused wait for a while. A member
  // that is not saved registers in another epoch at the next leader. Call it often.
  void SubmitMembers() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Submits them, and waits until all members are saved, or this directory follows.
  void SaveMembers(Instant deadline) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Begins an incarnation in memory only. Holders keep their parts for it as for a directory with a
  // folder. Call before other threads use the state.
  void StartInMemory() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Whether changes are durable.
  bool IsDurable() const { return is_durable_; }

  // Submits a pending change to the journal, after gaps that are not in it yet. Settles it at once
  // if there is no journal, or if the journal refuses.
  void Submit(const std::shared_ptr<const DirectoryChange>& change) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Submits a pending change, and waits until it is settled.
  //   ResourceExhausted, Unavailable  the journal refuses it: nothing was changed.
  //   DeadlineExceeded                it is not durable yet, and may become so.
  absl::Status Commit(const std::shared_ptr<const DirectoryChange>& change,
                      const PendingChange* pending, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Waits until all these submitted changes are settled. Returns the first error.
  //   DeadlineExceeded                some are not durable yet, and may become so.
  absl::Status AwaitAll(std::span<const std::shared_ptr<PendingChange>> all, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Reserves the next block of epochs if few are left.
  absl::Status ReserveEpochs(Instant deadline) ABSL_LOCKS_EXCLUDED(tables_.mu);

  void Settle(const DirectoryChange& change, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  DirectoryImage Image() override ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  void Start(uint64_t folder_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Submits a change that was begun in this term.
  void SubmitIn(uint64_t term, const std::shared_ptr<const DirectoryChange>& change)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  void MirrorMember(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Checks that a replayed publication or drop follows the version that is here.
  absl::Status CheckReplayed(const DirectoryChange& change, uint64_t version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables& tables_;
  bool is_durable_ = false;  // set before other threads use the state
  // Null if changes are in memory only, or while another directory leads.
  std::shared_ptr<ChangeJournal> journal_ ABSL_GUARDED_BY(tables_.mu);
};

}  // namespace ckv
