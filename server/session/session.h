// Who may ask this holder: sessions, their handles and how many lanes each still has.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/control.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/chunk_table.h"

namespace ckv {

// One handle a chunk: as many as the largest corpus has.
inline constexpr uint32_t kSessionHandleCountMax = kCorpusChunkCountMax;

// A session's handles, from 1 (0 is never a handle). One thread at a time adds or moves (the
// table's mutex); the dispatcher looks up meanwhile, without a lock.
class HandleTable {
 public:
  HandleTable() = default;
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // The chunk's place, or nothing if the handle was never given out.
  std::optional<ChunkLocator> Lookup(ChunkHandle handle) const noexcept;

  // Gives `id` a handle, or the one it has, now at `locator`: a chunk that was dropped and put
  // again keeps its handle, since the same id is the same rows.
  //   ResourceExhausted   kSessionHandleCountMax.
  absl::StatusOr<ChunkHandle> Assign(const ChunkId& id, ChunkLocator locator);

  uint32_t size() const noexcept;

 private:
  // 256 segments of 4096 places: growing never moves a place that a reader may be looking at.
  static constexpr uint32_t kSegmentSize = 4096;
  static constexpr uint32_t kSegmentCount = kSessionHandleCountMax / kSegmentSize;
  using Segment = std::array<std::atomic<uint64_t>, kSegmentSize>;

  void PublishCount(uint32_t count) noexcept;
  uint32_t PublishedCount() const noexcept;

  std::array<std::unique_ptr<Segment>, kSegmentCount> segments_;
  std::atomic<uint32_t> count_{0};
  absl::flat_hash_map<ChunkId, ChunkHandle> by_id_;
};

// One requester's session. The constants are read by any thread that was handed the session; it
// lives until SessionTable::Reap, which only the dispatcher calls.
class Session {
 public:
  Session(SessionId id, uint64_t ordinal, const SessionOffer& offer, uint32_t lane_count,
          Epoch epoch);

  const SessionId id;
  const uint64_t ordinal;  // of all sessions of this process; the upper part of its lanes' tags
  const Geometry geometry;
  const std::string tenant;
  const std::string requester;
  const LaneShape shape;
  const uint32_t lane_count;
  const Epoch epoch;  // of the lease it was opened under

  HandleTable handles;

  // Closed by its peer: the dispatcher drops its lanes.
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  friend class SessionTable;
  void Close() noexcept { closed_.store(true, std::memory_order_release); }

  std::atomic<bool> closed_{false};
  // Below: guarded by the table's mutex.
  Instant invited_until_;
  uint32_t lanes_accepted_ = 0;
  uint32_t lanes_live_ = 0;
};

// Thread-safe. Sessions end when all their lanes are gone, when nobody took the invitations, or
// when they are closed.
class SessionTable {
 public:
  // `lane_bytes_max` bounds the slots of all lanes of all sessions together.
  SessionTable(uint32_t session_count_max, uint64_t lane_bytes_max);
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  struct Opened {
    SessionId id;
    uint64_t ordinal = 0;
  };
  // A new session with a random id, whose `lane_count` lanes are expected until `invited_until`.
  //   ResourceExhausted   session_count_max, or its lanes do not fit lane_bytes_max.
  absl::StatusOr<Opened> Open(const SessionOffer& offer, uint32_t lane_count, Epoch epoch,
                              Instant invited_until) ABSL_LOCKS_EXCLUDED(mu_);
  // From here on the session is not found. Its lanes are the dispatcher's to drop.
  //   NotFound            no such session.
  absl::Status Close(SessionId id) ABSL_LOCKS_EXCLUDED(mu_);

  //   NotFound            no such session.
  absl::StatusOr<Geometry> GeometryOf(SessionId id) const ABSL_LOCKS_EXCLUDED(mu_);

  //   NotFound            no such session.
  absl::StatusOr<std::string> TenantOf(SessionId id) const ABSL_LOCKS_EXCLUDED(mu_);

  struct Found {
    ChunkId id;
    ChunkLocator locator;
  };
  // A handle for every chunk found, in order.
  //   NotFound            no such session.
  //   ResourceExhausted   kSessionHandleCountMax.
  absl::StatusOr<std::vector<ChunkHandle>> AssignHandles(SessionId id, std::span<const Found> found)
      ABSL_LOCKS_EXCLUDED(mu_);

  // What an invitation carries, and Adopt understands.
  static uint64_t LaneTag(const Opened& session, uint32_t lane);

  // Dispatcher: a lane came up. Its session, or nothing if that is closed or gone.
  Session* Adopt(uint64_t tag) ABSL_LOCKS_EXCLUDED(mu_);
  // Dispatcher: a lane of the session is gone.
  void LaneGone(Session& session) ABSL_LOCKS_EXCLUDED(mu_);
  // Dispatcher: destroys the sessions that have ended. Returns when to look again: the first moment
  // at which an invitation runs out.
  Instant Reap(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // Sessions that are not closed.
  uint32_t count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static uint64_t LaneBytes(const Session& session);
  Session* FindLocked(SessionId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t session_count_max_;
  const uint64_t lane_bytes_max_;

  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t lane_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_ordinal_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
