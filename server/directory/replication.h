// Keeps the wanted copies of all corpora: orders copies from holders, and lists those that were
// made.
//
//   a copy     from                                         until
//   planned    Tick: a chunk has too few copies             it is made, or no longer needed
//   made       ReportCopies: whole and durable there        its corpus is published with it, or the
//                                                           holder's lease ends
//   listed     a version of the corpus is published
//
// A holder without a lease is lost after DirectoryOptions::loss_after, and its copies are made
// elsewhere. Earlier it is only away: a restart is not a loss.
//
// If nothing is missing, holders past their elbow get leased copies of their hot chunks elsewhere
// (hot_copies.h).
//
// Only the versions of corpora are durable. After a restart the directory plans the same copies
// again, and holders report those that they have at once. So does another of several directories
// that begins to lead.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_tables.h"
#include "server/directory/hot_copies.h"
#include "server/directory/replication/copy_plan.h"

namespace ckv {

// An order to copy a chunk of a corpus.
struct CopyOrder {
  CorpusKey corpus;
  Geometry geometry;
  ChunkPlacement chunk;         // its holders are unset
  std::vector<Member> sources;  // live members that have it
  // The copy is for a while: corpora list it as leased, and no version has it.
  bool is_leased = false;
};

// How a copy ended.
struct CopyReport {
  CorpusKey corpus;
  ChunkId id;
  std::string error;  // why it failed; empty if the copy is there
};

// Thread-safe. Calls wait while Tick plans: 20 ns for each chunk of the directory.
class Replication {
 public:
  static constexpr size_t kOrdersPerCallMax = 256;
  // The shortest time between two plans.
  static constexpr Duration kPlanPeriod = std::chrono::seconds(1);
  // How long made copies wait for the other copies of their corpus. A version of a corpus of a
  // million chunks takes 40 MB of the log.
  static constexpr Duration kPublishPeriod = std::chrono::seconds(5);
  // How long a copy that failed is not planned on the same holder again.
  static constexpr Duration kFailurePause = std::chrono::seconds(30);
  // Failures that are kept. Beyond them the oldest is forgotten.
  static constexpr size_t kFailureCountMax = 4096;

  // A holder that comes later than this after the first plan, and on which no corpus places chunks,
  // is new: it takes its share. Earlier ones may have been there before a restart.
  static constexpr Duration kNewAfter = std::chrono::minutes(1);

  // Both must outlive this object.
  Replication(DirectoryTables* tables, DirectoryChanges* changes)
      : tables_(*tables), changes_(*changes) {}

  // Plans again if anything changed, and publishes made copies. Call it often.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);

  // Errors of both are those of DirectoryService in proto/ckv/v1/directory.proto.
  absl::StatusOr<std::vector<CopyOrder>> ListOrders(uint64_t lease_id, size_t count_max)
      ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);
  absl::Status ReportCopies(uint64_t lease_id, std::span<const CopyReport> reports)
      ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);

  // Begins or ends the drain of a holder, and returns once that is durable. Errors as DrainHolder
  // in proto/ckv/v1/directory.proto.
  absl::Status SetDraining(const HolderId& holder, bool drain, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);
  struct DrainState {
    bool is_draining = false;
    // No corpus has had a chunk on it for kDrainSettle.
    bool may_go = false;
    uint64_t chunk_count = 0;  // chunks that corpora place on it
    uint64_t bytes_left = 0;   // bytes of copies that are still to be made
    Duration left{0};          // as in ReplicationFacts, for the copies of all holders
    StuckCopies stuck;
  };
  // Returns the state of a drain as of the last plan. Errors as DrainHolder.
  absl::StatusOr<DrainState> DrainOf(const HolderId& holder) ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);
  // How long a drained holder has no chunks before it may go. Requesters learn of a new version
  // within milliseconds; their calls in progress end while the holder stops.
  static constexpr Duration kDrainSettle = std::chrono::seconds(3);

  // Returns the facts of the last plan.
  ReplicationFacts Facts() ABSL_LOCKS_EXCLUDED(mu_, tables_.mu);

 private:
  struct Made {
    HolderId holder;
    uint64_t lease_id = 0;
  };
  using MadeByChunk = absl::flat_hash_map<ChunkId, std::vector<Made>>;
  struct Failure {
    Instant until;
    CorpusKey corpus;
    ChunkId id;
    HolderId holder;
  };

  // Forgets everything: it is of an earlier term of the lead.
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the holders that are new to `filling_`.
  void NoteNewHolders(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  //   NotFound            the directory does not know the holder.
  absl::Status CheckKnown(const HolderId& holder) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Updates how long drained holders have had no chunks.
  void NoteEmptied(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  // Updates how long holders have been offline. Returns true if one of them became lost.
  bool NoteAbsences(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  bool IsPlanDue(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets copies that are listed, or whose holder's lease has ended.
  void ForgetMade() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  bool IsForgotten(const Made& made, const ChunkId& id, const HoldersByChunk& listed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  CopyPlanView View(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  void AddHolders(CopyPlanView& view, Instant now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  void SortOrders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountOrders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_, tables_.mu);
  // Adds leased copies of hot chunks to the plan.
  void PlanHot(const CopyPlanView& view, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  void NoteFacts(const CopyPlanView& view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishDue(const CopyPlanView& view, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Begins the change that publishes the corpus with its made copies. Returns null if the corpus
  // changed since the view.
  std::shared_ptr<const DirectoryChange> Begin(const Corpus& from, Corpus next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) ABSL_LOCKS_EXCLUDED(tables_.mu);
  void Take(const HolderId& holder, uint64_t lease_id, const CopyReport& report, Instant now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) ABSL_LOCKS_EXCLUDED(tables_.mu);

  DirectoryTables& tables_;
  DirectoryChanges& changes_;
  absl::Mutex mu_ ABSL_ACQUIRED_BEFORE(tables_.mu);
  std::map<HolderId, Instant> absent_since_ ABSL_GUARDED_BY(mu_);
  std::optional<Instant> started_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<HolderId> known_ ABSL_GUARDED_BY(mu_);    // holders that reported health once
  absl::flat_hash_set<HolderId> filling_ ABSL_GUARDED_BY(mu_);  // new ones that take their share
  // Drained holders without chunks, and since when.
  std::map<HolderId, Instant> emptied_since_ ABSL_GUARDED_BY(mu_);
  CopyPlan plan_ ABSL_GUARDED_BY(mu_);
  Instant planned_at_ ABSL_GUARDED_BY(mu_){INT64_MIN / 2};
  uint64_t planned_count_ ABSL_GUARDED_BY(mu_) = UINT64_MAX;  // the change count at the last plan
  bool is_due_ ABSL_GUARDED_BY(mu_) = true;  // something else changed since the last plan
  // Indices into plan_.copies that are not reported yet, the most urgent first.
  std::map<HolderId, std::deque<uint32_t>> orders_ ABSL_GUARDED_BY(mu_);
  std::map<CorpusKey, MadeByChunk> made_ ABSL_GUARDED_BY(mu_);
  std::deque<Failure> failures_ ABSL_GUARDED_BY(mu_);
  HotCopies hot_ ABSL_GUARDED_BY(mu_);
  // When the corpora that wait to be published could first be changed.
  std::map<CorpusKey, Instant> changeable_since_ ABSL_GUARDED_BY(mu_);
  ReplicationFacts facts_ ABSL_GUARDED_BY(mu_);
  uint64_t term_ ABSL_GUARDED_BY(mu_) = Leadership::kAloneTerm;
};

}  // namespace ckv
