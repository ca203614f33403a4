// The calls of holders about their chunks: they fetch what is placed on them, and report it. A
// directory that lost its disk, or was restored from an old copy, is rebuilt from these reports.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/corpus_part.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_tables.h"

namespace ckv {

// Thread-safe. Errors are those of DirectoryService in proto/ckv/v1/directory.proto.
class HolderReports {
 public:
  // Both must outlive this object.
  HolderReports(DirectoryTables* tables, DirectoryChanges* changes)
      : tables_(*tables), changes_(*changes) {}

  // Returns the first `count_max` corpora after `after` that place chunks on the holder, in the
  // order of tenants and names.
  std::vector<std::shared_ptr<const Corpus>> ListPlacedCorpora(const HolderId& holder,
                                                               std::optional<CorpusKey> after,
                                                               size_t count_max)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the first `count_max` chunks of the corpus from `first_ordinal` on that are placed on
  // the holder. `next_ordinal` receives the begin of the next page, or 0 if there is none.
  //   NotFound            there is no such corpus.
  absl::StatusOr<CorpusPart> PartOf(const HolderId& holder, std::string_view tenant,
                                    std::string_view name, uint32_t first_ordinal, size_t count_max,
                                    uint32_t* next_ordinal = nullptr)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Accepts a part of a corpus from a holder. Returns true if the part is superseded: the directory
  // has that version or a later one, or knows that the corpus was dropped. Before the directory
  // begins an incarnation, ignores parts and returns false.
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Records that the holder has reported all its parts.
  absl::Status FinishReport(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(tables_.mu);

  // The tombstones that a holder has not seen. `seen` is what the holder has seen once it has them
  // and the corpora listed afterwards.
  struct News {
    SeenDirectory seen;
    std::vector<DroppedCorpus> dropped;  // the latest, at most kDroppedCountMax
  };
  News NewsSince(const SeenDirectory& seen) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Records how many changes of a directory the holder has seen. Returns true if it saw another
  // directory, or changes that this folder lost. The holder must then report its tombstones.
  absl::StatusOr<bool> NoteSeen(uint64_t lease_id, const SeenDirectory& seen)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Accepts tombstones if NoteSeen returns true for `seen`, and returns when they are durable. They
  // drop corpora here that came from an old copy of the folder, or from reports.
  //   InvalidArgument     a name is malformed, a version is 0, or there are too many tombstones.
  //   Errors of DirectoryState::Drop, and those of ReportPart.
  absl::Status ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                             std::span<const DroppedCorpus> dropped, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Accepts a page of the placed chunks that a holder lacks; the last page replaces its previous
  // report.
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids, bool first, bool last)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Publishes the rebuilt corpora that are complete. Call periodically.
  void PublishRebuilt() ABSL_LOCKS_EXCLUDED(tables_.mu);
  struct Rebuilt {
    uint64_t rebuilt_count = 0;   // corpora rebuilt since the start
    uint32_t unproven_count = 0;  // reported corpora that are not served
    std::vector<UnprovenCorpus> unproven;
    // Names a holder and a change that it has seen and this folder lost; empty if there is none.
    std::string old_copy;
    uint64_t redropped_count = 0;  // corpora here that holders reported as dropped
  };
  // `unproven` receives the first `count_max` of them.
  Rebuilt rebuilt(size_t count_max) ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  bool IsSuperseded(const CorpusPart& part) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Whether a reported tombstone drops the corpus of this name that is here.
  bool Takes(const DroppedCorpus& dropped, const Corpus& here) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Begins the change for a reported tombstone. Returns null if it is known and drops nothing.
  std::shared_ptr<const DirectoryChange> BeginDrop(const DroppedCorpus& dropped,
                                                   const std::shared_ptr<PendingChange>& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Checks whether a rebuilt corpus may be published.
  absl::Status CheckRebuilt(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Takes the next rebuilt corpus, and begins its change in `change`, which stays null if the
  // corpus is refused. Takes one corpus only: it copies a corpus, and calls wait for the lock
  // meanwhile. Returns false if there is none.
  bool BeginRebuilt(std::shared_ptr<const DirectoryChange>& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables& tables_;
  DirectoryChanges& changes_;
};

}  // namespace ckv
