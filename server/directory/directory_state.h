// The directory's state: members under leases, corpora, and their watchers. No I/O.
//
// Corpora change by DirectoryChange only. A caller's change is checked, made durable by a journal
// if there is one, and applied. A change that a log replays is applied in the same way.

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
  // Chunks of all corpora: 130 B each, 1 GB together; 190 B with prints.
  uint64_t placement_count_max = 1u << 23;
  // Copies that members announce, over all chunks: some 200 B each, half of which are the two ids
  // in the tables.
  uint64_t replica_count_max = 1u << 20;
  // Chunks that holders say they lack, over all holders.
  uint64_t lack_count_max = 1u << 20;
  uint32_t watcher_count_max = 4096;
  // Epochs and versions start above this, and above all that were replayed. A directory without a
  // journal must get a value that rises from one process to the next. The daemon takes the
  // milliseconds of the wall clock.
  uint64_t first_epoch = 0;
  // The longest that a caller waits for its change to become durable.
  Duration change_timeout = std::chrono::seconds(30);
  // A corpus that holders report is not published before all had this time to come back: one that
  // is late may know a later version.
  // They try at least every two seconds.
  Duration rebuild_grace = std::chrono::seconds(9);
};

struct LeaseGrant {
  uint64_t lease_id = 0;
  Epoch epoch;
  Duration ttl{0};
  // That of the directory that granted it. Another life knows no such lease. If 0, it is not told.
  uint64_t directory_life = 0;
  // That of its folder, or random if it has none; 0 if it takes no parts.
  uint64_t folder_id = 0;
};

struct LeaseRenewal {
  Duration ttl{0};
  // Counts the changes of corpora that place chunks on the member, or did until they changed.
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

// A chunk as it is reported: with its leased members, which `corpus` lacks.
struct LocatedChunk {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  ChunkPlacement chunk;
};

// Thread-safe, with one mutex. Expired leases are found by the next caller and by Expire.
//
// With a journal, an answer to a change means that it is durable. Nobody sees a change before that,
// and reads never wait for the disk. Epochs are given from blocks whose end is durable, so none is
// given twice; while the disk fails, the wall clock stands in for it.
class DirectoryState final : public ChangeSink {
 public:
  explicit DirectoryState(const DirectoryOptions& options);
  ~DirectoryState() override;
  DirectoryState(const DirectoryState&) = delete;
  DirectoryState& operator=(const DirectoryState&) = delete;

  // Applies a change that a log replays. Call it before SetJournal.
  //   DataLoss            the change does not follow from those before.
  absl::Status Replay(const DirectoryChange& change) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes changes durable from now on. Call it before others use the state. `journal` must outlive
  // all calls that change the state. `folder_id` is that of its folder, not 0.
  void SetJournal(ChangeJournal* journal, uint64_t folder_id);
  // Begins a life in memory only, of which holders keep their parts as they do for one with a
  // folder. Call it before others use the state.
  void StartInMemory();

  // These are the calls of DirectoryService in proto/ckv/v1/directory.proto, with its errors. With
  // a journal, Publish and Drop return also:
  //   ResourceExhausted   the disk is full, or too many changes wait for it. It was not made.
  //   Unavailable         the disk fails. It was not made, or it is seen after a restart.
  //   DeadlineExceeded    it is not durable by the deadline, or after change_timeout. It may become
  //                       so: look whether it was made.
  // `member.epoch` is the epoch that it had before, or 0: later ones are above it. A member that
  // `reports_parts` is missing until FinishReport.
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline = kInstantMax, bool reports_parts = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `health` is what the member tells of itself; null tells nothing.
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Deregister(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Member> Members() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the ended leases of members that have not registered again, the latest first. None is
  // older than kEndedAgeMax.
  std::vector<EndedLease> Ended() ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr Duration kEndedAgeMax = std::chrono::hours(24);

  // The chunks that a replaced or dropped corpus leaves behind on holders where no corpus of any
  // tenant places them any more. Each entry lists just those holders. If no corpus has the chunk at
  // all, the entry lists its leased members too.
  using Orphans = std::vector<ChunkPlacement>;
  // Publishes a corpus and returns its version. Unless null, `orphans` gets those of the version
  // that it replaces.
  absl::StatusOr<uint64_t> Publish(Corpus corpus, bool replace, uint64_t expected_version,
                                   Orphans* orphans = nullptr, Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the corpus with its present leased members: a copy of the corpus if there are any. With
  // `for_calls` it leaves out holders that lack a chunk which another live member has.
  absl::StatusOr<std::shared_ptr<const Corpus>> Get(std::string_view name, std::string_view tenant,
                                                    bool for_calls = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns corpora as published, without leased members.
  std::vector<std::shared_ptr<const Corpus>> List(std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops a corpus and returns it as it was.
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans = nullptr,
                                                     Instant deadline = kInstantMax)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the places of the chunk in corpora that `tenant` may see. `for_calls` as for Get.
  std::vector<LocatedChunk> Locate(const ChunkId& id, std::string_view tenant,
                                   bool for_calls = false) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the key of a tenant, which the first call with `make` makes durable. The zero key is
  // that of the shared tenant, of one without a key, and of all in a directory without a journal.
  // Errors as GetTenantKey in proto/ckv/v1/directory.proto.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, bool make,
                                        Instant deadline = kInstantMax) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunks that have one of the heads, in corpora that `tenant` may read. Others wait
  // no longer than kHeadSliceCount look-ups take. If `model` is unset, all models count.
  PromptChunks FindPrompt(std::span<const uint64_t> heads, const std::optional<ChunkId>& model,
                          std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Heads that are looked up under one lock: .1 ms.
  static constexpr size_t kHeadSliceCount = 4096;

  // Returns, for each of `ids` in order, how many corpora of all tenants place it on `holder`,
  // published or leased. If `holder` is empty, it counts corpora that place it anywhere. The answer
  // reveals other tenants' chunks, so only the operator may ask.
  std::vector<uint32_t> CountReferences(std::span<const ChunkId> ids, std::string_view holder)
      ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReferenceIdCountMax = kIdsPerCallMax;

  // Returns for each of `ids`, in order, whether it was accepted. Only corpora of `tenant`, which
  // may read the chunks there, learn of the member. If `tenant` is empty, every tenant's corpora
  // do. An accepted id reveals that a corpus has the chunk. A holder is trusted with that, as it is
  // with the rows.
  absl::StatusOr<std::vector<bool>> AnnounceReplicas(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws the announcements for `tenant`, or for all tenants if unset.
  absl::Status WithdrawReplicas(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReplicaIdCountMax = kIdsPerCallMax;

  // Takes a page of the placed chunks that a holder lacks. Errors as directory.proto says.
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids, bool first, bool last)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes whether the member of this epoch answered a probe on its control address.
  void NoteProbe(const Member& member, const absl::Status& answer) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what it knows of the fleet's health, its own folder aside. It walks over the corpora
  // that lack something, if anything has changed since the last call.
  FleetFacts Facts() ABSL_LOCKS_EXCLUDED(mu_, facts_mu_);
  // The counts over all corpora, for metrics.
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

  // Returns by name the holders on which replayed corpora place chunks and that have not registered
  // since. Members that have not reported all their parts are among them. It is not known yet what
  // they have.
  std::vector<HolderId> MissingHolders() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns whether the list of members is what a caller may go by.
  //   Unavailable         the process was just started and MissingHolders has some. For one default
  //                       lease they are taken to be on their way.
  absl::Status CheckReturned() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the corpora, after that of `after`, that place chunks on the holder, in the order of
  // tenants and names, and at most `count_max`.
  using CorpusKey = std::pair<std::string, std::string>;  // tenant, name
  std::vector<std::shared_ptr<const Corpus>> ListPlacedCorpora(const HolderId& holder,
                                                               std::optional<CorpusKey> after,
                                                               size_t count_max)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunks of the corpus that are placed on the holder, from `first_ordinal` on, at
  // most `count_max`. `next_ordinal` gets where the next page begins, or 0 if there is none.
  //   NotFound            there is no such corpus.
  absl::StatusOr<CorpusPart> PartOf(const HolderId& holder, std::string_view tenant,
                                    std::string_view name, uint32_t first_ordinal, size_t count_max,
                                    uint32_t* next_ordinal = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a part of a corpus from a holder. Returns true if it is of no use: this directory knows
  // that version or a later one, or knows that the corpus was dropped. Errors as ReportPart in
  // proto/ckv/v1/directory.proto. None is taken before SetJournal or
  // StartInMemory.
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The drops that a holder has not seen, and how much it has seen with them and with the corpora
  // that are listed afterwards.
  struct News {
    SeenDirectory seen;
    std::vector<DroppedCorpus> dropped;  // at most kDroppedCountMax, the latest
  };
  News NewsSince(const SeenDirectory& seen) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes how much of a directory the holder has seen. Returns true if that was another one, or if
  // it is more than this folder remembers. The holder is then to report the drops that it knows.
  absl::StatusOr<bool> NoteSeen(uint64_t lease_id, const SeenDirectory& seen)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes drops that a holder remembers, and returns when they are durable. Corpora that are here
  // go with them if they came from an old copy of the folder, or from reports.
  //   InvalidArgument     a name is malformed, a version is 0, or there are too many.
  //   Errors of Drop, and those of ReportPart.
  absl::Status ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                             std::span<const DroppedCorpus> dropped, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that the holder has reported all its parts.
  absl::Status FinishReport(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes the corpora that are whole again. Call it now and then.
  void PublishRebuilt() ABSL_LOCKS_EXCLUDED(mu_);
  struct Rebuilt {
    uint64_t rebuilt_count = 0;   // corpora made whole again since the start
    uint32_t unproven_count = 0;  // reported corpora that are not served
    std::vector<UnprovenCorpus> unproven;
    // If not empty, a holder has seen changes that this folder does not remember: says which one.
    std::string old_copy;
    uint64_t redropped_count = 0;  // corpora that were here and that holders reported as dropped
  };
  // `unproven` gets the first `count_max` of them.
  Rebuilt rebuilt(size_t count_max) ABSL_LOCKS_EXCLUDED(mu_);

  void Settle(const DirectoryChange& change, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mu_);
  DirectoryImage Image() override ABSL_LOCKS_EXCLUDED(mu_);

  // Ends expired leases and tells the watchers.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

  // One watcher's place in the stream of changes, which starts with the whole state and kSynced.
  // The state is read as the watcher comes to it, so a watcher takes little memory. Changes
  // behind its place follow after kSynced. It is used by one thread at a time. The state must
  // outlive it.
  class Watcher;
  // Watches the members and the corpora that `tenant` may see, or all corpora with `all_tenants`.
  //   ResourceExhausted   there are watcher_count_max watchers.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(std::string_view tenant, bool all_tenants = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the next event, or nothing at `deadline`.
  //   ResourceExhausted   the watcher fell kWatchBacklogMax events behind; watch anew.
  absl::StatusOr<std::optional<DirectoryEvent>> Next(Watcher& watcher, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kWatchBacklogMax = 4096;
  // An epoch or a version that somebody reports is at most so far above the last one here: 35 years
  // of milliseconds. So nobody uses the numbers up.
  static constexpr uint64_t kNumberLeapMax = uint64_t{1} << 40;
  // Drops that are remembered for reports that come later: 3 MB with the longest names.
  static constexpr size_t kDropsCountMax = 10'000;

 private:
  struct Lease {
    Member member;
    Duration ttl{0};
    Instant expires;
    uint64_t placed_change_count = 0;
    std::optional<MemberHealth> health = {};  // unset until it tells
    Duration clock_ahead{0};
    std::string silence = {};  // why it did not answer the last probe
  };
  // Sorted by key, so that a run replays (I8).
  using CorporaByKey = std::map<CorpusKey, std::shared_ptr<const Corpus>>;
  // A change that its caller waits for.
  struct Pending {
    bool is_rebuilt = false;   // made whole from reports; nobody waits for it
    uint64_t added_count = 0;  // chunks that it adds, at most
    bool is_new = false;       // a corpus that is not there yet
    uint64_t number = 0;       // the version or number of the change
    bool is_settled = false;
    absl::Status status;
    Orphans orphans;
  };
  using PendingByKey = std::map<CorpusKey, std::shared_ptr<Pending>>;

  // Raises the epochs above that of a member's life before.
  void NoteEpoch(Epoch before) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives epochs out of the next block if few are left.
  absl::Status ReserveEpochs(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // `durable`: only an epoch of the durable block may be given.
  absl::StatusOr<LeaseGrant> RegisterLocked(const Member& member, Duration ttl, uint64_t lease_id,
                                            bool durable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartLife(uint64_t folder_id) ABSL_LOCKS_EXCLUDED(mu_);
  Instant LatestOf(Instant deadline) const;
  // Waits until no change of this corpus is pending: changes of one corpus come one by one.
  absl::Status AwaitTurn(const CorpusKey& key, Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPublish(const Corpus& corpus, bool replace, uint64_t expected_version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Hands the change to the journal, after gaps that are not there yet. It is settled at once if
  // there is no journal, or if it refuses.
  void SubmitOrSettle(const std::shared_ptr<const DirectoryChange>& change)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes a pending change durable, and returns when it is settled.
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
  // Counts the corpus' chunks on each of its holders, in or out, and tells those that are members.
  void CountPlaces(const Corpus& corpus, bool in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the holder, with its next renewal, to ask what is placed on it.
  void NotePlacedChange(const HolderId& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsSuperseded(const CorpusPart& part) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the highest number at least this one. Those between were not given.
  void RaiseVersions(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddGap(const VersionGap& gap) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether this folder gave the number in a life that it does not remember.
  bool IsForgotten(uint64_t folder_id, uint64_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a reported drop takes the corpus of this name that is here.
  bool Takes(const DroppedCorpus& dropped, const Corpus& here) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a corpus that is whole again may be published.
  absl::Status CheckRebuilt(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyDrop(const DirectoryChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes all holders ask for news if one that had the corpus is away: the others remember it.
  void TellOfDrop(const Corpus* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE if holders report a part of a later version which this folder gave. If the corpus
  // was made whole from reports, the later version may be of any folder.
  absl::Status CheckLatest(const Corpus& corpus) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoCorpusLocked(std::string_view name, std::string_view tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlaces(const std::shared_ptr<const Corpus>& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemovePlaces(const Corpus& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Orphans OrphansOf(const Corpus& gone) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finishes the removal of a corpus after its places are removed and its orphans reported.
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
  // No lease expires before this, so most calls look at no lease at all.
  Instant next_expiry_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  EndedLeases ended_ ABSL_GUARDED_BY(mu_);
  CorporaByKey corpora_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChunkId, std::vector<ChunkPlace>> places_ ABSL_GUARDED_BY(mu_);
  uint64_t placement_count_ ABSL_GUARDED_BY(mu_) = 0;
  // The corpora that place chunks on a holder, and how many.
  absl::flat_hash_map<HolderId, std::map<CorpusKey, uint64_t>> placed_on_ ABSL_GUARDED_BY(mu_);
  // Holders that replayed corpora name and that have not registered since.
  absl::btree_set<HolderId> missing_ ABSL_GUARDED_BY(mu_);
  Instant returning_until_ ABSL_GUARDED_BY(mu_);
  // Members that have parts to report.
  absl::btree_set<HolderId> reporting_ ABSL_GUARDED_BY(mu_);
  CorpusRebuild rebuild_ ABSL_GUARDED_BY(mu_);
  Instant rebuild_from_ ABSL_GUARDED_BY(mu_);  // no reported corpus is published before
  uint64_t rebuilt_count_ ABSL_GUARDED_BY(mu_) = 0;
  DroppedCorpora dropped_ ABSL_GUARDED_BY(mu_){kDropsCountMax};
  std::string old_copy_ ABSL_GUARDED_BY(mu_);
  uint64_t redropped_count_ ABSL_GUARDED_BY(mu_) = 0;
  HeadIndex heads_ ABSL_GUARDED_BY(mu_);
  TenantKeys keys_ ABSL_GUARDED_BY(mu_);
  PendingByKey pending_ ABSL_GUARDED_BY(mu_);
  ReplicaTable replicas_ ABSL_GUARDED_BY(mu_);
  LackTable lacks_ ABSL_GUARDED_BY(mu_);
  bool saw_earlier_life_ ABSL_GUARDED_BY(mu_) = false;  // a member had an epoch of another life
  uint64_t change_count_ ABSL_GUARDED_BY(mu_) = 0;      // in members, corpora and lacking chunks
  std::vector<Watcher*> watchers_ ABSL_GUARDED_BY(mu_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mu_);
  uint64_t last_version_ ABSL_GUARDED_BY(mu_);
  uint64_t folder_id_ = 0;                           // 0 if no parts are taken
  uint64_t first_version_ ABSL_GUARDED_BY(mu_) = 0;  // this life gives versions above it
  // The highest version or number of a change that was applied, of those that this folder gave.
  uint64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  VersionGaps gaps_ ABSL_GUARDED_BY(mu_);
  std::vector<VersionGap> unsaved_gaps_ ABSL_GUARDED_BY(mu_);  // not in the log yet
  // With a journal: the durable end of the block that epochs are given from.
  uint64_t epoch_max_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_reserving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reserved_ ABSL_GUARDED_BY(mu_);  // how the last reservation ended

  // The last walk over corpora, and the count of changes that it was at.
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
  // Whether the snapshot will tell of this event's subject as it then is.
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
  // Guarded by the state's mutex.
  // The first snapshot, and how far it was told.
  enum class Phase { kMembers, kCorpora, kChanges };
  Phase phase_ = Phase::kMembers;
  std::optional<HolderId> last_member_;
  std::optional<CorpusKey> last_corpus_;
  // Changes since, of what the snapshot had told already.
  std::deque<DirectoryEvent> events_;
  bool fell_behind_ = false;
};

}  // namespace ckv
