// One call context's session with one holder: its lane, and the handles of the resolved chunks.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/holders/holder_peer.h"
#include "client/holders/lane_opener.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/control.h"
#include "transport/fabric.h"

namespace ckv {

// Opens and keeps the session, and closes it when it fails. Belongs to one call context, so to one
// thread at a time. The options, table, peer and owner must outlive it.
class HolderLink {
 public:
  static constexpr size_t kResolveCountMax = kIdsPerCallMax;  // ids of one ResolveChunks

  // `owner` is the role of the link's lanes (RequestLane::BelongTo), or null.
  HolderLink(const LinkOptions* options, PeerTable* peers, HolderPeer* peer,
             const Geometry& geometry, std::string tenant, const ThreadRole* owner = nullptr);
  // Drops the lane and ends the session.
  ~HolderLink();
  HolderLink(const HolderLink&) = delete;
  HolderLink& operator=(const HolderLink&) = delete;

  bool is_up() const { return up_.lane != nullptr; }
  // Takes and drops the replies to requests that earlier calls gave up. The link must be up, and no
  // call may use it.
  void ReadLate();
  // Returns true if EnsureUp would return at once. The lane is then up and has a free slot, and no
  // later epoch than the session's is known.
  bool IsUsable();

  // Returns true if it is the link to this holder for this geometry and tenant.
  bool Serves(const HolderPeer* peer, const Geometry& geometry, std::string_view tenant) const {
    return peer_ == peer && tenant_ == tenant && geometry_ == geometry;
  }

  // Opens the session and its lane if they are not up. Opens them again if every slot of the lane
  // still waits for a reply. Also if the holder is known to be in a later epoch. If the lane is
  // usable, only checks it. If the holder does not answer at its last address, queries the
  // directory once for a new one. Waits at most connect_timeout.
  //   Unavailable         the holder does not answer, has no live lease, or no fabric reaches it.
  //   FailedPrecondition  the holder has another geometry or wire version.
  //   DeadlineExceeded, ResourceExhausted
  absl::Status EnsureUp(Instant deadline);

  // Drops the session, its handles and its lane. The next EnsureUp opens a new one.
  void Close();

  // Resolves the ids whose handles are not known. Call it between EnsureUp and Close.
  //   NotFound            the holder does not have one of them; names it. The others are kept.
  //   Aborted             handle_count_max handles are known. The session was closed, so that the
  //                       holder drops them too; EnsureUp opens a new one.
  absl::Status Resolve(std::span<const ChunkId> ids, Instant deadline);
  // Returns the handle, or null if it was not resolved in this session.
  const ResolvedHandle* Find(const ChunkId& id) const;

  HolderPeer& peer() const { return *peer_; }
  // Call the next three between EnsureUp and Close.
  RequestLane& lane() const { return *up_.lane; }
  SessionId session() const { return up_.session; }
  Epoch epoch() const { return up_.epoch; }
  // Returns a number that is different for every session of every link, and 0 before the first
  // session. Handles of another generation are not valid.
  uint64_t generation() const { return generation_; }
  uint64_t NextRequestId() { return ++last_request_id_; }

  // When a call last needed the link. The link's table sets it.
  Instant last_use() const { return last_use_; }
  void set_last_use(Instant now) { last_use_ = now; }

 private:
  absl::Status Open(Instant deadline);
  absl::Status OpenSession(Instant deadline);

  const LinkOptions* const options_;
  PeerTable* const peers_;
  HolderPeer* const peer_;
  const Geometry geometry_;
  const std::string tenant_;
  const ThreadRole* const owner_;

  std::shared_ptr<HolderControl> control_;  // the connection the session was opened over
  OpenedLane up_;                           // has no lane while the link is down
  Instant last_use_;
  uint64_t generation_ = 0;
  // Never restarts, so that a late reply of an earlier lane matches no request.
  uint64_t last_request_id_ = 0;
  absl::flat_hash_map<ChunkId, ResolvedHandle> handles_;
};

}  // namespace ckv
