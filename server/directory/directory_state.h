// The directory's state: members under leases, corpora, and who watches them. No I/O.

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
#include "proto/clock.h"
#include "proto/corpus.h"
#include "server/directory/replica_table.h"

namespace ckv {

struct DirectoryOptions {
  Clock* clock = Clock::Real();
  Duration lease_ttl = std::chrono::seconds(3);
  Duration lease_ttl_min = std::chrono::milliseconds(500);
  Duration lease_ttl_max = std::chrono::seconds(60);
  uint32_t corpus_count_max = 100'000;
  uint64_t placement_count_max = 1u << 23;  // chunks of all corpora: 130 B each, 1 GB
  // Copies that members announce, of all chunks: some 200 B each, of which half are the two ids in
  // the tables.
  uint64_t replica_count_max = 1u << 20;
  uint32_t watcher_count_max = 4096;
  // Epochs and versions start above this: a directory that keeps nothing over a restart is given
  // one that rises from life to life (the daemon takes the wall clock's milliseconds).
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

// A chunk as it is told: with its leased members, which `corpus` is without.
struct LocatedChunk {
  std::shared_ptr<const Corpus> corpus;
  uint32_t ordinal = 0;
  ChunkPlacement chunk;
};

// Thread-safe; one mutex. Expired leases are found by whoever looks next and by Expire.
class DirectoryState {
 public:
  explicit DirectoryState(const DirectoryOptions& options);
  ~DirectoryState();
  DirectoryState(const DirectoryState&) = delete;
  DirectoryState& operator=(const DirectoryState&) = delete;

  // Errors as DirectoryService in proto/ckv/v1/directory.proto.
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Duration> KeepAlive(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Deregister(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Member> Members() ABSL_LOCKS_EXCLUDED(mu_);

  // What a replaced or dropped corpus leaves behind: each of its chunks that has holders on which
  // no corpus of any tenant places it any more, with just those holders; and, where no corpus has
  // it at all, with the leased members.
  using Orphans = std::vector<ChunkPlacement>;
  absl::StatusOr<uint64_t> Publish(Corpus corpus, bool replace, uint64_t expected_version,
                                   Orphans* orphans = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // With the leased members as they are now: a copy of the corpus where there are any.
  absl::StatusOr<std::shared_ptr<const Corpus>> Get(std::string_view name, std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As published, without leased members.
  std::vector<std::shared_ptr<const Corpus>> List(std::string_view tenant) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<const Corpus>> Drop(std::string_view name, std::string_view tenant,
                                                     Orphans* orphans = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<LocatedChunk> Locate(const ChunkId& id, std::string_view tenant)
      ABSL_LOCKS_EXCLUDED(mu_);

  // How many corpora, of all tenants, place each of `ids` on `holder`, published or leased; on ""
  // anywhere. One each, in order. It tells of what others have, so it is the operator's to ask.
  std::vector<uint32_t> CountReferences(std::span<const ChunkId> ids, std::string_view holder)
      ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReferenceIdCountMax = 4096;  // a call: 128 KiB of ids

  // Which of `ids` were accepted, one each in order. Only corpora of `tenant`, who may read them
  // there, are told of the member; of "", everyone's. That an id is accepted tells that such a
  // corpus has it: a holder is trusted with that, as it is with the rows.
  absl::StatusOr<std::vector<bool>> AnnounceReplicas(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What was announced for `tenant`; absent: for all of them.
  absl::Status WithdrawReplicas(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids) ABSL_LOCKS_EXCLUDED(mu_);
  static constexpr size_t kReplicaIdCountMax = 4096;  // a call: 128 KiB of ids

  // Of all tenants, for people and metrics.
  struct Counts {
    uint64_t corpus_count = 0;
    uint64_t placement_count = 0;  // chunks of corpora, each as often as it is in one
    uint64_t watcher_count = 0;
    uint64_t replica_count = 0;  // that members announced
  };
  Counts counts() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the leases that have run out and tells the watchers.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

  // One watcher's place in the stream of changes. Starts with the whole state and kSynced. Used by
  // one thread at a time; the state must outlive it.
  class Watcher;
  // Of the corpora, those that `tenant` may see; with `all_tenants` all.
  //   ResourceExhausted   watcher_count_max.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(std::string_view tenant, bool all_tenants = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The next event, or nothing at `deadline`.
  //   ResourceExhausted   fell kWatchBacklogMax events behind; watch anew.
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
  // In the order of keys, so that a run replays (I8).
  using CorporaByKey = std::map<CorpusKey, std::shared_ptr<const Corpus>>;

  std::shared_ptr<const Corpus> FindLocked(std::string_view name, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease(std::map<uint64_t, Lease>::iterator lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPlaces(const std::shared_ptr<const Corpus>& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemovePlaces(const Corpus& corpus) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Orphans OrphansOf(const Corpus& gone) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What remains to be done for a corpus whose places are removed and whose orphans are told.
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
  // No lease runs out before this, so most calls look at no lease at all.
  Instant next_expiry_ ABSL_GUARDED_BY(mu_) = kInstantMax;
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
  // Below: guarded by the state's mutex.
  std::deque<DirectoryEvent> events_;
  size_t snapshot_left_ = 0;  // of the state at the start, in front; not a backlog
  bool fell_behind_ = false;
};

}  // namespace ckv
