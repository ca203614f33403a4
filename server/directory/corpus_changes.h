// The calls that change corpora: publications, drops, kept versions, and the end of their ttl.
//
// A publication that replaces a version which is to be kept is three changes, each durable by
// itself. First the corpus NAME@VERSION is published, then the new version. Then the oldest kept
// versions are dropped, if there are more than the policy's count. If the directory ends between
// two of them, there is a kept version too many until the next publication, and never one too few.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_tables.h"

namespace ckv {

// Thread-safe, except DropExpired.
class CorpusChanges {
 public:
  // The chunks that a replaced or dropped corpus leaves on holders (DirectoryState::Orphans).
  using Orphans = std::vector<ChunkPlacement>;
  // A look visits every corpus, under the lock.
  static constexpr Duration kExpiryLookPeriod = std::chrono::seconds(1);
  static constexpr Duration kExpiryRetryPause = std::chrono::seconds(30);
  // The most corpora that one DropExpired drops, so that others' changes have their turn.
  static constexpr size_t kExpiredPerCallMax = 64;
  // How often a publication begins again because another one was faster.
  static constexpr uint32_t kAttemptCountMax = 8;

  // Both must outlive this object.
  CorpusChanges(DirectoryTables* tables, DirectoryChanges* changes)
      : tables_(*tables), changes_(*changes) {}

  // As DirectoryState.
  absl::StatusOr<uint64_t> Publish(Corpus corpus, bool replace, uint64_t expected_version,
                                   Orphans* orphans, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Drops corpora whose ttl has ended for DirectoryOptions::expiry_grace. Call it often, from one
  // thread. Does not wait until the drops are durable: one that fails is tried again after
  // kExpiryRetryPause.
  void DropExpired() ABSL_LOCKS_EXCLUDED(tables_.mu);

 private:
  // Publishes one version, and drops or keeps nothing.
  absl::StatusOr<uint64_t> PublishOne(Corpus corpus, bool replace, uint64_t expected_version,
                                      Orphans* orphans, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  struct BegunDrop {
    std::shared_ptr<const DirectoryChange> change;
    std::shared_ptr<const Corpus> corpus;  // as it was
  };
  // Checks a drop and adds it as pending: submit it next. Call only if no change of the corpus is
  // pending. `version` as for DropOne.
  absl::StatusOr<BegunDrop> BeginDrop(const CorpusKey& key, uint64_t version,
                                      const std::shared_ptr<PendingChange>& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);
  // Drops one corpus. If `version` is not 0, only that version of it.
  absl::StatusOr<std::shared_ptr<const Corpus>> DropOne(const CorpusKey& key, uint64_t version,
                                                        Orphans* orphans, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Keeps the version `kept`, and publishes `next` in its place. Begins again if another
  // publication was faster.
  absl::StatusOr<uint64_t> PublishOver(std::shared_ptr<const Corpus> kept, const Corpus& next,
                                       bool replace, uint64_t expected_version, Orphans* orphans,
                                       Instant deadline) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the version that the publication will replace and that must be kept first, or null.
  absl::StatusOr<std::shared_ptr<const Corpus>> VersionToKeep(const Corpus& next, bool replace,
                                                              uint64_t expected_version)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  absl::Status Keep(const Corpus& current, Instant deadline);
  // Drops the oldest kept versions of the corpus, until there are `count`.
  void DropOldVersions(const CorpusKey& key, uint32_t count, Orphans* orphans, Instant deadline)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the corpora whose ttl has ended by the wall clock, with their versions.
  std::vector<std::pair<CorpusKey, uint64_t>> Expired() ABSL_LOCKS_EXCLUDED(tables_.mu);

  DirectoryTables& tables_;
  DirectoryChanges& changes_;
  Instant next_look_{INT64_MIN};  // used by DropExpired
  // When these versions, whose ttl has ended, are to be dropped. Used by DropExpired.
  std::map<std::pair<CorpusKey, uint64_t>, Instant> drop_at_;
};

}  // namespace ckv
