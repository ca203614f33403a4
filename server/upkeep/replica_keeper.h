// Copies of chunks that this process' requester fetched and its holder answers for, under the
// holder's lease.
//
//   ReplicaKeeper keeper(options, &directory, &source, &registry, requester.get(),
//   &holder->table(),
//                        [&] { return registration.report().lease; });
//   keeper.Replicate({.corpus = corpus, .chunk_begin = 0, .chunk_end = 4, .deadline = deadline});
//
// Kept are the canonical rows, byte for byte those of the holder they came from: a copy has the
// same checksums, and its answers have the same bits. Rows that were rotated to another position
// would not: a rotation rounds bf16.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/control.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "server/directory/directory_state.h"
#include "store/chunk_table.h"

namespace ckv {

// What a copy is made and checked with, from one who has the chunk. Thread-safe.
class ChunkInfoSource {
 public:
  virtual ~ChunkInfoSource() = default;
  // Errors as HolderService.GetChunkInfo in proto/ckv/v1/holder.proto. What it answers is a peer's
  // word: the chunk table checks it.
  virtual absl::StatusOr<ChunkInfo> GetChunkInfo(const Member& holder, const ChunkId& id,
                                                 const Geometry& geometry, std::string_view tenant,
                                                 Instant deadline) = 0;
};

// The directory, as one sees it who announces copies. At most DirectoryState::kReplicaIdCountMax
// ids a call. Thread-safe; errors as in proto/ckv/v1/directory.proto.
class ReplicaRegistry {
 public:
  virtual ~ReplicaRegistry() = default;
  virtual absl::StatusOr<std::vector<bool>> Announce(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids,
                                                     Instant deadline) = 0;
  virtual absl::Status Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids, Instant deadline) = 0;
};

// The registry of the same process. `state` must outlive it.
class LocalReplicaRegistry final : public ReplicaRegistry {
 public:
  explicit LocalReplicaRegistry(DirectoryState* state) : state_(state) {}
  absl::StatusOr<std::vector<bool>> Announce(uint64_t lease_id, std::string_view tenant,
                                             std::span<const ChunkId> ids,
                                             Instant deadline) override;
  absl::Status Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                        std::span<const ChunkId> ids, Instant deadline) override;

 private:
  DirectoryState* const state_;
};

struct ReplicaKeeperOptions {
  HolderId self;  // as the holder is registered
  Clock* clock = Clock::Real();
  // Rows of all copies. Part of the holder's capacity, which puts share, and which they are refused
  // when it is full: the daemon's default is a quarter. 0: none are made.
  uint64_t replica_bytes_max = 0;
  // Of one call to the directory on the keeper's own thread, and of a withdrawal that makes room.
  Duration call_timeout = std::chrono::seconds(1);
  // How often it looks whether the lease is another one, in which case everything is announced
  // anew; whether others dropped copies from the table; and whether the directory answers again. So
  // long is a copy not used, or asked for in vain, at worst.
  Duration audit_period = std::chrono::seconds(1);
};

struct ReplicaRange {
  std::shared_ptr<const Corpus> corpus;  // of the tenant that it names
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  Instant deadline = kInstantMax;
};

struct ReplicaReport {
  uint32_t fetched_count = 0;
  uint32_t present_count = 0;
  uint32_t refused_count = 0;  // by the directory, which has enough; not kept
  uint32_t evicted_count = 0;
  uint64_t fetched_bytes = 0;
};

struct ReplicaStats {
  uint64_t chunk_count = 0;  // copies made here
  uint64_t bytes = 0;
  uint64_t bytes_max = 0;
  uint64_t fetched_count = 0;  // since start
  uint64_t fetched_bytes = 0;
  uint64_t evicted_count = 0;
  uint64_t announce_failure_count = 0;
};

// Thread-safe. Owns a thread that announces everything anew under a new lease, and withdraws what
// others dropped. Calls make one copy at a time, chunk by chunk.
class ReplicaKeeper {
 public:
  using LeaseSource = std::function<std::optional<LeaseGrant>()>;

  // All must outlive the keeper; `lease` is called on any thread and does not wait.
  ReplicaKeeper(const ReplicaKeeperOptions& options, DirectoryControl* directory,
                ChunkInfoSource* source, ReplicaRegistry* registry, Requester* requester,
                ChunkTable* table, LeaseSource lease);
  // Withdraws nothing: what was announced ends with the lease.
  ~ReplicaKeeper();
  ReplicaKeeper(const ReplicaKeeper&) = delete;
  ReplicaKeeper& operator=(const ReplicaKeeper&) = delete;

  // Errors as RequesterService.Replicate in proto/ckv/v1/requester.proto. Chunks that the table has
  // from others are announced too, and never dropped. To make room, the copies that were not asked
  // for the longest go first, but none that an operator marked to be kept.
  absl::StatusOr<ReplicaReport> Replicate(const ReplicaRange& range) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how many chunks of the range were announced from here for the corpus' tenant. What
  // others asked for, too, stays theirs.
  //   DeadlineExceeded, Unavailable    the directory was not told; nothing was dropped.
  absl::StatusOr<uint32_t> Release(const ReplicaRange& range) ABSL_LOCKS_EXCLUDED(mu_);

  // Somebody puts the chunk here: a copy of it is theirs from now on, and not dropped any more.
  // Called before the table is asked, and again once it has the chunk, whoever brought it: a copy
  // may have come, or gone, meanwhile. It is the putter's if it is there after the second call.
  void Adopt(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  ReplicaStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Copy {
    uint64_t bytes = 0;
    uint64_t last_asked = 0;  // of ask_count_
    bool own = true;          // made here, and so dropped here; else put by others
    // Who asked for it, at most ChunkTable::kReaderCountMax, and the lease that it is announced
    // under to them; 0: not announced.
    absl::btree_map<std::string, uint64_t> lease_of_tenant;
  };
  // One call of Replicate.
  struct Job {
    const ReplicaRange& range;
    uint64_t ask = 0;
    absl::flat_hash_map<HolderId, Member> members;  // of the directory
    ReplicaReport report;
  };
  // One of the two turns, taken without holding the mutex over what waits.
  class Turn;

  absl::Status CheckRange(const ReplicaRange& range) const;
  absl::Status CopyAll(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyOne(Job& job, const ChunkPlacement& chunk, uint32_t ordinal)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ChunkInfo> AskInfo(const Job& job, const ChunkPlacement& chunk);
  absl::StatusOr<ChunkWriter> BeginCopy(Job& job, const ChunkInfo& info, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FetchInto(const Job& job, uint32_t ordinal, ChunkWriter& writer);
  void NoteLocked(Job& job, const ChunkId& id, bool own, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Evicts copies that earlier calls asked for until `bytes` more are within the limit, and at
  // least one.
  //   ResourceExhausted   there are no such copies.
  absl::Status MakeRoom(Job& job, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws what was announced for `tenant` (absent: for all), then drops those that are own and
  // that nobody else asked for.
  absl::Status Withdraw(std::optional<std::string_view> tenant, std::span<const ChunkId> ids,
                        Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Announces what the present lease has not announced; those that are refused are dropped.
  absl::Status AnnounceDue(Instant deadline, uint32_t& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // Of one tenant.
  struct Due {
    std::string tenant;
    std::vector<ChunkId> ids;  // none: nothing is due
  };
  Due DueUnder(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws what others dropped from the table.
  absl::Status Audit(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Not for `tenant` any more; absent: for nobody.
  void DropLocked(std::optional<std::string_view> tenant, const ChunkId& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const ReplicaKeeperOptions options_;
  DirectoryControl* const directory_;
  ChunkInfoSource* const source_;
  ReplicaRegistry* const registry_;
  Requester* const requester_;
  ChunkTable* const table_;
  const LeaseSource lease_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool copying_ ABSL_GUARDED_BY(mu_) = false;  // the turn of one chunk's copy, with room for it
  bool calling_ ABSL_GUARDED_BY(mu_) = false;  // the turn of calls to the registry
  uint64_t ask_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ChunkId, Copy> copies_ ABSL_GUARDED_BY(mu_);
  ReplicaStats stats_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
