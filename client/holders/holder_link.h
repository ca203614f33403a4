// One engine's session with one holder: a lane, and the handles of the chunks it was asked for.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/control.h"
#include "client/holder_peer.h"
#include "client/lane_opener.h"
#include "proto/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

// Belongs to one engine, so to one thread at a time. The options, table and peer must outlive it.
class HolderLink {
 public:
  // Ids of one ResolveChunks: 4,096 x 34 bytes stay far below gRPC's 4 MiB a message.
  static constexpr size_t kResolveCountMax = 4096;

  HolderLink(const LinkOptions* options, PeerTable* peers, HolderPeer* peer,
             const Geometry& geometry, std::string tenant);
  // Drops the lane and ends the session.
  ~HolderLink();
  HolderLink(const HolderLink&) = delete;
  HolderLink& operator=(const HolderLink&) = delete;

  bool is_up() const { return up_.lane != nullptr; }

  bool Serves(const HolderPeer* peer, const Geometry& geometry, std::string_view tenant) const {
    return peer_ == peer && tenant_ == tenant && geometry_ == geometry;
  }

  // Makes the session and its lane if they are not up, or if no slot of the lane came back. What is
  // up costs a look. Waits connect_timeout at most.
  //   Unavailable         the holder does not answer, has no live lease, or no fabric reaches it.
  //   FailedPrecondition  another geometry or wire version.
  //   DeadlineExceeded, ResourceExhausted
  absl::Status EnsureUp(Instant deadline);

  // The next EnsureUp makes a new session: this one, its handles and its lane are gone.
  void Close();

  // Resolves the ids whose handles are not known. Between EnsureUp and Close.
  //   NotFound            the holder has not got one of them; says which, and the rest is kept.
  //   Aborted             handle_count_max are known: the session was closed, so that the holder
  //                       forgets its handles as well; EnsureUp makes a new one.
  absl::Status Resolve(std::span<const ChunkId> ids, Instant deadline);
  // Null if Resolve was not asked for it since the session was made.
  const ResolvedHandle* Find(const ChunkId& id) const;

  HolderPeer& peer() const { return *peer_; }
  // Between EnsureUp and Close.
  RequestLane& lane() const { return *up_.lane; }
  SessionId session() const { return up_.session; }
  Epoch epoch() const { return up_.epoch; }
  // Another for every session of every link; handles of another generation mean nothing. 0: none
  // was ever up.
  uint64_t generation() const { return generation_; }
  uint64_t NextRequestId() { return ++last_request_id_; }

  // When it was last asked to be up; kept by the link's table.
  Instant last_use() const { return last_use_; }
  void set_last_use(Instant now) { last_use_ = now; }

 private:
  absl::Status Open(Instant deadline);

  const LinkOptions* const options_;
  PeerTable* const peers_;
  HolderPeer* const peer_;
  const Geometry geometry_;
  const std::string tenant_;

  std::shared_ptr<HolderControl> control_;  // of the session
  OpenedLane up_;                           // without a lane: down
  Instant last_use_;
  uint64_t generation_ = 0;
  // Never starts over: a reply that a former lane left behind matches nothing.
  uint64_t last_request_id_ = 0;
  absl::flat_hash_map<ChunkId, ResolvedHandle> handles_;
};

}  // namespace ckv
