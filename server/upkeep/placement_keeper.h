// Stores what the directory records about this holder's chunks next to the chunks, and reports it
// to a directory that lost it. Reports to the directory which placed chunks this holder lacks.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus_part.h"
#include "proto/host/thread.h"
#include "server/directory/directory_state.h"
#include "server/upkeep/left_chunks.h"
#include "store/disk/corpus_parts.h"

namespace ckv {

// The directory as the keeper calls it. Used by one thread at a time; every call returns by
// `deadline`. Errors are those of DirectoryService in proto/ckv/v1/directory.proto, and:
//   Unavailable, DeadlineExceeded    the directory does not respond.
class PlacementSource {
 public:
  virtual ~PlacementSource() = default;
  struct Placed {
    std::map<CorpusParts::Key, uint64_t> versions;  // by tenant and name
    // How much of the directory the holder has seen once it stores these, and the tombstones since
    // its last call.
    SeenDirectory seen;
    std::vector<DroppedCorpus> dropped;
  };
  // Returns the corpora that place chunks on the holder, and the tombstones since `seen`.
  virtual absl::StatusOr<Placed> ListPlacedCorpora(const HolderId& holder,
                                                   const SeenDirectory& seen, Instant deadline) = 0;
  // Returns the part of a corpus that is placed on the holder. The part may have no chunks.
  //   NotFound            there is no such corpus.
  virtual absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                             Instant deadline) = 0;
  // Reports a part. Returns true if the part is superseded: the holder may remove it.
  virtual absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                          Instant deadline) = 0;
  // Reports how much of a directory the holder has seen, and tombstones that it keeps, at most
  // kDroppedCountMax. Returns true if the directory wants the tombstones.
  virtual absl::StatusOr<bool> ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                             std::span<const DroppedCorpus> dropped,
                                             Instant deadline) = 0;
  // Reports all placed chunks that the holder lacks. The report replaces the previous one.
  virtual absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                     Instant deadline) = 0;
  // Returns how many corpora of all tenants place each of `ids`, at most kIdsPerCallMax, on the
  // holder.
  virtual absl::StatusOr<std::vector<uint32_t>> CountReferences(const HolderId& holder,
                                                                std::span<const ChunkId> ids,
                                                                Instant deadline) = 0;
  // Marks the report of all parts as complete.
  virtual absl::Status FinishReport(uint64_t lease_id, Instant deadline) = 0;
};

// Calls `take` with pages of up to kIdsPerCallMax ids, at least once, until it returns an error.
absl::Status ForEachPage(
    std::span<const ChunkId> ids,
    absl::FunctionRef<absl::Status(std::span<const ChunkId> page, bool first, bool last)> take);

// The directory in the same process. `state` must outlive it.
class LocalPlacementSource final : public PlacementSource {
 public:
  explicit LocalPlacementSource(DirectoryState* state)
      : state_(*state), reports_(state->reports()) {}
  absl::StatusOr<Placed> ListPlacedCorpora(const HolderId& holder, const SeenDirectory& seen,
                                           Instant deadline) override;
  absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                     Instant deadline) override;
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                  Instant deadline) override;
  absl::StatusOr<bool> ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                     std::span<const DroppedCorpus> dropped,
                                     Instant deadline) override;
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                             Instant deadline) override;
  absl::StatusOr<std::vector<uint32_t>> CountReferences(const HolderId& holder,
                                                        std::span<const ChunkId> ids,
                                                        Instant deadline) override;
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState& state_;
  HolderReports& reports_;
};

// The keeper's access to the chunks of a holder. Thread-safe.
struct PlacedChunks {
  std::function<bool(const ChunkId&)> has;
  // Increases whenever a chunk is added or removed. If empty, the keeper checks the chunks only in
  // its rounds.
  std::function<uint64_t()> change_count = {};
  // Drops a chunk without a request for it during `idle_min`, unless it is kept (ChunkStore::Drop).
  // If empty, the keeper drops nothing.
  LeftChunks::Drop drop = {};
};

struct PlacementKeeperOptions {
  HolderId self;
  Clock* clock = Clock::Real();
  // The time limit for all answers in one round.
  Duration round_timeout = std::chrono::seconds(30);
  // The wait after a round that failed.
  Duration retry_pause = std::chrono::seconds(1);
  // How long chunks stay that no corpus places here any more (LeftChunks). If 0, until ckvctl gc.
  Duration drop_after = std::chrono::hours(1);
};

// Thread-safe. Owns a thread, which makes a round when the holder has a new lease, and when the
// directory counts another change of its corpora. A round lists the corpora that place chunks here
// and requests the parts that are new. It reports the parts that the directory does not list, or
// lists in an earlier version, and removes superseded parts. After a failed round, the next one
// continues with the parts not yet reported.
//
// The keeper also stores how much of the directory it has seen, and the tombstones it received. If
// a directory has lost them, the keeper reports them before it reports parts.
//
// A later version of a corpus, or its drop, may leave chunks here that no corpus places here any
// more. The keeper drops them after a while (LeftChunks).
//
// A part is useful only while its chunks exist: missing chunks are not reported in parts.
//
// A round also finds the placed chunks that this holder lacks: a holder in memory restarted empty,
// or a damaged chunk was lost. The keeper reports them to the directory and the log. If chunks are
// added or removed, it checks again at the next renewal, and makes a round if the result differs. A
// chunk that was moved or dropped is not reported, because a round first queries what is placed
// here.
class PlacementKeeper {
 public:
  // `parts` and `source` must outlive the keeper, and no other object may use `parts`. Any thread
  // may call the functions of `chunks`.
  PlacementKeeper(const PlacementKeeperOptions& options, PlacementSource* source,
                  CorpusParts* parts, PlacedChunks chunks);
  ~PlacementKeeper();
  PlacementKeeper(const PlacementKeeper&) = delete;
  PlacementKeeper& operator=(const PlacementKeeper&) = delete;

  // Call when the lease was granted or renewed, with the directory's change count.
  void Note(const LeaseGrant& lease, uint64_t placed_change_count) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when the directory ordered a leased copy and it is here. Once no corpus lists it any more,
  // the keeper drops it like a chunk that was left.
  void NoteLeased(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes a round that begins after this call, and returns when it has succeeded.
  //   DeadlineExceeded    no round has succeeded by `deadline`. If the last one failed, the message
  //                       has the reason.
  //   Unavailable         the keeper is being destroyed.
  absl::Status KeepNow(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t part_count = 0;
    uint64_t round_count = 0;
    uint64_t reported_count = 0;  // parts reported since the start
    uint64_t placed_count = 0;    // chunks placed here, counted once per corpus
    uint64_t lacking_count = 0;   // distinct placed chunks that this holder lacks
    uint64_t left_count = 0;      // chunks that wait to be dropped
    uint64_t dropped_count = 0;   // chunks dropped since the start, because none places them here
    absl::Status last_error;      // the last round's; OK after a success
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct News {
    LeaseGrant lease;
    uint64_t placed_change_count = 0;
  };
  using Listed = std::map<CorpusParts::Key, uint64_t>;

  // Reports tombstones, and also listed corpora that the keeper has seen to be gone.
  absl::Status ReportDrops(const LeaseGrant& lease, const Listed& listed, Instant deadline);
  absl::Status ReportParts(const LeaseGrant& lease, const Listed& listed, Instant deadline);
  absl::Status NoteSeen(const PlacementSource::Placed& placed);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  SeenDirectory Seen() const;
  // `first` is true if no round under this lease has succeeded.
  absl::Status Round(const LeaseGrant& lease, bool first);
  // Updates `placed_` to what is listed, from received parts and from stored parts.
  void IndexParts(const Listed& listed);
  void IndexPart(const CorpusPart& part);
  // Returns the placed chunks that this holder lacks, ordered by id.
  std::vector<ChunkId> Lacking() const;
  // Reports the lacking chunks to the directory and the log, if they have changed.
  absl::Status ReportLackingChunks(const LeaseGrant& lease, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunks of a stored part that are placed here, and its folder's id.
  struct StoredPart {
    uint64_t folder_id = 0;
    std::vector<ChunkId> ids;
  };
  StoredPart ReadStored(const CorpusParts::Key& key);
  // Those of `before` that no listed part places here now were left.
  void NoteLeft(StoredPart before, const CorpusParts::Key& key);
  absl::Status DropLeft(const LeaseGrant& lease) ABSL_LOCKS_EXCLUDED(mu_);
  void LogLacking(const std::vector<ChunkId>& lacking, size_t placed_count);
  // Returns true if the lacking chunks are those last reported: no round is necessary.
  bool IsLackingAsReported();
  absl::Status Report(const LeaseGrant& lease, const CorpusParts::Key& key, Instant deadline);
  absl::Status Ask(const CorpusParts::Key& key, Instant deadline);
  void NoteRound(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasOtherPlaces() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t ChangeCount() const { return chunks_.change_count ? chunks_.change_count() : 0; }

  const PlacementKeeperOptions options_;
  PlacementSource& source_;
  CorpusParts& parts_;  // used by the thread
  const PlacedChunks chunks_;
  // Versions reported under this lease by a round that then failed. Used by the thread.
  uint64_t reported_lease_ = 0;
  Listed reported_;
  // The chunks of each listed corpus that are placed here. These members are used by the thread.
  struct PlacedPart {
    uint64_t version = 0;
    std::vector<ChunkId> ids;
  };
  std::map<CorpusParts::Key, PlacedPart> placed_;
  uint64_t lacking_lease_ = 0;  // the lease under which `reported_lacking_` was reported
  std::vector<ChunkId> reported_lacking_;
  bool is_unreported_ = false;  // the last attempt to report it failed
  LeftChunks left_;             // used by the thread

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<News> news_ ABSL_GUARDED_BY(mu_);
  std::vector<ChunkId> leased_
      ABSL_GUARDED_BY(mu_);  // from NoteLeased, until the thread takes them
  // The lease and the change count of the last round that succeeded.
  uint64_t done_lease_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_count_ ABSL_GUARDED_BY(mu_) = 0;
  // The number of KeepNow calls, and of those whose round has succeeded.
  uint64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mu_) = 0;    // callers in KeepNow
  uint64_t looked_at_ ABSL_GUARDED_BY(mu_) = 0;  // ChangeCount() at the last check
  // Chunks were added or removed before the last Note. At most one check per renewal, because it
  // takes 100 ns per chunk.
  bool is_look_due_ ABSL_GUARDED_BY(mu_) = false;
  Stats stats_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace ckv
