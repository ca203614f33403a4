// The directory's state: members under leases, corpora, and their watchers. No I/O.
//
// Corpora change only through a DirectoryChange. A caller's change is checked, made durable by the
// journal if there is one, and applied. A change replayed from a log is applied in the same way.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/corpus_part.h"
#include "proto/health/facts.h"
#include "server/directory/corpus_rebuild.h"
#include "server/directory/coverage/coverage.h"
#include "server/directory/coverage/lack_table.h"
#include "server/directory/dropped_corpora.h"
#include "server/directory/ended_leases.h"
#include "server/directory/lease_end.h"
#include "server/directory/log/change_log.h"
#include "server/directory/prompt/head_index.h"
#include "server/directory/prompt/tenant_keys.h"
#include "server/directory/replica_table.h"
#include "server/directory/version_gaps.h"

namespace ckv {

struct DirectoryOptions {
  Clock* clock = Clock::Real();
  Duration lease_ttl = std::chrono::seconds(3);
  Duration lease_ttl_min = kLeaseTtlMin;
  Duration lease_ttl_max = kLeaseTtlMax;
  uint32_t corpus_count_max = 100'000;
  // Chunks of all corpora: 130 B each, 1 GB together; 190 B with token hashes.
  uint64_t placement_count_max = 1u << 23;
  // Replicas that members announce, over all chunks: about 200 B each, half of which are the two
  // ids in the tables.
  uint64_t replica_count_max = 1u << 20;
  // Chunks that holders report as lacking, over all holders.
  uint64_t lack_count_max = 1u << 20;
  uint32_t watcher_count_max = 4096;
  // Epochs and versions start above this value and above all replayed ones. A directory without a
  // journal needs a value that increases from one process to the next. The daemon passes the wall
  // clock's milliseconds.
  uint64_t first_epoch = 0;
  // The longest time that a caller waits for its change to become durable.
  Duration change_timeout = std::chrono::seconds(30);
  // Time from the start until corpora rebuilt from holders' reports are published: a late holder
  // may have a later version. Holders retry at least every two seconds.
  Duration rebuild_grace = std::chrono::seconds(9);
};

struct LeaseGrant {
  uint64_t lease_id = 0;
  Epoch epoch;
  Duration ttl{0};
  // The incarnation of the directory that granted the lease; 0 if unreported. Other incarnations do
  // not recognise the lease.
  uint64_t directory_life = 0;
  // The id of the directory's folder, or random if it has none; 0 if it accepts no parts.
  uint64_t folder_id = 0;
};

struct LeaseRenewal {
  Duration ttl{0};
  // Increases with each change to a corpus that places chunks on the member, or did before the
  // change. Also increases if the member must fetch new tombstones.
  uint64_t placed_change_count = 0;
};

struct DirectoryEvent {
  enum class Kind {
    kMemberUp,
    kMemberGone,
    kCorpusPublished,
    kCorpusDropped,
    kReplicasChanged,
    kSynced,
  };
  Kind kind = Kind::kSynced;
  Member member;                         // member events
  std::shared_ptr<const Corpus> corpus;  // corpus events
};

// A chunk as returned to callers. `chunk` includes its leased members; `corpus` does not.
struct LocatedChunk {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  ChunkPlacement chunk;
};

// Thread-safe. One mutex guards the state; another serialises the walks of Covered. Most calls, and
// Expire, end the leases that have expired.
//
// With a journal, a change returns OK once it is durable. No caller sees it before that, and reads
// never wait for the disk. Epochs are assigned from blocks whose end is durable, so no epoch is
// assigned twice. While the disk fails, epochs continue beyond the block. The next incarnation then
// starts at the wall clock, and above the previous epochs that its members report.
class DirectoryState final : public ChangeSink {
 public:
  explicit DirectoryState(const DirectoryOptions& options);
  ~DirectoryState() override;
  DirectoryState(const DirectoryState&) = delete;
  DirectoryState& operator=(const DirectoryState&) = delete;

  // Applies a change replayed from a log. Call before SetJournal.
  //   DataLoss            the change is inconsistent with the previous ones.
  absl::Status Replay(const DirectoryChange& change) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes all later changes durable. Call before other threads use the state. `journal` must
  // outlive all calls that change the state. `folder_id` is its folder's id, not 0.
  void SetJournal(ChangeJournal* journal, uint64_t folder_id);
  // Begins an incarnation in memory only. Holders keep their parts for it as for a directory with a
  // folder. Call before other threads use the state.
  void StartInMemory();

  // The functions below are the calls of DirectoryService in proto/ckv/v1/directory.proto, with its
  // errors. With a journal, Publish and Drop also return:
  //   ResourceExhausted   the disk is full, or too many changes wait for it. Nothing was changed.
  //   Unavailable         the disk fails. The change was not made, or is visible after a restart.
  //   DeadlineExceeded    the change is not durable by the deadline, or after change_timeout. It
  //                       may still become durable: check whether it was made.
  // For Register, `member.epoch` is the member's previous epoch, or 0; the new epoch is above it. A
  // holder that `reports_parts` is listed by MissingHolders until FinishReport.
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline = kInstantMax, bool reports_parts = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `health` is the member's own report; null leaves its previous report in place.
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Deregister(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Member> Members() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the ended leases of members that have not registered again, the latest first. None is
  // older than kEndedAgeMax.
  std::vector<EndedLease> Ended() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr Duration kEndedAgeMax = std::chrono::hours(24);

  // The chunks that a replaced or dropped corpus leaves on holders where no corpus of any tenant
  // places them any more. Each entry lists only those holders. If no corpus has the chunk at all,
  // the entry also lists its leased members. Chunks of reported, unproven corpora are omitted.
  using Orphans = std::vector<ChunkPlacement>;
  // Returns the new version. Unless null, `orphans` receives the orphans of the replaced version.
  absl::StatusOr<uint64_t> Publish(Corpus corpus, bool replace, uint64_t expected_version,
                                   Orphans* orphans = nullptr, Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the corpus with its current leased members: a copy of the corpus if there are any. With
  // `for_calls`, omits holders that lack a chunk if another live member has it.
  absl::StatusOr<std::shared_ptr<const Corpus>> Get(std::string_view name, std::string_view tenant,
                                                    bool for_calls = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the corpora that `tenant` may see, as published, without leased members.
  std::vector<std::shared_ptr<const Corpus>> List(std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops a corpus and returns its last version.
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans = nullptr,
                                                     Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunk's places in corpora that `tenant` may see. `for_calls` as for Get.
  std::vector<LocatedChunk> Locate(const ChunkId& id, std::string_view tenant,
                                   bool for_calls = false) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the key of a tenant. The first call with `make` creates it and returns once it is
  // durable. Returns the zero key for the shared tenant, for a tenant without a key, and for all
  // tenants if there is no journal. Errors as GetTenantKey in proto/ckv/v1/directory.proto.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, bool make,
                                        Instant deadline = kInstantMax) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunks whose head hash is in `heads`, in corpora that `tenant` may read. Other
  // calls wait for at most kHeadSliceCount look-ups. If `model` is unset, searches all models.
  PromptChunks FindPrompt(std::span<const uint64_t> heads, const std::optional<ChunkId>& model,
                          std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Hashes looked up in one hold of the lock: 0.1 ms.
  static constexpr size_t kHeadSliceCount = 4096;

  // Returns, for each of `ids` in order, how many corpora of all tenants place it on `holder`, as
  // published or leased. If `holder` is empty, counts corpora that place it anywhere. Reported,
  // unproven corpora always count. The result reveals other tenants' chunks: for the operator only.
  std::vector<uint32_t> CountReferences(std::span<const ChunkId> ids, std::string_view holder)
      ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReferenceIdCountMax = kIdsPerCallMax;

  // Returns for each of `ids`, in order, whether it was accepted. Only corpora of `tenant`, which
  // may read the chunks there, list the member; if `tenant` is empty, every tenant's corpora do. An
  // accepted id reveals that a corpus has the chunk. A holder is trusted with that fact, as it is
  // with the rows.
  absl::StatusOr<std::vector<bool>> AnnounceReplicas(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws the announcements for `tenant`, or for all tenants if unset.
  absl::Status WithdrawReplicas(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReplicaIdCountMax = kIdsPerCallMax;

  // Accepts a page of the placed chunks that a holder lacks; the last page replaces its previous
  // report. Errors as in directory.proto.
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids, bool first, bool last)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Records whether the member, if still of this epoch, responded to a probe of its address.
  void NoteProbe(const Member& member, const absl::Status& answer) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the facts of the fleet's health, except those of the directory's folder. After a
  // change, walks over the corpora with a holder that is offline or lacks chunks.
  FleetFacts Facts() ABSL_LOCKS_EXCLUDED(mu_, facts_mu_);
  // Returns the counts over all corpora, for metrics.
  std::shared_ptr<const Coverage> Covered() ABSL_LOCKS_EXCLUDED(mu_, facts_mu_);

  // Counts over all tenants, for people and metrics.
  struct Counts {
    uint64_t corpus_count = 0;
    // Chunks of corpora; a chunk in several corpora counts once for each.
    uint64_t placement_count = 0;
    uint64_t watcher_count = 0;
    uint64_t replica_count = 0;  // announced by members
  };
  Counts counts() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns, by name, the holders in replayed corpora that have not registered since, and members
  // that have not reported all their parts. Their chunks are not known yet.
  std::vector<HolderId> MissingHolders() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns whether the list of members is reliable.
  //   Unavailable         the process started less than one default lease ago, and a holder that
  //                       replayed corpora name has not registered yet.
  absl::Status CheckReturned() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the first `count_max` corpora after `after` that place chunks on the holder, in the
  // order of tenants and names.
  using CorpusKey = std::pair<std::string, std::string>;  // tenant, name
  std::vector<std::shared_ptr<const Corpus>> ListPlacedCorpora(const HolderId& holder,
                                                               std::optional<CorpusKey> after,
                                                               size_t count_max)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the first `count_max` chunks of the corpus from `first_ordinal` on that are placed on
  // the holder. `next_ordinal` receives the begin of the next page, or 0 if there is none.
  //   NotFound            there is no such corpus.
  absl::StatusOr<CorpusPart> PartOf(const HolderId& holder, std::string_view tenant,
                                    std::string_view name, uint32_t first_ordinal, size_t count_max,
                                    uint32_t* next_ordinal = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // Accepts a part of a corpus from a holder. Returns true if the part is superseded: the directory
  // has that version or a later one, or knows that the corpus was dropped. Before SetJournal or
  // StartInMemory, ignores parts and returns false. Errors as ReportPart in directory.proto.
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The tombstones that a holder has not seen. `seen` is what the holder has seen once it has them
  // and the corpora listed afterwards.
  struct News {
    SeenDirectory seen;
    std::vector<DroppedCorpus> dropped;  // the latest, at most kDroppedCountMax
  };
  News NewsSince(const SeenDirectory& seen) ABSL_LOCKS_EXCLUDED(mu_);
  // Records how many changes of a directory the holder has seen. Returns true if it saw another
  // directory, or changes that this folder lost. The holder must then report its tombstones.
  absl::StatusOr<bool> NoteSeen(uint64_t lease_id, const SeenDirectory& seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Accepts tombstones if NoteSeen returns true for `seen`, and returns when they are durable. They
  // drop corpora here that came from an old copy of the folder, or from reports.
  //   InvalidArgument     a name is malformed, a version is 0, or there are too many tombstones.
  //   Errors of Drop, and those of ReportPart.
  absl::Status ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                             std::span<const DroppedCorpus> dropped, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Records that the holder has reported all its parts.
  absl::Status FinishReport(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes the rebuilt corpora that are complete. Call periodically.
  void PublishRebuilt() ABSL_LOCKS_EXCLUDED(mu_);
  struct Rebuilt {
    uint64_t rebuilt_count = 0;   // corpora rebuilt since the start
    uint32_t unproven_count = 0;  // reported corpora that are not served
    std::vector<UnprovenCorpus> unproven;
    // Names a holder and a change that it has seen and this folder lost; empty if there is none.
    std::string old_copy;
    uint64_t redropped_count = 0;  // corpora here that holders reported as dropped
  };
  // `unproven` receives the first `count_max` of them.
  Rebuilt rebuilt(size_t count_max) ABSL_LOCKS_EXCLUDED(mu_);

  void Settle(const DirectoryChange& change, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mu_);
  DirectoryImage Image() override ABSL_LOCKS_EXCLUDED(mu_);

  // Ends expired leases and notifies the watchers.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

  // One watcher's position in a stream of events: the whole state, kSynced, then changes. The state
  // is read as the watcher advances, so a watcher needs little memory. Changes to what it has
  // already read follow after kSynced. Use it by one thread at a time. The state must outlive it.
  class Watcher;
  // Watches the members, and the corpora that `tenant` may see, or all corpora with `all_tenants`.
  //   ResourceExhausted   there are watcher_count_max watchers.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(std::string_view tenant, bool all_tenants = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the next event, or nothing at `deadline`.
  //   ResourceExhausted   the watcher fell kWatchBacklogMax events behind; watch again.
  absl::StatusOr<std::optional<DirectoryEvent>> Next(Watcher& watcher, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kWatchBacklogMax = 4096;
  // A reported epoch or version may exceed the last one here by at most this: 35 years of
  // milliseconds. So no member can exhaust the numbers.
  static constexpr uint64_t kNumberLeapMax = uint64_t{1} << 40;
  // Tombstones kept for later reports: 3 MB with the longest names.
  static constexpr size_t kDropsCountMax = 10'000;

 private:
  struct Lease {
    Member member;
    Duration ttl{0};
    Instant expires;
    uint64_t placed_change_count = 0;
    std::optional<MemberHealth> health = {};  // unset until reported
    Duration clock_ahead{0};
    std::string silence = {};  // why the last probe failed; empty if it succeeded
  };
  // Sorted by key, so that a run replays (I8).
  using CorporaByKey = std::map<CorpusKey, std::shared_ptr<const Corpus>>;
  // A change that is not settled yet.
  struct Pending {
    bool is_rebuilt = false;   // rebuilt from reports; no caller waits for it
    uint64_t added_count = 0;  // chunks that it adds, at most
    bool is_new = false;       // no version of the corpus exists yet
    uint64_t number = 0;       // the version or number of the change
    bool is_settled = false;
    absl::Status status;
    Orphans orphans;
  };
  using PendingByKey = std::map<CorpusKey, std::shared_ptr<Pending>>;

  // Raises the last epoch to that of the member's previous incarnation.
  void NoteEpoch(Epoch before) ABSL_LOCKS_EXCLUDED(mu_);
  // Reserves the next block of epochs if few are left.
  absl::Status ReserveEpochs(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // With `durable`, only an epoch of the durable block may be assigned.
  absl::StatusOr<LeaseGrant> RegisterLocked(const Member& member, Duration ttl, uint64_t lease_id,
                                            bool durable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartLife(uint64_t folder_id) ABSL_LOCKS_EXCLUDED(mu_);
  Instant LatestOf(Instant deadline) const;
  // Waits until no change of this corpus is pending: changes to one corpus are sequential.
  absl::Status AwaitTurn(const CorpusKey& key, Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPublish(const Corpus& corpus, bool replace, uint64_t expected_version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Submits the change to the journal, after gaps that are not in it yet. Settles it at once if
  // there is no journal, or if the journal refuses.
  void SubmitOrSettle(const std::shared_ptr<const DirectoryChange>& change)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Submits a pending change and waits until it is settled.
  absl::Status Commit(std::shared_ptr<const DirectoryChange> change, const Pending* pending,
                      Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void SettleEpochs(uint64_t epoch_max, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Applies a change to the corpora. `orphans` may be null.
  void Apply(const DirectoryChange& change, Orphans* orphans) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::shared_ptr<const Corpus> FindLocked(std::string_view name, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease(std::map<uint64_t, Lease>::iterator lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds or subtracts the corpus' chunks per holder, and notifies the holders that are members.
  void CountPlaces(const Corpus& corpus, bool in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the holder, at its next renewal, query what is placed on it.
  void NotePlacedChange(const HolderId& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsSuperseded(const CorpusPart& part) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Raises the highest number to at least this one. Records the numbers between as not assigned.
  void RaiseVersions(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddGap(const VersionGap& gap) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether this folder assigned the number in an incarnation that it has lost.
  bool IsForgotten(uint64_t folder_id, uint64_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a reported tombstone drops the corpus of this name that is here.
  bool Takes(const DroppedCorpus& dropped, const Corpus& here) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Checks whether a rebuilt corpus may be published.
  absl::Status CheckRebuilt(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyDrop(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // If a holder of the corpus is offline, makes all holders fetch and keep the tombstone.
  void TellOfDrop(const Corpus* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns Unavailable if holders report a part of a later version that this folder assigned, or,
  // for a corpus rebuilt from reports, any folder.
  absl::Status CheckLatest(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoCorpusLocked(std::string_view name, std::string_view tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlaces(const std::shared_ptr<const Corpus>& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemovePlaces(const Corpus& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Orphans OrphansOf(const Corpus& gone) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finishes the removal of a corpus, after its places are removed and its orphans are listed.
  void RemoveReplicas(const Corpus& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ReplicaTable::Places PlacesOf(const ChunkId& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsPlacedOn(const ChunkPlace& place, std::string_view holder) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Lease*> FindHolderLease(uint64_t lease_id, size_t id_count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WithdrawLocked(uint64_t lease_id, std::optional<std::string_view> tenant,
                      std::span<const ChunkId> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellReplicasChanged(const CorporaByKey& corpora) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CoverageView ViewLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CoverageView::Holders HoldersOf(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const DirectoryEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<DirectoryEvent> NextOfSnapshot(Watcher& watcher) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Watcher* watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const DirectoryOptions options_;
  const uint64_t life_;
  ChangeJournal* journal_ = nullptr;  // if null, changes are in memory only
  absl::Mutex mu_;
  std::map<uint64_t, Lease> leases_ ABSL_GUARDED_BY(mu_);
  std::map<HolderId, uint64_t> lease_by_member_ ABSL_GUARDED_BY(mu_);
  // No lease expires before this, so most calls check no lease.
  Instant next_expiry_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  EndedLeases ended_ ABSL_GUARDED_BY(mu_);
  CorporaByKey corpora_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChunkId, std::vector<ChunkPlace>> places_ ABSL_GUARDED_BY(mu_);
  uint64_t placement_count_ ABSL_GUARDED_BY(mu_) = 0;
  // The corpora that place chunks on a holder, and the number of those chunks.
  absl::flat_hash_map<HolderId, std::map<CorpusKey, uint64_t>> placed_on_ ABSL_GUARDED_BY(mu_);
  // Holders that replayed corpora name and that have not registered since.
  absl::btree_set<HolderId> missing_ ABSL_GUARDED_BY(mu_);
  Instant returning_until_ ABSL_GUARDED_BY(mu_);
  // Members that still have parts to report.
  absl::btree_set<HolderId> reporting_ ABSL_GUARDED_BY(mu_);
  CorpusRebuild rebuild_ ABSL_GUARDED_BY(mu_);
  Instant rebuild_from_ ABSL_GUARDED_BY(mu_);  // no rebuilt corpus is published earlier
  uint64_t rebuilt_count_ ABSL_GUARDED_BY(mu_) = 0;
  DroppedCorpora dropped_ ABSL_GUARDED_BY(mu_){kDropsCountMax};
  std::string old_copy_ ABSL_GUARDED_BY(mu_);
  uint64_t redropped_count_ ABSL_GUARDED_BY(mu_) = 0;
  HeadIndex heads_ ABSL_GUARDED_BY(mu_);
  TenantKeys keys_ ABSL_GUARDED_BY(mu_);
  PendingByKey pending_ ABSL_GUARDED_BY(mu_);
  ReplicaTable replicas_ ABSL_GUARDED_BY(mu_);
  LackTable lacks_ ABSL_GUARDED_BY(mu_);
  bool saw_earlier_life_ ABSL_GUARDED_BY(mu_) = false;  // a member's epoch predates first_epoch
  uint64_t change_count_ ABSL_GUARDED_BY(mu_) = 0;      // in members, corpora and lacking chunks
  std::vector<Watcher*> watchers_ ABSL_GUARDED_BY(mu_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mu_);
  uint64_t last_version_ ABSL_GUARDED_BY(mu_);
  uint64_t folder_id_ = 0;                           // 0 if no parts are accepted
  uint64_t first_version_ ABSL_GUARDED_BY(mu_) = 0;  // this incarnation's versions are above it
  // The highest version or number, assigned by this folder, of an applied change.
  uint64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  VersionGaps gaps_ ABSL_GUARDED_BY(mu_);
  std::vector<VersionGap> unsaved_gaps_ ABSL_GUARDED_BY(mu_);  // not in the log yet
  // With a journal: the durable end of the block from which epochs are assigned.
  uint64_t epoch_max_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_reserving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reserved_ ABSL_GUARDED_BY(mu_);  // how the last reservation ended

  // The last walk over corpora, and its `change_count_`.
  absl::Mutex facts_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::shared_ptr<const Coverage> covered_ ABSL_GUARDED_BY(facts_mu_);
  uint64_t covered_at_ ABSL_GUARDED_BY(facts_mu_) = 0;
};

class DirectoryState::Watcher {
 public:
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  friend class DirectoryState;
  Watcher(DirectoryState* state, std::string_view tenant, bool all_tenants)
      : state_(state), tenant_(tenant), all_tenants_(all_tenants) {}
  bool Ready() const { return phase_ != Phase::kChanges || !events_.empty() || fell_behind_; }
  bool Sees(const Corpus& corpus) const {
    return all_tenants_ || corpus.tenant.empty() || corpus.tenant == tenant_;
  }
  // Whether the snapshot has yet to send this event's member or corpus, and so includes the event.
  bool IsAhead(const DirectoryEvent& event) const {
    if (event.corpus == nullptr)
      return phase_ == Phase::kMembers && (!last_member_ || *last_member_ < event.member.id);
    if (phase_ == Phase::kMembers) return true;
    return phase_ == Phase::kCorpora &&
           (!last_corpus_ || *last_corpus_ < CorpusKey(event.corpus->tenant, event.corpus->name));
  }

  DirectoryState* const state_;
  const std::string tenant_;
  const bool all_tenants_;
  // All below is guarded by the state's mutex.
  // The initial snapshot, and the last member and corpus that it has sent.
  enum class Phase { kMembers, kCorpora, kChanges };
  Phase phase_ = Phase::kMembers;
  std::optional<HolderId> last_member_;
  std::optional<CorpusKey> last_corpus_;
  // Later changes to what the snapshot has already sent.
  std::deque<DirectoryEvent> events_;
  bool fell_behind_ = false;
};

}  // namespace ckv
