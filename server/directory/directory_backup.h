// A directory's durable state as records, to keep it elsewhere or to move it to another directory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_tables.h"

namespace ckv {

// Thread-safe.
class DirectoryBackup {
 public:
  // The size of a piece of records, unless one corpus is longer.
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // Both must outlive this object.
  DirectoryBackup(DirectoryTables* tables, DirectoryChanges* changes)
      : tables_(*tables), changes_(*changes) {}

  // Calls `take` with records (log/change.h): a kSnapshotBegin, tombstones, keys, drained
  // holders and corpora as of one moment, and a kSnapshotEnd. Ends early if `take` returns false.
  // Members and what holders report are not among them.
  void Export(absl::FunctionRef<bool(std::string_view records)> take)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

  struct Counts {
    uint64_t corpus_count = 0;
    uint64_t key_count = 0;
    uint64_t tombstone_count = 0;
    uint64_t same_count = 0;  // corpora and keys that were here already
  };
  // Makes exported changes durable here, and adds them to `counts`. A corpus keeps its version. Its
  // holders' later reports replace it, as they do a corpus that was rebuilt from reports. To import
  // the same again changes nothing.
  //   AlreadyExists       another version of a corpus is here, or another key of a tenant.
  //   InvalidArgument     a corpus is not valid.
  //   Errors of DirectoryState::Publish. Those before the first that failed may be here.
  absl::Status Import(std::span<const DirectoryChange> changes, Instant deadline, Counts& counts)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  // Begins one change. `change` stays null if nothing is to be done.
  absl::Status Begin(const DirectoryChange& imported, Instant deadline,
                     const std::shared_ptr<PendingChange>& pending,
                     std::shared_ptr<const DirectoryChange>& change, Counts& counts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  absl::Status BeginCorpus(const DirectoryChange& imported,
                           const std::shared_ptr<PendingChange>& pending,
                           std::shared_ptr<const DirectoryChange>& change, Counts& counts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables& tables_;
  DirectoryChanges& changes_;
};

}  // namespace ckv
