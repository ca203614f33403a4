// The directory's state: members under leases, corpora, and their watchers. No I/O.

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
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/directory/ended_leases.h"
#include "server/directory/lease_end.h"
#include "server/directory/replica_table.h"

namespace ckv {

struct DirectoryOptions {
  Clock* clock = Clock::Real();
  Duration lease_ttl = std::chrono::seconds(3);
  Duration lease_ttl_min = kLeaseTtlMin;
  Duration lease_ttl_max = kLeaseTtlMax;
  uint32_t corpus_count_max = 100'000;
  // Chunks of all corpora: 130 B each, 1 GB together.
  uint64_t placement_count_max = 1u << 23;
  // Copies that members announce, over all chunks: some 200 B each, half of which are the two ids
  // in the tables.
  uint64_t replica_count_max = 1u << 20;
  uint32_t watcher_count_max = 4096;
  // Epochs and versions start above this. A directory keeps nothing over a restart, so it must get
  // a value that rises from one process to the next. The daemon takes the milliseconds of the wall
  // clock.
  uint64_t first_epoch = 0;
};

struct LeaseGrant {
  uint64_t lease_id = 0;
  Epoch epoch;
  Duration ttl{0};
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
class DirectoryState {
 public:
  explicit DirectoryState(const DirectoryOptions& options);
  ~DirectoryState();
  DirectoryState(const DirectoryState&) = delete;
  DirectoryState& operator=(const DirectoryState&) = delete;

  // These are the calls of DirectoryService in proto/ckv/v1/directory.proto, with its errors.
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Duration> KeepAlive(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
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
                                   Orphans* orphans = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the corpus with its present leased members: a copy of the corpus if there are any.
  absl::StatusOr<std::shared_ptr<const Corpus>> Get(std::string_view name, std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns corpora as published, without leased members.
  std::vector<std::shared_ptr<const Corpus>> List(std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops a corpus and returns it as it was.
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the places of the chunk in corpora that `tenant` may see.
  std::vector<LocatedChunk> Locate(const ChunkId& id, std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(mu_);

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

  // Counts over all tenants, for people and metrics.
  struct Counts {
    uint64_t corpus_count = 0;
    // Chunks of corpora; a chunk in several corpora counts once for each.
    uint64_t placement_count = 0;
    uint64_t watcher_count = 0;
    uint64_t replica_count = 0;  // announced by members
  };
  Counts counts() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends expired leases and tells the watchers.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

  // One watcher's place in the stream of changes, which starts with the whole state and kSynced. It
  // is used by one thread at a time. The state must outlive it.
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

 private:
  struct Lease {
    Member member;
    Duration ttl{0};
    Instant expires;
  };
  using CorpusKey = std::pair<std::string, std::string>;  // tenant, name
  // Sorted by key, so that a run replays (I8).
  using CorporaByKey = std::map<CorpusKey, std::shared_ptr<const Corpus>>;

  std::shared_ptr<const Corpus> FindLocked(std::string_view name, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease(std::map<uint64_t, Lease>::iterator lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  void Tell(const DirectoryEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Watcher* watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const DirectoryOptions options_;
  absl::Mutex mu_;
  std::map<uint64_t, Lease> leases_ ABSL_GUARDED_BY(mu_);
  std::map<HolderId, uint64_t> lease_by_member_ ABSL_GUARDED_BY(mu_);
  // No lease expires before this, so most calls look at no lease at all.
  Instant next_expiry_ ABSL_GUARDED_BY(mu_) = kInstantMax;
  EndedLeases ended_ ABSL_GUARDED_BY(mu_);
  CorporaByKey corpora_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChunkId, std::vector<ChunkPlace>> places_ ABSL_GUARDED_BY(mu_);
  uint64_t placement_count_ ABSL_GUARDED_BY(mu_) = 0;
  ReplicaTable replicas_ ABSL_GUARDED_BY(mu_);
  std::vector<Watcher*> watchers_ ABSL_GUARDED_BY(mu_);
  uint64_t last_epoch_ ABSL_GUARDED_BY(mu_);
  uint64_t last_version_ ABSL_GUARDED_BY(mu_);
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
  bool Ready() const { return !events_.empty() || fell_behind_; }
  bool Sees(const Corpus& corpus) const {
    return all_tenants_ || corpus.tenant.empty() || corpus.tenant == tenant_;
  }

  DirectoryState* const state_;
  const std::string tenant_;
  const bool all_tenants_;
  // Guarded by the state's mutex.
  std::deque<DirectoryEvent> events_;
  // Events of the first snapshot still in front; they are not a backlog.
  size_t snapshot_left_ = 0;
  bool fell_behind_ = false;
};

}  // namespace ckv
