#include "client/holders/link_session.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/holders/fabric_choice.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status OpenOver(const LinkTarget& target, Instant deadline, LinkSession& session) {
  HolderPeer& peer = *target.peer;
  const LaneRequest request = {target.options, target.geometry, target.tenant,
                               session.control.get(), deadline};
  auto opened = OpenChosenLane(request, peer);
  if (!opened.ok()) {
    if (absl::IsUnavailable(opened.status()) || absl::IsDeadlineExceeded(opened.status())) {
      target.peers->Suspect(peer);
      peer.connection.NoteReach(target.options->clock->Now());
    }
    return opened.status();
  }
  peer.connection.NoteReach(std::nullopt);
  peer.lane_broke.store(false, std::memory_order_relaxed);
  session.opened = *std::move(opened);
  const OpenedLane& up = session.opened;
  peer.epoch.store(up.epoch.value, std::memory_order_relaxed);
  peer.fabric_kind.store(up.lane->kind(), std::memory_order_relaxed);
  target.peers->NoteHost(peer, up.host);
  target.peers->Meet(peer, up.epoch, deadline);
  return absl::OkStatus();
}

}  // namespace

void LinkSession::Close(Clock& clock) {
  if (is_up()) CloseLane(*control, clock, opened);
  handles.clear();
}

absl::StatusOr<LinkSession> OpenLinkSession(const LinkTarget& target, Instant deadline) {
  LinkSession session;
  CKV_ASSIGN_OR_RETURN(session.control, target.peers->Connect(*target.peer, deadline));
  absl::Status status = OpenOver(target, deadline, session);
  if (absl::IsUnavailable(status)) {
    // Another incarnation of the holder may have another address.
    auto elsewhere = target.peers->Connect(*target.peer, deadline);
    if (!elsewhere.ok() || *elsewhere == session.control) return status;
    session.control = *std::move(elsewhere);
    status = OpenOver(target, deadline, session);
  }
  if (!status.ok()) return status;
  return session;
}

absl::Status ResolveIn(LinkSession& session, std::span<const ChunkId> ids, Instant deadline) {
  std::vector<ChunkId> missing;
  for (const ChunkId& id : ids) {
    if (!session.handles.contains(id)) missing.push_back(id);
  }
  std::optional<ChunkId> absent;
  for (size_t begin = 0; begin < missing.size(); begin += kIdsPerCallMax) {
    const auto batch = std::span<const ChunkId>(missing).subspan(
        begin, std::min(kIdsPerCallMax, missing.size() - begin));
    auto resolved = session.control->ResolveChunks(session.opened.session, batch, deadline);
    if (!resolved.ok()) return Annotate(resolved.status(), "resolving chunks");
    if (resolved->size() != batch.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("resolving chunks: %d answers to %d ids",
                                                        resolved->size(), batch.size()));
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      if ((*resolved)[i]) {
        session.handles.emplace(batch[i], *(*resolved)[i]);
      } else if (!absent) {
        absent = batch[i];
      }
    }
  }
  if (absent) {
    return absl::NotFoundError(absl::StrFormat("does not have chunk %s", absent->ToHex()));
  }
  return absl::OkStatus();
}

}  // namespace ckv
