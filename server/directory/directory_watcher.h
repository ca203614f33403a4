// A stream of events of a directory's state: the whole state, kSynced, then changes.

#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/directory/directory_tables.h"
#include "server/directory/tables/watches.h"

namespace ckv {

// The state is read as the watcher advances, so a watcher needs little memory. Changes to what it
// has already read follow after kSynced. Used by one thread at a time.
class DirectoryWatcher {
 public:
  // Watches the members, and the corpora that `tenant` may see, or all corpora with `all_tenants`.
  // `tables` must outlive the watcher.
  //   ResourceExhausted   there are watcher_count_max watchers.
  static absl::StatusOr<std::unique_ptr<DirectoryWatcher>> Open(DirectoryTables* tables,
                                                                std::string_view tenant,
                                                                bool all_tenants);
  ~DirectoryWatcher();
  DirectoryWatcher(const DirectoryWatcher&) = delete;
  DirectoryWatcher& operator=(const DirectoryWatcher&) = delete;

  // Returns the next event, or nothing at `deadline` or after DirectoryState::EndWatches.
  //   ResourceExhausted   the watcher fell WatchPosition::kBacklogMax events behind; watch again.
  absl::StatusOr<std::optional<DirectoryEvent>> Next(Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  DirectoryWatcher(DirectoryTables* tables, std::string_view tenant, bool all_tenants)
      : tables_(*tables), position_(tenant, all_tenants) {}

  DirectoryTables& tables_;
  WatchPosition position_ ABSL_GUARDED_BY(tables_.mu);
};

}  // namespace ckv
