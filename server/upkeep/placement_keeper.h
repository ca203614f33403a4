// Keeps what the directory says of this holder's chunks beside them, and tells a directory that
// lost it. Tells the directory which placed chunks are not here.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/corpus_part.h"
#include "server/directory/directory_state.h"
#include "store/disk/corpus_parts.h"

namespace ckv {

// The directory, as the keeper asks it. One thread at a time; every call returns by `deadline`.
// Errors are those of DirectoryService in proto/ckv/v1/directory.proto, and:
//   Unavailable, DeadlineExceeded    the directory does not answer.
class PlacementSource {
 public:
  virtual ~PlacementSource() = default;
  struct Placed {
    std::map<CorpusParts::Key, uint64_t> versions;  // by tenant and name
    // How much the holder has seen once it keeps these, and the drops since it last asked.
    SeenDirectory seen;
    std::vector<DroppedCorpus> dropped;
  };
  // Returns the corpora that place chunks on the holder, and the news since `seen`.
  virtual absl::StatusOr<Placed> ListPlacedCorpora(const HolderId& holder,
                                                   const SeenDirectory& seen, Instant deadline) = 0;
  // Returns the part of a corpus that is placed on the holder. It may have no chunks.
  //   NotFound            there is no such corpus.
  virtual absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                             Instant deadline) = 0;
  // Reports a part. Returns true if the holder may forget it.
  virtual absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                          Instant deadline) = 0;
  // Tells how much of a directory the holder has seen, and drops that it remembers, at most
  // kDroppedCountMax. Returns true if the directory wants to know of drops.
  //   Unimplemented       it is of an earlier build.
  virtual absl::StatusOr<bool> ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                             std::span<const DroppedCorpus> dropped,
                                             Instant deadline) = 0;
  // Tells all placed chunks that the holder lacks, in place of what it told before.
  virtual absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                     Instant deadline) = 0;
  // Says that all parts are reported.
  virtual absl::Status FinishReport(uint64_t lease_id, Instant deadline) = 0;
};

// Calls `take` with pages of kIdsPerCallMax ids, at least once, until it returns an error.
absl::Status ForEachPage(
    std::span<const ChunkId> ids,
    absl::FunctionRef<absl::Status(std::span<const ChunkId> page, bool first, bool last)> take);

// The directory of the same process. `state` must outlive it.
class LocalPlacementSource final : public PlacementSource {
 public:
  explicit LocalPlacementSource(DirectoryState* state) : state_(*state) {}
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
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState& state_;
};

// The chunks that a holder has, as its keeper looks at them. Thread-safe.
struct PlacedChunks {
  std::function<bool(const ChunkId&)> has;
  // Rises whenever a chunk comes or goes. If empty, the keeper looks when it makes a round.
  std::function<uint64_t()> change_count = {};
};

struct PlacementKeeperOptions {
  HolderId self;
  Clock* clock = Clock::Real();
  // The longest wait for all answers of one round.
  Duration round_timeout = std::chrono::seconds(30);
  // The wait after a round that failed.
  Duration retry_pause = std::chrono::seconds(1);
};

// Thread-safe. It owns a thread, which makes a round when the holder has another lease, and when
// the directory counts another change of its corpora. A round asks which corpora place chunks here,
// and for the parts that are new. It reports the parts that the directory does not list, or lists
// in an earlier version, and forgets those of which the directory knows better. A round that failed
// is made again from the part on that it came to.
//
// It also keeps how much of the directory it has seen, and the drops that it was told of. A
// directory that has forgotten them is told before parts are reported.
//
// A part is of help only while the chunks are there: chunks that are gone are not reported.
//
// A round also finds the placed chunks that are not here: a holder in memory came back empty, or a
// damaged chunk was lost. If chunks come or go it looks again at the next renewal, and makes a
// round if the answer is another. The directory is told, and the log. A chunk that was moved or
// dropped is no loss: the round asks first what is placed here.
class PlacementKeeper {
 public:
  // `parts`, which nobody else uses, and `source` must outlive the keeper. `has_chunk` says whether
  // this holder has a chunk; any thread may call it.
  PlacementKeeper(const PlacementKeeperOptions& options, PlacementSource* source,
                  CorpusParts* parts, PlacedChunks chunks);
  ~PlacementKeeper();
  PlacementKeeper(const PlacementKeeper&) = delete;
  PlacementKeeper& operator=(const PlacementKeeper&) = delete;

  // Call when the lease was granted or renewed, with what the directory counts.
  void Note(const LeaseGrant& lease, uint64_t placed_change_count) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes a round that begins after this call, and returns when it has succeeded.
  //   DeadlineExceeded    none has by `deadline`; says why the last one failed, if it did.
  //   Unavailable         the keeper ends.
  absl::Status KeepNow(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t part_count = 0;
    uint64_t round_count = 0;
    uint64_t reported_count = 0;  // parts reported since the start
    uint64_t placed_count = 0;    // chunks that corpora place here, each once
    uint64_t lacking_count = 0;   // those of them that are not here
    absl::Status last_error;      // the last round's; OK after a success
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct News {
    LeaseGrant lease;
    uint64_t placed_change_count = 0;
  };
  using Listed = std::map<CorpusParts::Key, uint64_t>;

  // Tells of drops, also of corpora that are listed and that it has seen to be gone.
  absl::Status ReportDrops(const LeaseGrant& lease, const Listed& listed, Instant deadline);
  absl::Status ReportParts(const LeaseGrant& lease, const Listed& listed, Instant deadline);
  absl::Status NoteSeen(const PlacementSource::Placed& placed);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // `first`: no round under this lease has succeeded.
  SeenDirectory Seen() const;
  absl::Status Round(const LeaseGrant& lease, bool first);
  // Brings `placed_` to what is listed, by what it asked for or by the parts that it keeps.
  void IndexParts(const Listed& listed);
  void IndexPart(const CorpusPart& part);
  // Returns the placed chunks that are not here, in the order of ids.
  std::vector<ChunkId> Lacking() const;
  // Tells the directory and the log what is lacking, if that is news.
  absl::Status TellLacking(const LeaseGrant& lease, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void LogLacking(const std::vector<ChunkId>& lacking, size_t placed_count);
  // Whether chunks that came or went since the last look make a round necessary.
  bool IsLackingAsTold();
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
  // Versions that a round reported which then failed, under this lease. Used by the thread.
  uint64_t reported_lease_ = 0;
  Listed reported_;
  // The chunks of each listed corpus that are placed here. Used by the thread.
  struct PlacedPart {
    uint64_t version = 0;
    std::vector<ChunkId> ids;
  };
  std::map<CorpusParts::Key, PlacedPart> placed_;
  uint64_t told_lease_ = 0;  // under which the directory was told `told_lacking_`
  std::vector<ChunkId> told_lacking_;
  bool is_untold_ = false;  // the last try to tell it failed

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<News> news_ ABSL_GUARDED_BY(mu_);
  // The lease and the count that the last round was made for that succeeded.
  uint64_t done_lease_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Calls of KeepNow, and those whose round has succeeded.
  uint64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mu_) = 0;    // in KeepNow
  uint64_t looked_at_ ABSL_GUARDED_BY(mu_) = 0;  // ChangeCount() of the last look
  // Chunks came or went before the last Note. At most one look a renewal: it takes 100 ns a chunk.
  bool is_look_due_ ABSL_GUARDED_BY(mu_) = false;
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
