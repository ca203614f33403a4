// One call context's session with one holder: its lane, and the handles of the resolved chunks.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/holders/holder_peer.h"
#include "client/holders/lane_opener.h"
#include "client/holders/link_session.h"
#include "client/holders/session_opener.h"
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

  bool is_up() const { return up_.is_up(); }
  // Takes and drops the replies to requests that earlier calls gave up. The link must be up, and no
  // call may use it.
  void ReadLate();
  // Returns true if EnsureUp would return at once. The lane is then up and has a free slot, and no
  // later epoch than the session's is known. Takes the session that OpenLater began, if it is open.
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

  // Begins to open a session on the opener's thread, if none is being opened, and to resolve there
  // what `ids` returns. Drops the one that is up. Call it if the link is not usable and replicas
  // are. If the holder is not reached, calls avoid it. Returns false if the opener can take no
  // order.
  bool OpenLater(absl::FunctionRef<std::vector<ChunkId>()> ids);
  // Returns false if OpenLater cannot help: there is no opener. Or the last session was refused for
  // a reason that EnsureUp must return, or can remove.
  bool may_open_later() const { return options_->opener != nullptr && !must_open_here_; }

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
  RequestLane& lane() const { return *up_.opened.lane; }
  SessionId session() const { return up_.opened.session; }
  Epoch epoch() const { return up_.opened.epoch; }
  // Returns a number that is different for every session of every link, and 0 before the first
  // session. Handles of another generation are not valid.
  uint64_t generation() const { return generation_; }
  uint64_t NextRequestId() { return ++last_request_id_; }

  // When a call last needed the link, and the attempt that did, as its table counts them. The table
  // sets both.
  Instant last_use() const { return last_use_; }
  uint64_t last_attempt() const { return last_attempt_; }
  void set_last_use(Instant now, uint64_t attempt) {
    last_use_ = now;
    last_attempt_ = attempt;
  }

 private:
  // Makes a session the link's.
  void Adopt(LinkSession session);
  // Takes what OpenLater began, if it has ended.
  void TakeOpening();
  // Makes the link down, and returns the session that was up, to be closed.
  LinkSession Release();

  const LinkOptions* const options_;
  PeerTable* const peers_;
  HolderPeer* const peer_;
  const Geometry geometry_;
  const std::string tenant_;
  const ThreadRole* const owner_;

  LinkSession up_;
  std::shared_ptr<SessionOpening> opening_;  // begun by OpenLater, until it is taken
  bool must_open_here_ = false;              // may_open_later
  Instant last_use_;
  uint64_t last_attempt_ = 0;
  uint64_t generation_ = 0;
  // Never restarts, so that a late reply of an earlier lane matches no request.
  uint64_t last_request_id_ = 0;
};

}  // namespace ckv
