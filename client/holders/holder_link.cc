#include "client/holders/holder_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "absl/strings/str_format.h"
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

HolderLink::~HolderLink() {
  if (opening_ != nullptr) opening_->Abandon();
  Close();
}

void HolderLink::ReadLate() {
  RequestLane& to = lane();
  std::array<Completion, 16> late;
  while (to.in_flight() > 0 && to.Poll(late) > 0) continue;
}

bool HolderLink::IsUsable() {
  if (opening_ != nullptr) TakeOpening();
  if (!is_up()) return false;
  // Requests that were given up on keep their slots until their replies arrive. If no slot is left
  // to post with, the replies are not expected any more.
  ReadLate();
  return lane().in_flight() < lane().shape().slot_count && lane().status().ok() &&
         epoch().value >= peer_->epoch.load(std::memory_order_relaxed);
}

absl::Status HolderLink::EnsureUp(Instant deadline) {
  if (IsUsable()) return absl::OkStatus();
  deadline = std::min(deadline, options_->clock->Now() + options_->connect_timeout);
  if (opening_ != nullptr && opening_->AwaitIfRunning(deadline) && IsUsable())
    return absl::OkStatus();
  if (opening_ != nullptr) std::exchange(opening_, nullptr)->Abandon();
  must_open_here_ = false;
  Close();
  CKV_ASSIGN_OR_RETURN(LinkSession session,
                       OpenLinkSession({options_, peers_, peer_, &geometry_, tenant_}, deadline));
  Adopt(std::move(session));
  return absl::OkStatus();
}

bool HolderLink::OpenLater(absl::FunctionRef<std::vector<ChunkId>()> ids) {
  if (opening_ != nullptr) return true;
  if (!options_->opener->IsReady()) return false;
  opening_ = options_->opener->Begin(
      {options_, peers_, peer_, geometry_, tenant_, ids(), /*old=*/Release()});
  last_use_ = options_->clock->Now();  // an idle link is closed
  return opening_ != nullptr;
}

void HolderLink::TakeOpening() {
  auto opened = opening_->Take();
  if (!opened) return;
  opening_.reset();
  if (!opened->ok()) {
    // If the holder was not reached, calls avoid it, and the thread tries again after that.
    must_open_here_ =
        !absl::IsUnavailable(opened->status()) && !absl::IsDeadlineExceeded(opened->status());
    return;
  }
  Close();
  Adopt(**std::move(opened));
}

void HolderLink::Adopt(LinkSession session) {
  up_ = std::move(session);
  lane().BelongTo(owner_);
  generation_ = last_generation.fetch_add(1, std::memory_order_relaxed) + 1;
  peer_->lane_count.fetch_add(1, std::memory_order_relaxed);
  peer_->lane_epoch.store(epoch().value, std::memory_order_relaxed);
  peer_->lane_broke.store(false, std::memory_order_relaxed);
}

LinkSession HolderLink::Release() {
  if (is_up()) {
    // A lane of an earlier epoch than another link's says nothing of the holder now.
    if (!lane().status().ok() &&
        epoch().value >= peer_->lane_epoch.load(std::memory_order_relaxed)) {
      peer_->lane_broke.store(true, std::memory_order_relaxed);
    }
    lane().BelongTo(nullptr);
    peer_->lane_count.fetch_sub(1, std::memory_order_relaxed);
  }
  return std::exchange(up_, LinkSession());
}

void HolderLink::Close() { Release().Close(*options_->clock); }

absl::Status HolderLink::Resolve(std::span<const ChunkId> ids, Instant deadline) {
  const auto missing = static_cast<size_t>(std::count_if(
      ids.begin(), ids.end(), [&](const ChunkId& id) { return !up_.handles.contains(id); }));
  // If this side alone forgot them, they would stay in the holder's table, which has the same
  // limit.
  const size_t known = up_.handles.size();
  if (known > 0 && missing > 0 && known + missing > options_->handle_count_max) {
    Close();
    return absl::AbortedError(
        absl::StrFormat("resolving chunks: %d handles are known and %d more do not fit the session",
                        known, missing));
  }
  return ResolveIn(up_, ids, deadline);
}

const ResolvedHandle* HolderLink::Find(const ChunkId& id) const {
  const auto it = up_.handles.find(id);
  return it == up_.handles.end() ? nullptr : &it->second;
}

}  // namespace ckv
