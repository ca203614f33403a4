#include "client/holders/holder_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/holders/fabric_choice.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

std::atomic<uint64_t> last_generation{0};

}  // namespace

HolderLink::HolderLink(const LinkOptions* options, PeerTable* peers, HolderPeer* peer,
                       const Geometry& geometry, std::string tenant, const ThreadRole* owner)
    : options_(options),
      peers_(peers),
      peer_(peer),
      geometry_(geometry),
      tenant_(std::move(tenant)),
      owner_(owner) {}

HolderLink::~HolderLink() { Close(); }

void HolderLink::ReadLate() {
  RequestLane& lane = *up_.lane;
  std::array<Completion, 16> late;
  while (lane.in_flight() > 0 && lane.Poll(late) > 0) continue;
}

bool HolderLink::IsUsable() {
  if (!is_up()) return false;
  // Requests that were given up on keep their slots until their replies arrive. If no slot is left
  // to post with, the replies are not expected any more.
  ReadLate();
  RequestLane& lane = *up_.lane;
  return lane.in_flight() < lane.shape().slot_count && lane.status().ok() &&
         up_.epoch.value >= peer_->epoch.load(std::memory_order_relaxed);
}

absl::Status HolderLink::EnsureUp(Instant deadline) {
  if (IsUsable()) return absl::OkStatus();
  Close();
  return Open(std::min(deadline, options_->clock->Now() + options_->connect_timeout));
}

void HolderLink::Close() {
  if (!is_up()) return;
  if (!up_.lane->status().ok()) peer_->lane_broke.store(true, std::memory_order_relaxed);
  CloseLane(*control_, *options_->clock, up_);
  handles_.clear();
  peer_->lane_count.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status HolderLink::Open(Instant deadline) {
  CKV_ASSIGN_OR_RETURN(control_, peers_->Connect(*peer_, deadline));
  absl::Status status = OpenSession(deadline);
  if (!absl::IsUnavailable(status)) return status;
  // Another incarnation of the holder may have another address.
  auto elsewhere = peers_->Connect(*peer_, deadline);
  if (!elsewhere.ok() || *elsewhere == control_) return status;
  control_ = *std::move(elsewhere);
  return OpenSession(deadline);
}

absl::Status HolderLink::OpenSession(Instant deadline) {
  const LaneRequest request = {options_, &geometry_, tenant_, control_.get(), deadline};
  auto opened = OpenChosenLane(request, *peer_);
  if (!opened.ok()) {
    if (absl::IsUnavailable(opened.status()) || absl::IsDeadlineExceeded(opened.status())) {
      peers_->Suspect(*peer_);
      peer_->connection.NoteReach(options_->clock->Now());
    }
    return opened.status();
  }
  peer_->connection.NoteReach(std::nullopt);
  up_ = *std::move(opened);
  up_.lane->BelongTo(owner_);
  generation_ = last_generation.fetch_add(1, std::memory_order_relaxed) + 1;
  peer_->lane_count.fetch_add(1, std::memory_order_relaxed);
  peer_->lane_epoch.store(up_.epoch.value, std::memory_order_relaxed);
  peer_->epoch.store(up_.epoch.value, std::memory_order_relaxed);
  peer_->lane_broke.store(false, std::memory_order_relaxed);
  peer_->fabric_kind.store(up_.lane->kind(), std::memory_order_relaxed);
  peers_->NoteHost(*peer_, up_.host);
  peers_->Meet(*peer_, up_.epoch, deadline);
  return absl::OkStatus();
}

absl::Status HolderLink::Resolve(std::span<const ChunkId> ids, Instant deadline) {
  std::vector<ChunkId> missing;
  for (const ChunkId& id : ids) {
    if (!handles_.contains(id)) missing.push_back(id);
  }
  if (missing.empty()) return absl::OkStatus();
  // If this side alone forgot them, they would stay in the holder's table, which has the same
  // limit.
  if (!handles_.empty() && handles_.size() + missing.size() > options_->handle_count_max) {
    const size_t known = handles_.size();
    Close();
    return absl::AbortedError(
        absl::StrFormat("resolving chunks: %d handles are known and %d more do not fit the session",
                        known, missing.size()));
  }
  std::optional<ChunkId> absent;
  for (size_t begin = 0; begin < missing.size(); begin += kResolveCountMax) {
    const auto batch = std::span<const ChunkId>(missing).subspan(
        begin, std::min(kResolveCountMax, missing.size() - begin));
    auto resolved = control_->ResolveChunks(up_.session, batch, deadline);
    if (!resolved.ok()) return Annotate(resolved.status(), "resolving chunks");
    if (resolved->size() != batch.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("resolving chunks: %d answers to %d ids",
                                                        resolved->size(), batch.size()));
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      if ((*resolved)[i]) {
        handles_.emplace(batch[i], *(*resolved)[i]);
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

const ResolvedHandle* HolderLink::Find(const ChunkId& id) const {
  const auto it = handles_.find(id);
  return it == handles_.end() ? nullptr : &it->second;
}

}  // namespace ckv
