// The directory's state: members under leases, corpora, and their watchers. No I/O.
//
// Corpora change only through a DirectoryChange. A caller's change is checked, made durable by the
// journal if there is one, and applied. A change replayed from a log is applied in the same way.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "server/directory/corpus_changes.h"
#include "server/directory/directory_backup.h"
#include "server/directory/directory_changes.h"
#include "server/directory/directory_health.h"
#include "server/directory/directory_options.h"
#include "server/directory/directory_tables.h"
#include "server/directory/directory_watcher.h"
#include "server/directory/holder_reports.h"
#include "server/directory/replication.h"

namespace ckv {

struct LeaseGrant {
  uint64_t lease_id = 0;
  Epoch epoch;
  Duration ttl{0};
  // The incarnation of the directory that granted the lease; 0 if unreported. Other incarnations do
  // not recognise the lease.
  uint64_t directory_incarnation = 0;
  // The id of the directory's folder, or random if it has none; 0 if it accepts no parts.
  uint64_t folder_id = 0;
};

struct LeaseRenewal {
  Duration ttl{0};
  // Increases with each change to a corpus that places chunks on the member, or did before the
  // change. Also increases if the member must fetch new tombstones.
  uint64_t placed_change_count = 0;
  // The member's copy orders (server/directory/replication.h).
  uint32_t copy_order_count = 0;
};

// A chunk as returned to callers. `chunk` includes its leased members; `corpus` does not.
struct LocatedChunk {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  ChunkPlacement chunk;
};

// Thread-safe. One mutex guards the state (directory_tables.h); another serialises the walks of
// DirectoryHealth. Most calls, and Expire, end the leases that have expired.
//
// With a journal, a change returns OK once it is durable. No caller sees it before that, and reads
// never wait for the disk.
class DirectoryState {
 public:
  explicit DirectoryState(const DirectoryOptions& options)
      : tables_(options),
        changes_(&tables_),
        corpora_(&tables_, &changes_),
        reports_(&tables_, &changes_),
        health_(&tables_),
        replication_(&tables_, &changes_) {}

  // The start of an incarnation, and the journal's side of changes.
  DirectoryChanges& changes() { return changes_; }
  // The calls that change corpora. Publish and Drop below are also its.
  CorpusChanges& corpora() { return corpora_; }
  // The calls of holders about their chunks, and the rebuild from their reports.
  HolderReports& reports() { return reports_; }
  // Its durable state as records.
  DirectoryBackup& backup() { return backup_; }
  // The orders to holders to copy chunks.
  Replication& replication() { return replication_; }
  // The facts of the fleet's health.
  DirectoryHealth& health() { return health_; }

  // The functions below are the calls of DirectoryService in proto/ckv/v1/directory.proto, with its
  // errors. With a journal, Publish and Drop also return:
  //   ResourceExhausted   the disk is full, or too many changes wait for it. Nothing was changed.
  //   Unavailable         the disk fails. The change was not made, or is visible after a restart.
  //   DeadlineExceeded    the change is not durable by the deadline, or after change_timeout. It
  //                       may still become durable: check whether it was made.
  // If the directory is one of several and does not lead, calls that change something return
  // Unavailable. Reads then return the mirrored state.
  //
  // For Register, `member.epoch` is the member's previous epoch, or 0; the new epoch is above it. A
  // holder that `reports_parts` is listed by MissingHolders until HolderReports::FinishReport.
  // `continues` means that this very process had `member.epoch`. It keeps that epoch if the
  // directory still has the member under it. A directory that begins to lead has it.
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline = kInstantMax, bool reports_parts = false,
                                      bool continues = false) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // `health` is the member's own report; null leaves its previous report in place.
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health = nullptr)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  absl::Status Deregister(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(tables_.mu);
  std::vector<Member> Members() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the ended leases of members that have not registered again, the latest first. None is
  // older than LeaseTable::kEndedAgeMax.
  std::vector<EndedLease> Ended() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Ends expired leases and notifies the watchers.
  void Expire() ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Returns the control addresses of those members that have leases, in the order of `members`.
  std::vector<std::string> AddressesOf(std::span<const HolderId> members)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  //   Unavailable         the directory is one of several and does not lead; names the leader.
  absl::Status CheckLeads() ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Returns, by name, the holders in replayed corpora that have not registered since, and members
  // that have not reported all their parts. Their chunks are not known yet.
  std::vector<HolderId> MissingHolders() ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns whether the list of members is reliable.
  //   Unavailable         the process started less than one default lease ago, and a holder that
  //                       replayed corpora name has not registered yet.
  absl::Status CheckReturned() ABSL_LOCKS_EXCLUDED(tables_.mu);

  // The chunks that a replaced or dropped corpus leaves on holders where no corpus of any tenant
  // places them any more. Each entry lists only those holders. If no corpus has the chunk at all,
  // the entry also lists its leased members. Chunks of reported, unproven corpora are omitted.
  using Orphans = CorpusChanges::Orphans;
  // Returns the new version. Unless null, `orphans` receives the orphans of the replaced version.
  absl::StatusOr<uint64_t> Publish(Corpus corpus, bool replace, uint64_t expected_version,
                                   Orphans* orphans = nullptr, Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(tables_.mu) {
    return corpora_.Publish(std::move(corpus), replace, expected_version, orphans, deadline);
  }
  // Returns the corpus with its current leased members: a copy of the corpus if there are any. With
  // `for_calls`, omits holders that lack a chunk if another live member has it.
  absl::StatusOr<std::shared_ptr<const Corpus>> Get(std::string_view name, std::string_view tenant,
                                                    bool for_calls = false)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the corpora that `tenant` may see, as published, without leased members.
  std::vector<std::shared_ptr<const Corpus>> List(std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Drops a corpus, and the earlier versions that were kept. Returns its last version.
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans = nullptr,
                                                     Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(tables_.mu) {
    return corpora_.Drop(name, tenant, orphans, deadline);
  }
  // Returns the chunk's places in corpora that `tenant` may see. `for_calls` as for Get.
  std::vector<LocatedChunk> Locate(const ChunkId& id, std::string_view tenant,
                                   bool for_calls = false) ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Returns the key of a tenant. The first call with `make` creates it and returns once it is
  // durable. Returns the zero key for the shared tenant, for a tenant without a key, and for all
  // tenants if there is no journal. Errors as GetTenantKey in proto/ckv/v1/directory.proto.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, bool make,
                                        Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Returns the chunks whose head hash is in `heads`, in corpora that `tenant` may read. Other
  // calls wait for at most kHeadSliceCount look-ups. If `model` is unset, searches all models.
  PromptChunks FindPrompt(std::span<const uint64_t> heads, const std::optional<ChunkId>& model,
                          std::string_view tenant) ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Hashes looked up in one hold of the lock: 0.1 ms.
  static constexpr size_t kHeadSliceCount = 4096;

  // Returns, for each of `ids` in order, how many corpora of all tenants place it on `holder`, as
  // published or leased. If `holder` is empty, counts corpora that place it anywhere. Reported,
  // unproven corpora always count. The result reveals other tenants' chunks: for the operator only.
  std::vector<uint32_t> CountReferences(std::span<const ChunkId> ids, std::string_view holder)
      ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Returns for each of `ids`, in order, whether it was accepted. Only corpora of `tenant`, which
  // may read the chunks there, list the member; if `tenant` is empty, every tenant's corpora do. An
  // accepted id reveals that a corpus has the chunk. A holder is trusted with that fact, as it is
  // with the rows.
  absl::StatusOr<std::vector<bool>> AnnounceReplicas(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids)
      ABSL_LOCKS_EXCLUDED(tables_.mu);
  // Withdraws the announcements for `tenant`, or for all tenants if unset.
  absl::Status WithdrawReplicas(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids) ABSL_LOCKS_EXCLUDED(tables_.mu);
  static constexpr size_t kReplicaIdCountMax = kIdsPerCallMax;

  // Counts over all tenants, for people and metrics.
  struct Counts {
    uint64_t corpus_count = 0;
    // Chunks of corpora; a chunk in several corpora counts once for each.
    uint64_t placement_count = 0;
    uint64_t watcher_count = 0;
    uint64_t replica_count = 0;   // announced by members
    uint64_t draining_count = 0;  // drained holders, live or not
  };
  Counts counts() ABSL_LOCKS_EXCLUDED(tables_.mu);

  // Watches the state. Arguments and errors as for DirectoryWatcher::Open. The state must outlive
  // the watcher.
  absl::StatusOr<std::unique_ptr<DirectoryWatcher>> Watch(std::string_view tenant,
                                                          bool all_tenants = false)
      ABSL_LOCKS_EXCLUDED(tables_.mu) {
    return DirectoryWatcher::Open(&tables_, tenant, all_tenants);
  }
  // Watchers wait no longer for events, now and later. Call it when the server drains.
  void EndWatches() ABSL_LOCKS_EXCLUDED(tables_.mu) {
    absl::MutexLock lock(&tables_.mu);
    tables_.watches.End();
  }

 private:
  // Ends the lease that the member of this name has. Its address must be the same. `is_replaced` as
  // for DirectoryTables::EndLease.
  //   ResourceExhausted   there are kMemberCountMax members, and it is none of them.
  //   AlreadyExists       another address has the name; has the time that is left (lease_end.h).
  absl::Status MakeRoomFor(const Member& member, bool is_replaced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables_.mu);

  DirectoryTables tables_;
  DirectoryChanges changes_;
  CorpusChanges corpora_;
  HolderReports reports_;
  DirectoryBackup backup_{&tables_, &changes_};
  DirectoryHealth health_;
  Replication replication_;
};

}  // namespace ckv
