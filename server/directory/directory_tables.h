// The tables of a directory's state, their one lock, and the steps that touch several of them.
//
// Shared by the classes that serve calls: DirectoryState, DirectoryChanges, HolderReports,
// DirectoryHealth and DirectoryWatcher. Each takes the lock for a call. The tables take no lock.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/directory/coverage/coverage.h"
#include "server/directory/coverage/lacking_chunks.h"
#include "server/directory/directory_options.h"
#include "server/directory/log/change.h"
#include "server/directory/prompt/tenant_keys.h"
#include "server/directory/tables/change_numbers.h"
#include "server/directory/tables/corpus_rebuild.h"
#include "server/directory/tables/dropped_corpora.h"
#include "server/directory/tables/epoch_blocks.h"
#include "server/directory/tables/leadership.h"
#include "server/directory/tables/lease_table.h"
#include "server/directory/tables/pending_changes.h"
#include "server/directory/tables/placed_corpora.h"
#include "server/directory/tables/returning_holders.h"
#include "server/directory/tables/unsaved_members.h"
#include "server/directory/tables/watches.h"

namespace ckv {

// Returns a random number that is not 0: no one can renew or end another's lease by counting. No
// two incarnations of a directory are the same.
uint64_t RandomDirectoryId();

// Returns the key of the change: no two changes of one key are pending at the same time.
CorpusKey KeyOf(const DirectoryChange& change);

struct DirectoryTables {
  explicit DirectoryTables(const DirectoryOptions& with);

  // Tombstones kept for later reports: 3 MB with the longest names.
  static constexpr size_t kDropsCountMax = 10'000;

  // Ends the leases that have expired. Most calls do this first.
  void Expire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends the lease, and withdraws what its member announced. `is_replaced`: the same member gets
  // another lease at once, in the same epoch, so watchers see nothing.
  void EndLease(uint64_t lease_id, bool is_replaced = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Adds a lease. `is_replacing`: the member had one until now, which was ended as replaced.
  void AddLease(Lease lease, bool is_replacing = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Returns the live holders, and those of them that lack a chunk of the corpus. Empty if none
  // lacks one.
  CoverageView::Holders LackingHolders(const Corpus& corpus) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Returns when a caller with this deadline stops waiting for a change.
  Instant LatestOf(Instant deadline) const;
  // Waits until no change of this key is pending: changes to one corpus are sequential.
  absl::Status AwaitTurn(const CorpusKey& key, Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Adds a pending change of this term. Call only if no change of this corpus is pending.
  void AddPending(const CorpusKey& key, const std::shared_ptr<PendingChange>& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Checks that the corpus may be published, and that there is room for it beside the pending
  // changes. Errors as PublishCorpus in proto/ckv/v1/directory.proto.
  absl::Status CheckPublish(const Corpus& corpus, bool replace, uint64_t expected_version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Applies a change to the corpora or the keys. `orphans` may be null.
  void Apply(const DirectoryChange& change, std::vector<ChunkPlacement>* orphans)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const DirectoryOptions options;
  absl::Mutex mu;
  uint64_t incarnation ABSL_GUARDED_BY(mu);  // random; another one each time that it leads
  Leadership lead ABSL_GUARDED_BY(mu);
  LeaseTable leases ABSL_GUARDED_BY(mu);
  EpochBlocks epochs ABSL_GUARDED_BY(mu);
  ReturningHolders returning ABSL_GUARDED_BY(mu);
  PlacedCorpora corpora ABSL_GUARDED_BY(mu);
  TenantKeys keys ABSL_GUARDED_BY(mu);
  LackingChunks lacks ABSL_GUARDED_BY(mu);
  absl::btree_set<HolderId> draining ABSL_GUARDED_BY(mu);  // drained holders, live or not
  ChangeNumbers numbers ABSL_GUARDED_BY(mu);
  PendingChanges pending ABSL_GUARDED_BY(mu);
  // Holders' reports of corpora that are not here, and the tombstones.
  CorpusRebuild reports ABSL_GUARDED_BY(mu);
  DroppedCorpora dropped ABSL_GUARDED_BY(mu){kDropsCountMax};
  // How the rebuild proceeds.
  struct Rebuild {
    Instant from;                  // no rebuilt corpus is published earlier
    uint64_t rebuilt_count = 0;    // corpora rebuilt since the start
    uint64_t redropped_count = 0;  // corpora here that holders reported as dropped
    // Names a holder and a change that it has seen and this folder lost; empty if there is none.
    std::string old_copy;
  };
  Rebuild rebuild ABSL_GUARDED_BY(mu);
  Watches watches ABSL_GUARDED_BY(mu);
  // Empty unless the directory is one of several.
  UnsavedMembers unsaved_members ABSL_GUARDED_BY(mu);

 private:
  void NoteMemberChange(DirectoryChange change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ApplyDrain(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ApplyDrop(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // If a holder of the corpus is offline, makes all holders fetch and keep the tombstone.
  void ReportDrop(const Corpus* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

}  // namespace ckv
