// Keeps replicas: copies of chunks that this process' requester fetched. The process' holder serves
// them under its lease.
//
//   ReplicaKeeper keeper(options, &directory, &source, &registry, requester.get(),
//                        &holder->store(), [&] { return registration.report().lease; });
//   keeper.Replicate({.corpus = corpus, .chunks = {0, 1}, .deadline = deadline});
//
// Copies are the canonical rows, byte for byte those of the source holder. A copy therefore has the
// same checksums, and its answers have the same bits. Rows rotated to another position would not,
// because a rotation rounds bf16.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/host/thread.h"
#include "server/directory/directory_state.h"
#include "store/chunk_store.h"
#include "transport/control.h"

namespace ckv {

// Provides the facts to make and check a copy, from a holder of the chunk. Thread-safe.
class ChunkInfoSource {
 public:
  virtual ~ChunkInfoSource() = default;
  // Returns the chunk's info. Errors as HolderService.GetChunkInfo in proto/ckv/v1/holder.proto.
  // The answer is from a peer and not trusted: the caller validates it.
  virtual absl::StatusOr<ChunkInfo> GetChunkInfo(const Member& holder, const ChunkId& id,
                                                 const Geometry& geometry, std::string_view tenant,
                                                 Instant deadline) = 0;
};

// The directory, as a process that announces copies calls it. A call accepts at most
// DirectoryState::kReplicaIdCountMax ids. Thread-safe; errors as in proto/ckv/v1/directory.proto.
class ReplicaRegistry {
 public:
  virtual ~ReplicaRegistry() = default;
  virtual absl::StatusOr<std::vector<bool>> Announce(uint64_t lease_id, std::string_view tenant,
                                                     std::span<const ChunkId> ids,
                                                     Instant deadline) = 0;
  virtual absl::Status Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                                std::span<const ChunkId> ids, Instant deadline) = 0;
};

// The registry in the same process. `state` must outlive it.
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
  HolderId self;  // the holder's registered id
  Clock* clock = Clock::Real();
  // Limit for the rows of all copies. They share the holder's capacity with puts, which are refused
  // when it is full. The daemon's default is a quarter of the capacity. If 0, no copies are made.
  uint64_t replica_bytes_max = 0;
  // Time limit for the calls to the directory in one audit on the keeper's own thread.
  Duration call_timeout = std::chrono::seconds(1);
  // How often the keeper checks whether the lease changed, whether others dropped copies from the
  // table, and whether the directory responds again. Under a new lease it announces everything
  // again. At worst, a copy is unused, or is requested in vain, for this time.
  Duration audit_period = std::chrono::seconds(1);
};

struct ReplicaCall {
  std::shared_ptr<const Corpus> corpus;  // its tenant is the call's tenant
  std::vector<uint32_t> chunks;          // ordinals, each once; ChunksOrAll makes them
  Instant deadline = kInstantMax;
};

struct ReplicaReport {
  uint32_t fetched_count = 0;
  uint32_t present_count = 0;
  // Copies refused because the chunk has enough copies, which are not kept, or enough tenants.
  uint32_t refused_count = 0;
  uint32_t evicted_count = 0;
  uint64_t fetched_bytes = 0;
};

struct ReplicaStats {
  uint64_t chunk_count = 0;  // copies made here
  uint64_t bytes = 0;
  uint64_t bytes_max = 0;
  uint64_t fetched_count = 0;  // since the start
  uint64_t fetched_bytes = 0;
  uint64_t evicted_count = 0;
  uint64_t announce_failure_count = 0;
};

// Thread-safe. Owns a thread that announces everything again under a new lease and withdraws chunks
// that others dropped. All calls together make one copy at a time, chunk by chunk.
class ReplicaKeeper {
 public:
  using LeaseSource = std::function<std::optional<LeaseGrant>()>;

  // All arguments must outlive the keeper. `lease` is called on any thread and must not block.
  ReplicaKeeper(const ReplicaKeeperOptions& options, DirectoryControl* directory,
                ChunkInfoSource* source, ReplicaRegistry* registry, Requester* requester,
                ChunkStore* store, LeaseSource lease);
  // Withdraws nothing, because announcements end with the lease.
  ~ReplicaKeeper();
  ReplicaKeeper(const ReplicaKeeper&) = delete;
  ReplicaKeeper& operator=(const ReplicaKeeper&) = delete;

  // Makes copies of the chunks. Errors as RequesterService.Replicate in
  // proto/ckv/v1/requester.proto. Chunks that others put into the table are announced too, and
  // never dropped. To make room, drops the least recently requested copies first, except copies
  // that an operator marked as kept.
  absl::StatusOr<ReplicaReport> Replicate(const ReplicaCall& call) ABSL_LOCKS_EXCLUDED(mu_);
  // The member that serves the copies.
  const HolderId& self() const { return options_.self; }
  // Withdraws the copies of the chunks for the corpus' tenant, and drops those made here that no
  // other tenant requested. Returns how many chunks were withdrawn.
  //   DeadlineExceeded, Unavailable    the directory did not confirm a withdrawal. The copies in
  //                                    it, and later ones, were not dropped.
  absl::StatusOr<uint32_t> Release(const ReplicaCall& call) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when a client puts the chunk here. A copy of the chunk then belongs to that client, and
  // the keeper no longer drops it. Call before the put looks the chunk up in the table, and again
  // once the table contains it. A copy may be added or dropped in between. If the table contains
  // the chunk after the second call, the chunk is the client's.
  void Adopt(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  ReplicaStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Copy {
    uint64_t bytes = 0;
    uint64_t last_requested = 0;  // value of ask_count_ at the last request
    bool own = true;              // made here, so the keeper may drop it; else put by others
    // The tenants that requested the copy, at most ChunkLedger::kReaderCountMax. Each has the lease
    // under which the copy is announced, or 0 if it is not announced.
    absl::btree_map<std::string, uint64_t> lease_of_tenant;
  };
  // One call of Replicate.
  struct Job {
    const ReplicaCall& call;
    uint64_t ask = 0;
    absl::flat_hash_map<HolderId, Member> members;  // holders listed by the directory
    ReplicaReport report;
  };
  // Holds one of the two turns, `copying_` or `calling_`, without holding the mutex during a wait.
  class Turn;

  absl::Status Check(const ReplicaCall& call) const;
  absl::Status CopyAll(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyOne(Job& job, const ChunkPlacement& chunk, uint32_t ordinal)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ChunkInfo> QueryInfo(const Job& job, const ChunkPlacement& chunk);
  absl::StatusOr<ChunkWriter> BeginCopy(Job& job, const ChunkInfo& info, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FetchInto(const Job& job, uint32_t ordinal, ChunkWriter& writer);
  void NoteLocked(Job& job, const ChunkId& id, bool own, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Evicts at least one copy, and as many as needed to keep `bytes` more within the limit. Only
  // evicts copies last requested by earlier calls.
  //   ResourceExhausted   there are too few of these copies; nothing was evicted.
  absl::Status MakeRoom(Job& job, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws the announcements for `tenant`, or for all tenants if unset. Then drops own copies
  // that no other tenant requested.
  absl::Status Withdraw(std::optional<std::string_view> tenant, std::span<const ChunkId> ids,
                        Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Announces copies not yet announced under the current lease, and drops refused ones.
  absl::Status AnnounceDue(Instant deadline, uint32_t& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies of one tenant that must be announced.
  struct Due {
    std::string tenant;
    std::vector<ChunkId> ids;  // empty if nothing is due
  };
  Due DueUnder(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws copies that others dropped from the table.
  absl::Status Audit(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes `tenant` from the copy, or all tenants if unset. Drops an own copy that has no tenant
  // left.
  void DropLocked(std::optional<std::string_view> tenant, const ChunkId& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const ReplicaKeeperOptions options_;
  DirectoryControl* const directory_;
  ChunkInfoSource* const source_;
  ReplicaRegistry* const registry_;
  Requester* const requester_;
  ChunkStore* const store_;
  const LeaseSource lease_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool copying_ ABSL_GUARDED_BY(mu_) = false;  // turn to make or release copies
  bool calling_ ABSL_GUARDED_BY(mu_) = false;  // turn to call the registry
  uint64_t ask_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ChunkId, Copy> copies_ ABSL_GUARDED_BY(mu_);
  ReplicaStats stats_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace ckv
