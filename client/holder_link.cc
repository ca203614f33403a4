#include "client/holder_link.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// A holder ends a session whose lane is gone by itself; this only spares it the wait.
constexpr Duration kCloseTimeout = std::chrono::milliseconds(100);

}  // namespace

HolderLink::HolderLink(const LinkOptions* options, PeerTable* peers, HolderPeer* peer,
                       const Geometry& geometry, std::string tenant)
    : options_(options),
      peers_(peers),
      peer_(peer),
      geometry_(geometry),
      tenant_(std::move(tenant)) {}

HolderLink::~HolderLink() { Close(); }

absl::Status HolderLink::EnsureUp(Instant deadline) {
  if (lane_ != nullptr) {
    // Requests that were given up on keep their slots until their replies come; polling swallows
    // those. When no slot is left to post with, the replies are not coming.
    std::array<Completion, 16> late;
    while (lane_->in_flight() > 0 && lane_->Poll(late) > 0) continue;
    if (lane_->in_flight() < lane_->shape().slot_count && lane_->status().ok())
      return absl::OkStatus();
    Close();
  }
  return Open(std::min(deadline, options_->clock->Now() + options_->connect_timeout));
}

void HolderLink::Close() {
  if (lane_ == nullptr) return;
  if (!lane_->status().ok()) peer_->lane_broke.store(true, std::memory_order_relaxed);
  CloseSession();
  lane_.reset();
  handles_.clear();
  peer_->lane_count.fetch_sub(1, std::memory_order_relaxed);
}

void HolderLink::CloseSession() {
  // Over a broken lane there is nobody to tell, and the control plane would only time out.
  if (!lane_->status().ok()) return;
  control_->CloseSession(session_, options_->clock->Now() + kCloseTimeout).IgnoreError();
}

absl::Status HolderLink::Open(Instant deadline) {
  CKV_ASSIGN_OR_RETURN(control_, peers_->Connect(*peer_, deadline));
  absl::Status status = absl::UnavailableError("no fabric is configured");
  for (size_t first = 0; first < options_->fabrics.size();) {
    size_t taken = first;
    status = OpenOnce(*control_, first, deadline, &taken);
    if (status.ok()) {
      ++generation_;
      peer_->lane_count.fetch_add(1, std::memory_order_relaxed);
      peer_->lane_epoch.store(epoch_.value, std::memory_order_relaxed);
      peer_->lane_broke.store(false, std::memory_order_relaxed);
      peer_->fabric_kind.store(lane_->kind(), std::memory_order_relaxed);
      return status;
    }
    // The session was made but its lane did not come up: only a fabric further down can help.
    if (!absl::IsUnavailable(status) || taken == options_->fabrics.size()) break;
    first = taken + 1;
  }
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) peers_->Suspect(*peer_);
  return status;
}

absl::Status HolderLink::OpenOnce(HolderControl& control, size_t first, Instant deadline,
                                  size_t* taken) {
  const std::vector<Fabric*>& fabrics = options_->fabrics;
  SessionOffer offer;
  offer.wire_version = kWireVersion;
  offer.geometry = geometry_;
  offer.tenant = tenant_;
  offer.requester = options_->requester;
  offer.host_identity = options_->host_identity;
  offer.shape = options_->shape;
  std::vector<std::unique_ptr<Dialer>> dialers;
  absl::Status refused = absl::UnavailableError("no fabric is left to offer");
  for (size_t i = first; i < fabrics.size(); ++i) {
    auto dialer = fabrics[i]->Dial(options_->shape);
    if (!dialer.ok()) {
      refused = Annotate(dialer.status(), FabricName(fabrics[i]->kind()));
      continue;
    }
    offer.fabrics.push_back({fabrics[i]->kind(), {(*dialer)->offer()}});
    dialers.push_back(*std::move(dialer));
  }
  // From here on a failure is final, unless it is the chosen fabric's.
  *taken = fabrics.size();
  if (dialers.empty()) return refused;
  auto answer = control.OpenSession(offer, deadline);
  if (!answer.ok()) return Annotate(answer.status(), "opening a session");
  const auto chosen =
      std::find_if(offer.fabrics.begin(), offer.fabrics.end(),
                   [&](const FabricOffer& o) { return o.fabric == answer->fabric; });
  if (chosen == offer.fabrics.end() || answer->answers.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("opening a session: answered with %d lanes of %s, which was not offered",
                        answer->answers.size(), FabricName(answer->fabric)));
  }
  Dialer& dialer = *dialers[size_t(chosen - offer.fabrics.begin())];
  auto lane = dialer.Connect(answer->answers[0], deadline);
  if (!lane.ok()) {
    control.CloseSession(answer->session, options_->clock->Now() + kCloseTimeout).IgnoreError();
    for (size_t i = first; i < fabrics.size(); ++i) {
      if (fabrics[i]->kind() == answer->fabric) *taken = i;
    }
    return Annotate(lane.status(), absl::StrFormat("%s lane", FabricName(answer->fabric)));
  }
  lane_ = *std::move(lane);
  session_ = answer->session;
  epoch_ = answer->epoch;
  return absl::OkStatus();
}

absl::Status HolderLink::Resolve(std::span<const ChunkId> ids, Instant deadline) {
  std::vector<ChunkId> missing;
  for (const ChunkId& id : ids) {
    if (!handles_.contains(id)) missing.push_back(id);
  }
  if (missing.empty()) return absl::OkStatus();
  // Forgotten here only, they would stay in the holder's table, which has the same limit.
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
    auto resolved = control_->ResolveChunks(session_, batch, deadline);
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
