// The sessions of a holder: what each one may request, its chunk handles and its lanes.

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
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/memory/chunk_table.h"
#include "transport/control.h"

namespace ckv {

// A session needs one handle per chunk: as many as the largest corpus has chunks.
inline constexpr uint32_t kSessionHandleCountMax = kCorpusChunkCountMax;

// The handles of one session: small numbers, starting at 1, that identify its chunks in requests.
// One thread at a time calls Assign (under the session table's mutex); the dispatcher's thread
// calls Lookup meanwhile, without a lock.
class HandleTable {
 public:
  HandleTable() = default;
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Returns the chunk's location, or nothing if the handle was never assigned. The chunk may have
  // been dropped since; pinning it detects that.
  std::optional<ChunkLocator> Lookup(ChunkHandle handle) const noexcept;

  // Returns the handle of `id`, a new one if it has none. From now on the handle leads to
  // `locator`. A chunk that was dropped and put again keeps its handle, because the same id means
  // the same rows.
  //   ResourceExhausted   kSessionHandleCountMax handles were given out.
  absl::StatusOr<ChunkHandle> Assign(const ChunkId& id, ChunkLocator locator);

  // Returns how many handles were assigned.
  uint32_t size() const noexcept;

 private:
  // Locations are stored in segments, so growing never moves one that a reader may be reading.
  static constexpr uint32_t kSegmentSize = 4096;
  static constexpr uint32_t kSegmentCount = kSessionHandleCountMax / kSegmentSize;
  using Segment = std::array<std::atomic<uint64_t>, kSegmentSize>;

  void PublishCount(uint32_t count) noexcept;
  uint32_t PublishedCount() const noexcept;

  std::array<std::unique_ptr<Segment>, kSegmentCount> segments_;
  std::atomic<uint32_t> count_{0};
  absl::flat_hash_map<ChunkId, ChunkHandle> by_id_;
};

// One requester's session. Any thread that received the session may read the constants. The session
// exists until SessionTable::Reap, which only the dispatcher calls, destroys it.
class Session {
 public:
  Session(SessionId id, uint64_t ordinal, const SessionOffer& offer, uint32_t lane_count,
          Epoch epoch);

  const SessionId id;
  const uint64_t ordinal;  // the session's number in this process; its lanes' tags carry it
  const Geometry geometry;
  const std::string tenant;
  const std::string requester;
  const LaneShape shape;
  const uint32_t lane_count;
  const Epoch epoch;  // the epoch of the lease under which the session was opened

  HandleTable handles;

  // Returns true if the session was closed: the dispatcher must then drop its lanes.
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

// Thread-safe. A session ends when it has no live lane and can get no more. It can get none once it
// is closed, all its lanes have come up, or its invitations have expired. Reap then destroys it.
class SessionTable {
 public:
  // `lane_bytes_max` is the limit for the slots of all lanes of all sessions together.
  SessionTable(uint32_t session_count_max, uint64_t lane_bytes_max);
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  struct Opened {
    SessionId id;
    uint64_t ordinal = 0;
  };
  // Opens a session with a random id. Its `lane_count` lanes must come up before `invited_until`.
  //   ResourceExhausted   session_count_max sessions exist, or its lanes do not fit lane_bytes_max.
  absl::StatusOr<Opened> Open(const SessionOffer& offer, uint32_t lane_count, Epoch epoch,
                              Instant invited_until) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the session, which can no longer be found. The caller must wake the dispatcher, which
  // drops the lanes.
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
  // Gives every chunk in `found` a handle, in order.
  //   NotFound            no such session.
  //   ResourceExhausted   kSessionHandleCountMax handles were given out.
  absl::StatusOr<std::vector<ChunkHandle>> AssignHandles(SessionId id, std::span<const Found> found)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the tag for a lane's invitation (Listener::Invite), by which Adopt finds the session.
  static uint64_t LaneTag(const Opened& session, uint32_t lane);

  // Called by the dispatcher when a lane has come up. Counts the lane and returns its session.
  // Returns null if the session is closed or gone: drop the lane.
  Session* Adopt(uint64_t tag) ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the dispatcher when it has destroyed a lane that Adopt counted.
  void LaneGone(Session& session) ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the dispatcher: destroys the sessions that have ended. Returns the time at which the
  // next invitation expires: call Reap again then.
  Instant Reap(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of sessions that are not closed.
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
