// A session of a link: opened in one step, and its chunks resolved.

#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/holders/holder_peer.h"
#include "client/holders/lane_opener.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/control.h"

namespace ckv {

// The session with its lane, and the handles that were resolved in it.
struct LinkSession {
  std::shared_ptr<HolderControl> control;  // the connection it was opened over
  OpenedLane opened;                       // has no lane if there is no session
  absl::flat_hash_map<ChunkId, ResolvedHandle> handles;

  bool is_up() const { return opened.lane != nullptr; }
  // Drops the lane and ends the session, if there is one. If the lane is broken, the holder is not
  // notified.
  void Close(Clock& clock);
};

// Whom a session is opened with. Borrows everything.
struct LinkTarget {
  const LinkOptions* options;
  PeerTable* peers;
  HolderPeer* peer;
  const Geometry* geometry;
  std::string_view tenant;
};

// Opens a session and its lane. If the holder does not answer at its last address, queries the
// directory once for a new one. Any thread may call it.
//   as HolderLink::EnsureUp
absl::StatusOr<LinkSession> OpenLinkSession(const LinkTarget& target, Instant deadline);

// Resolves those of `ids` that have no handle yet, in calls of kIdsPerCallMax.
//   NotFound            the holder does not have one of them; names it. The others are kept.
//   InvalidArgument     the holder's answer is malformed.
//   otherwise           as HolderControl::ResolveChunks
absl::Status ResolveIn(LinkSession& session, std::span<const ChunkId> ids, Instant deadline);

}  // namespace ckv
