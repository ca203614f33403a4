// Keeps what the directory says of this holder's chunks beside them, and tells a directory that
// lost it.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
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
  // Returns the corpora that place chunks on the holder: versions by tenant and name.
  virtual absl::StatusOr<std::map<CorpusParts::Key, uint64_t>> ListPlacedCorpora(
      const HolderId& holder, Instant deadline) = 0;
  // Returns the part of a corpus that is placed on the holder. It may have no chunks.
  //   NotFound            there is no such corpus.
  virtual absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                             Instant deadline) = 0;
  // Reports a part. Returns true if the holder may forget it.
  virtual absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                          Instant deadline) = 0;
  // Says that all parts are reported.
  virtual absl::Status FinishReport(uint64_t lease_id, Instant deadline) = 0;
};

// The directory of the same process. `state` must outlive it.
class LocalPlacementSource final : public PlacementSource {
 public:
  explicit LocalPlacementSource(DirectoryState* state) : state_(*state) {}
  absl::StatusOr<std::map<CorpusParts::Key, uint64_t>> ListPlacedCorpora(const HolderId& holder,
                                                                         Instant deadline) override;
  absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                     Instant deadline) override;
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                  Instant deadline) override;
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override;

 private:
  DirectoryState& state_;
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
// in an earlier version, and forgets those of which the directory knows better.
//
// A part is of help only while the chunks are there: chunks that are gone are not reported.
class PlacementKeeper {
 public:
  // `parts`, which nobody else uses, and `source` must outlive the keeper. `has_chunk` says whether
  // this holder has a chunk; any thread may call it.
  PlacementKeeper(const PlacementKeeperOptions& options, PlacementSource* source,
                  CorpusParts* parts, std::function<bool(const ChunkId&)> has_chunk);
  ~PlacementKeeper();
  PlacementKeeper(const PlacementKeeper&) = delete;
  PlacementKeeper& operator=(const PlacementKeeper&) = delete;

  // Call when the lease was granted or renewed, with what the directory counts.
  void Note(const LeaseGrant& lease, uint64_t placed_change_count) ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t part_count = 0;
    uint64_t round_count = 0;
    uint64_t reported_count = 0;  // parts reported since the start
    absl::Status last_error;      // the last round's; OK after a success
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct News {
    LeaseGrant lease;
    uint64_t placed_change_count = 0;
  };
  using Listed = std::map<CorpusParts::Key, uint64_t>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // `first`: no round under this lease has succeeded.
  absl::Status Round(const LeaseGrant& lease, bool first);
  absl::Status Report(const LeaseGrant& lease, const CorpusParts::Key& key, Instant deadline);
  absl::Status Ask(const CorpusParts::Key& key, Instant deadline);
  void NoteRound(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PlacementKeeperOptions options_;
  PlacementSource& source_;
  CorpusParts& parts_;  // used by the thread
  const std::function<bool(const ChunkId&)> has_chunk_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<News> news_ ABSL_GUARDED_BY(mu_);
  // The lease and the count that the last round was made for that succeeded.
  uint64_t done_lease_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_count_ ABSL_GUARDED_BY(mu_) = 0;
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
