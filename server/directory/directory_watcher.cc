#include "server/directory/directory_watcher.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<DirectoryWatcher>> DirectoryWatcher::Open(DirectoryTables* tables,
                                                                         std::string_view tenant,
                                                                         bool all_tenants) {
  // Made before the lock is taken: its destructor takes the lock.
  std::unique_ptr<DirectoryWatcher> watcher(new DirectoryWatcher(tables, tenant, all_tenants));
  DirectoryWatcher& made = *watcher;
  absl::MutexLock lock(&made.tables_.mu);
  if (!made.tables_.lead.leader().empty()) CKV_RETURN_IF_ERROR(made.tables_.lead.Check());
  Watches& watches = made.tables_.watches;
  if (watches.count() >= made.tables_.options.watcher_count_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d watchers, limit reached", watches.count()));
  }
  watches.Add(&made.position_);
  return watcher;
}

DirectoryWatcher::~DirectoryWatcher() {
  absl::MutexLock lock(&tables_.mu);
  tables_.watches.Remove(&position_);
}

absl::StatusOr<std::optional<DirectoryEvent>> DirectoryWatcher::Next(Instant deadline) {
  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  tables_.options.clock->Await(tables_.mu, absl::Condition(&position_, &WatchPosition::IsReady),
                               deadline);
  if (position_.IsBehind()) {
    if (tables_.lead.is_shared()) CKV_RETURN_IF_ERROR(tables_.lead.Check());
    return absl::ResourceExhaustedError(absl::StrFormat(
        "fell %d events behind: start the watch again", WatchPosition::kBacklogMax));
  }
  return position_.Next(tables_.leases, tables_.corpora.all());
}

}  // namespace ckv
