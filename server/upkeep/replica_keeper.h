// Keeps copies of chunks that this process' requester fetched. Its holder answers for them under
// the holder's lease.
//
//   ReplicaKeeper keeper(options, &directory, &source, &registry, requester.get(),
//                        &holder->store(), [&] { return registration.report().lease; });
//   keeper.Replicate({.corpus = corpus, .chunks = {0, 1}, .deadline = deadline});
//
// Copies are the canonical rows, byte for byte those of the holder they came from. So a copy has
// the same checksums, and its answers have the same bits. Rows rotated to another position would
// not, because a rotation rounds bf16.

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
#include "client/holders/control.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/directory/directory_state.h"
#include "store/chunk_store.h"

namespace ckv {

// Gives the facts with which a copy is made and checked, from a holder of the chunk. Thread-safe.
class ChunkInfoSource {
 public:
  virtual ~ChunkInfoSource() = default;
  // Returns the chunk's info. Errors as HolderService.GetChunkInfo in proto/ckv/v1/holder.proto.
  // The answer is a peer's word, so the chunk table checks it.
  virtual absl::StatusOr<ChunkInfo> GetChunkInfo(const Member& holder, const ChunkId& id,
                                                 const Geometry& geometry, std::string_view tenant,
                                                 Instant deadline) = 0;
};

// The directory, for a process that announces copies. A call takes at most
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
  // Limit for the rows of all copies. They share the holder's capacity with puts, which are refused
  // when it is full. The daemon's default is a quarter. If 0, no copies are made.
  uint64_t replica_bytes_max = 0;
  // Limit of one call to the directory on the keeper's own thread, and of a withdrawal that makes
  // room.
  Duration call_timeout = std::chrono::seconds(1);
  // How often it looks whether the lease changed, whether others dropped copies from the table, and
  // whether the directory answers again. Under a new lease everything is announced anew. At worst,
  // a copy stays unused, or is asked for in vain, for this time.
  Duration audit_period = std::chrono::seconds(1);
};

struct ReplicaCall {
  std::shared_ptr<const Corpus> corpus;  // belongs to the tenant it names
  std::vector<uint32_t> chunks;          // ordinals, each once; ChunksOrAll makes them
  Instant deadline = kInstantMax;
};

struct ReplicaReport {
  uint32_t fetched_count = 0;
  uint32_t present_count = 0;
  // Copies that the directory refused because it has enough; they are not kept.
  uint32_t refused_count = 0;
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

// Thread-safe. It owns a thread that announces everything anew under a new lease and withdraws
// chunks that others dropped. Calls make one copy at a time, chunk by chunk.
class ReplicaKeeper {
 public:
  using LeaseSource = std::function<std::optional<LeaseGrant>()>;

  // All arguments must outlive the keeper. `lease` is called on any thread and does not wait.
  ReplicaKeeper(const ReplicaKeeperOptions& options, DirectoryControl* directory,
                ChunkInfoSource* source, ReplicaRegistry* registry, Requester* requester,
                ChunkStore* store, LeaseSource lease);
  // Withdraws nothing: announcements end with the lease.
  ~ReplicaKeeper();
  ReplicaKeeper(const ReplicaKeeper&) = delete;
  ReplicaKeeper& operator=(const ReplicaKeeper&) = delete;

  // Makes copies of the chunks. Errors as RequesterService.Replicate in
  // proto/ckv/v1/requester.proto. Chunks that others put into the table are announced too, and
  // never dropped. To make room, the copies that were not asked for the longest go first, except
  // copies that an operator marked to be kept.
  absl::StatusOr<ReplicaReport> Replicate(const ReplicaCall& call) ABSL_LOCKS_EXCLUDED(mu_);
  // The member that answers for the copies.
  const HolderId& self() const { return options_.self; }
  // Withdraws the copies of the chunks for the corpus' tenant, and drops those made here that no
  // other tenant asked for. Returns how many chunks were announced for the tenant.
  //   DeadlineExceeded, Unavailable    the directory was not told; nothing was dropped.
  absl::StatusOr<uint32_t> Release(const ReplicaCall& call) ABSL_LOCKS_EXCLUDED(mu_);

  // Call when somebody puts the chunk here. A copy of it then belongs to that putter and is not
  // dropped any more. Call it before the table is asked, and again once the table has the chunk,
  // because a copy may have come or gone meanwhile. The chunk is the putter's if it is there after
  // the second call.
  void Adopt(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  ReplicaStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Copy {
    uint64_t bytes = 0;
    uint64_t last_asked = 0;  // value of ask_count_ at the last request
    bool own = true;          // made here, so dropped here; else put by others
    // The tenants that asked for it, at most ChunkLedger::kReaderCountMax, each with the lease it
    // is announced under; 0 if it is not announced.
    absl::btree_map<std::string, uint64_t> lease_of_tenant;
  };
  // One call of Replicate.
  struct Job {
    const ReplicaCall& call;
    uint64_t ask = 0;
    absl::flat_hash_map<HolderId, Member> members;  // holders by the directory's list
    ReplicaReport report;
  };
  // Holds one of the two turns without holding the mutex over a wait.
  class Turn;

  absl::Status Check(const ReplicaCall& call) const;
  absl::Status CopyAll(Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyOne(Job& job, const ChunkPlacement& chunk, uint32_t ordinal)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ChunkInfo> AskInfo(const Job& job, const ChunkPlacement& chunk);
  absl::StatusOr<ChunkWriter> BeginCopy(Job& job, const ChunkInfo& info, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FetchInto(const Job& job, uint32_t ordinal, ChunkWriter& writer);
  void NoteLocked(Job& job, const ChunkId& id, bool own, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Evicts copies that earlier calls asked for, until `bytes` more are within the limit, and at
  // least one.
  //   ResourceExhausted   there are no such copies.
  absl::Status MakeRoom(Job& job, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws the announcements for `tenant`, or for all tenants if unset. Then it drops own copies
  // that nobody else asked for.
  absl::Status Withdraw(std::optional<std::string_view> tenant, std::span<const ChunkId> ids,
                        Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Announces copies that the present lease has not announced, and drops refused ones.
  absl::Status AnnounceDue(Instant deadline, uint32_t& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies of one tenant that must be announced.
  struct Due {
    std::string tenant;
    std::vector<ChunkId> ids;  // empty if nothing is due
  };
  Due DueUnder(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws copies that others dropped from the table.
  absl::Status Audit(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes `tenant` from the copy, or every tenant if unset.
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
  bool copying_ ABSL_GUARDED_BY(mu_) = false;  // turn of one chunk's copy, with its room
  bool calling_ ABSL_GUARDED_BY(mu_) = false;  // turn of calls to the registry
  uint64_t ask_count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ChunkId, Copy> copies_ ABSL_GUARDED_BY(mu_);
  ReplicaStats stats_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ckv
