// Makes the copies that the directory orders. These are chunks of a lost or drained holder, chunks
// that this one lacks or gets as a new holder, and hot ones.
//
// A copy is put like any chunk: its rows are checked against their checksums, and it is durable
// before it is reported. Its bytes are those of the source, so its answers have the same bits.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/host/thread.h"
#include "server/directory/directory_state.h"
#include "server/directory/replication.h"
#include "server/upkeep/byte_pacer.h"
#include "store/chunk_store.h"

namespace ckv {

// The directory and the other holders, as a holder that makes copies calls them. Thread-safe. Its
// results are from peers and not trusted.
class CopySource {
 public:
  // Takes a piece of a tensor's rows. Return an error to end the read.
  using TakeRows = absl::FunctionRef<absl::Status(uint32_t tensor, uint64_t offset_bytes,
                                                  std::span<const std::byte> rows)>;
  virtual ~CopySource() = default;

  // Errors of DirectoryService in proto/ckv/v1/directory.proto.
  virtual absl::StatusOr<std::vector<CopyOrder>> ListOrders(uint64_t lease_id, uint32_t count_max,
                                                            Instant deadline) = 0;
  virtual absl::Status Report(uint64_t lease_id, std::span<const CopyReport> reports,
                              Instant deadline) = 0;
  // Errors of GetChunkInfo and ReadChunk in proto/ckv/v1/holder.proto, and those of `take`.
  virtual absl::StatusOr<ChunkInfo> GetInfo(const Member& holder, const CopyOrder& order,
                                            Instant deadline) = 0;
  virtual absl::Status ReadRows(const Member& holder, const CopyOrder& order, TakeRows take,
                                Instant deadline) = 0;
  // Ends the calls in progress and all later ones with Cancelled.
  virtual void Cancel() = 0;
};

struct CopyMakerOptions {
  std::string name;  // the holder's name, for the log
  Clock* clock = Clock::Real();
  uint64_t bytes_per_second = uint64_t{64} << 20;  // all flows together
  uint32_t flow_count = 2;                         // copies that are made at once
  // Time limit for the calls to the directory.
  Duration call_timeout = std::chrono::seconds(5);
  // Time limit for one copy, in addition to four times the time that its bytes take at
  // bytes_per_second.
  Duration copy_timeout = std::chrono::seconds(30);
};

// Thread-safe. Owns a thread for each flow.
class CopyMaker {
 public:
  // Orders fetched at once.
  static constexpr uint32_t kOrderCountMax = 64;
  // Reports that wait for a directory that does not answer. Later ones are left out: the directory
  // orders the copy again, and it is found here.
  static constexpr size_t kReportCountMax = 4096;

  // Called before and after each copy is put, so that a leased copy becomes the holder's own
  // (ReplicaKeeper::Adopt). May be empty.
  using OnPut = std::function<void(const ChunkId&)>;

  // Called for each leased copy that is here, before it is reported. May be empty.
  using OnLeased = std::function<void(const ChunkId&)>;

  // `store` and `source` must outlive this object.
  CopyMaker(const CopyMakerOptions& options, ChunkStore* store, CopySource* source);
  // Interrupts the copies in progress.
  ~CopyMaker();
  CopyMaker(const CopyMaker&) = delete;
  CopyMaker& operator=(const CopyMaker&) = delete;

  // Call when the lease was granted or renewed, with the number of orders at the directory.
  void Note(uint64_t lease_id, uint32_t order_count) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOnPut(OnPut on_put) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOnLeased(OnLeased on_leased) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the copies in progress, and makes no more. Returns once all threads have ended. Call it
  // from one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  struct Stats {
    uint64_t made_count = 0;  // copies put here
    uint64_t made_bytes = 0;
    uint64_t present_count = 0;  // ordered copies that were here already
    uint64_t failed_count = 0;
    uint64_t waiting_count = 0;  // orders at the directory at the last renewal
  };
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<CorpusKey, ChunkId>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Fetches orders if none is left here. One thread does so at a time.
  void Refill() ABSL_LOCKS_EXCLUDED(mu_);
  void SendReports() ABSL_LOCKS_EXCLUDED(mu_);
  void Execute(const CopyOrder& order) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the bytes that were put; 0 if the chunk was here.
  absl::StatusOr<uint64_t> Make(const CopyOrder& order) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<uint64_t> MakeFrom(const Member& holder, const CopyOrder& order, Instant deadline);
  absl::StatusOr<ChunkInfo> InfoFrom(const Member& holder, const CopyOrder& order,
                                     Instant deadline);
  // The orders of these reports may be begun again.
  void Release(const std::vector<CopyReport>& reports) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePut(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || !queue_.empty() || (waiting_count_ > 0 && !is_filling_);
  }

  const CopyMakerOptions options_;
  ChunkStore& store_;
  CopySource& source_;
  BytePacer pacer_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t lease_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t waiting_count_ ABSL_GUARDED_BY(mu_) = 0;  // from the last Note; 0 once all are fetched
  bool is_filling_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<CopyOrder> queue_ ABSL_GUARDED_BY(mu_);
  // Copies in progress, and those made that are not reported yet. They are not begun again.
  std::set<Key> busy_ ABSL_GUARDED_BY(mu_);
  // Those of `busy_` that are reported, while a list of orders is under way.
  std::set<Key> released_ ABSL_GUARDED_BY(mu_);
  std::vector<CopyReport> reports_ ABSL_GUARDED_BY(mu_);
  OnPut on_put_ ABSL_GUARDED_BY(mu_);
  OnLeased on_leased_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
  std::vector<Thread> threads_;
};

}  // namespace ckv
