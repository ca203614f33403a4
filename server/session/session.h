// The sessions of a holder: what each may ask for, its chunk handles, and the lanes it has.

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
#include "client/holders/control.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "store/memory/chunk_table.h"

namespace ckv {

// A session needs one handle per chunk: as many as the largest corpus has chunks.
inline constexpr uint32_t kSessionHandleCountMax = kCorpusChunkCountMax;

// The handles of one session: small numbers, from 1, that stand for its chunks in requests. One
// thread at a time calls Assign (under the session table's mutex); the dispatcher's thread calls
// Lookup meanwhile, without a lock.
class HandleTable {
 public:
  HandleTable() = default;
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // The chunk's place, or nothing if the handle was never given out. The chunk may have been
  // dropped since: pinning it says so.
  std::optional<ChunkLocator> Lookup(ChunkHandle handle) const noexcept;

  // The handle of `id`, a new one if it has none; from now on it leads to `locator`. A chunk that
  // was dropped and put again keeps its handle, since the same id means the same rows.
  //   ResourceExhausted   kSessionHandleCountMax handles were given out.
  absl::StatusOr<ChunkHandle> Assign(const ChunkId& id, ChunkLocator locator);

  // Handles given out.
  uint32_t size() const noexcept;

 private:
  // Places are in segments so that growing never moves one that a reader may be looking at.
  static constexpr uint32_t kSegmentSize = 4096;
  static constexpr uint32_t kSegmentCount = kSessionHandleCountMax / kSegmentSize;
  using Segment = std::array<std::atomic<uint64_t>, kSegmentSize>;

  void PublishCount(uint32_t count) noexcept;
  uint32_t PublishedCount() const noexcept;

  std::array<std::unique_ptr<Segment>, kSegmentCount> segments_;
  std::atomic<uint32_t> count_{0};
  absl::flat_hash_map<ChunkId, ChunkHandle> by_id_;
};

// One requester's session. The constants may be read by any thread that was handed the session. The
// session lives until SessionTable::Reap destroys it, which only the dispatcher calls.
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
  const uint16_t wire_version;  // the version of every frame
  const uint32_t lane_count;
  const Epoch epoch;  // the epoch of the lease under which the session was opened

  HandleTable handles;

  // Whether the session was closed, so that the dispatcher must drop its lanes.
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

// Thread-safe. A session ends when it has no live lane and none can come any more. That is so if it
// was closed, if all its lanes came up before, or if its invitations expired. Reap destroys it
// then.
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
  // Opens a session with a random id. Its `lane_count` lanes may come up until `invited_until`.
  //   ResourceExhausted   session_count_max sessions exist, or its lanes do not fit lane_bytes_max.
  absl::StatusOr<Opened> Open(const SessionOffer& offer, uint32_t lane_count, Epoch epoch,
                              Instant invited_until) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the session: it is not found from here on. Wake the dispatcher, which drops its lanes.
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

  // The tag for a lane's invitation (Listener::Invite), from which Adopt finds the session.
  static uint64_t LaneTag(const Opened& session, uint32_t lane);

  // Called by the dispatcher when a lane came up. Returns its session and counts the lane, or null
  // if the session is closed or gone: drop the lane.
  Session* Adopt(uint64_t tag) ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the dispatcher when it has destroyed a lane that Adopt counted.
  void LaneGone(Session& session) ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the dispatcher: destroys the sessions that have ended. Returns the time at which the
  // next invitation expires, to be called again then.
  Instant Reap(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // The number of sessions that are not closed.
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
