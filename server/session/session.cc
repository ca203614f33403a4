// Sessions, handles and lanes. The states of a session: Open makes it, with an invitation for each
// lane; Adopt counts a lane that opened; LaneGone counts one that ended; Close, or the end of the
// last lane, closes it; Reap frees it when it has no lanes, or when its invitations have expired.
// HandleTable is read without a lock: Assign writes the place first, and then publishes the count.

#include "server/session/session.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

// A place in one word, so that a reader sees all of it or none.
uint64_t Pack(ChunkLocator locator) { return uint64_t{locator.generation} << 32 | locator.slot; }
ChunkLocator Unpack(uint64_t place) {
  return {.slot = static_cast<uint32_t>(place), .generation = static_cast<uint32_t>(place >> 32)};
}

// Enough bits that a stale id is never valid for another session, nor predictable from another id.
SessionId RandomSessionId() {
  SessionId id;
  while (id.value == 0) id.value = RandomWord();
  return id;
}

static_assert(kLaneCountMax <= 256);
constexpr uint32_t kTagLaneBits = 8;

}  // namespace

HandleTable::~HandleTable() = default;

// Pairs with PublishedCount: a reader that sees the count sees the segment and the place under it.
void HandleTable::PublishCount(uint32_t count) noexcept {
  count_.store(count, std::memory_order_release);
}
uint32_t HandleTable::PublishedCount() const noexcept {
  return count_.load(std::memory_order_acquire);
}

uint32_t HandleTable::size() const noexcept { return PublishedCount(); }

std::optional<ChunkLocator> HandleTable::Lookup(ChunkHandle handle) const noexcept {
  if (handle.value == 0 || handle.value > PublishedCount()) return std::nullopt;
  const uint32_t index = handle.value - 1;
  const Segment& segment = *segments_[index / kSegmentSize];
  // A place is one word and independent of other data, so no order is needed beyond the count's.
  return Unpack(segment[index % kSegmentSize].load(std::memory_order_relaxed));
}

absl::StatusOr<ChunkHandle> HandleTable::Assign(const ChunkId& id, ChunkLocator locator) {
  const uint32_t count = PublishedCount();
  const auto known = by_id_.find(id);
  if (known == by_id_.end() && count == kSessionHandleCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("session: %d handles given out, limit reached", count));
  }
  const uint32_t index = known == by_id_.end() ? count : known->second.value - 1;
  std::unique_ptr<Segment>& segment = segments_[index / kSegmentSize];
  if (segment == nullptr) segment = std::make_unique<Segment>();
  (*segment)[index % kSegmentSize].store(Pack(locator), std::memory_order_relaxed);
  if (known != by_id_.end()) return known->second;
  const ChunkHandle handle = {index + 1};
  by_id_.emplace(id, handle);
  PublishCount(count + 1);
  return handle;
}

Session::Session(SessionId id_in, uint64_t ordinal_in, const SessionOffer& offer,
                 uint32_t lane_count_in, Epoch epoch_in)
    : id(id_in),
      ordinal(ordinal_in),
      geometry(offer.geometry),
      tenant(offer.tenant),
      requester(offer.requester),
      shape(offer.shape),
      lane_count(lane_count_in),
      epoch(epoch_in) {}

SessionTable::SessionTable(uint32_t session_count_max, uint64_t lane_bytes_max)
    : session_count_max_(session_count_max), lane_bytes_max_(lane_bytes_max) {}

uint64_t SessionTable::LaneBytes(const Session& session) {
  return uint64_t{session.lane_count} * session.shape.slot_count *
         (uint64_t{session.shape.request_bytes_max} + session.shape.reply_bytes_max);
}

Session* SessionTable::FindLocked(SessionId id) const {
  for (const std::unique_ptr<Session>& session : sessions_) {
    if (session->id == id && !session->closed()) return session.get();
  }
  return nullptr;
}

absl::StatusOr<SessionTable::Opened> SessionTable::Open(const SessionOffer& offer,
                                                        uint32_t lane_count, Epoch epoch,
                                                        Instant invited_until) {
  const SessionId id = RandomSessionId();
  absl::MutexLock lock(&mu_);
  if (sessions_.size() >= session_count_max_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sessions are open, limit %d", sessions_.size(), session_count_max_));
  }
  // 2^64 ids and at most a few thousand sessions: a collision means a broken random device.
  if (FindLocked(id) != nullptr) return absl::InternalError("session ids repeat");
  auto session = std::make_unique<Session>(id, ++last_ordinal_, offer, lane_count, epoch);
  const uint64_t bytes = LaneBytes(*session);
  if (bytes > lane_bytes_max_ - lane_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the lanes need %d bytes of slots, %d of %d are free: offer fewer lanes, "
                        "or smaller slots",
                        bytes, lane_bytes_max_ - lane_bytes_, lane_bytes_max_));
  }
  lane_bytes_ += bytes;
  session->invited_until_ = invited_until;
  sessions_.push_back(std::move(session));
  return Opened{.id = id, .ordinal = last_ordinal_};
}

absl::Status SessionTable::Close(SessionId id) {
  absl::MutexLock lock(&mu_);
  Session* session = FindLocked(id);
  if (session == nullptr) return absl::NotFoundError("no such session");
  session->Close();
  return absl::OkStatus();
}

absl::StatusOr<Geometry> SessionTable::GeometryOf(SessionId id) const {
  absl::MutexLock lock(&mu_);
  const Session* session = FindLocked(id);
  if (session == nullptr) return absl::NotFoundError("no such session");
  return session->geometry;
}

absl::StatusOr<std::string> SessionTable::TenantOf(SessionId id) const {
  absl::MutexLock lock(&mu_);
  const Session* session = FindLocked(id);
  if (session == nullptr) return absl::NotFoundError("no such session");
  return session->tenant;
}

absl::StatusOr<std::vector<ChunkHandle>> SessionTable::AssignHandles(SessionId id,
                                                                     std::span<const Found> found) {
  std::vector<ChunkHandle> handles;
  handles.reserve(found.size());
  absl::MutexLock lock(&mu_);
  Session* session = FindLocked(id);
  if (session == nullptr) return absl::NotFoundError("no such session");
  for (const Found& chunk : found) {
    const absl::StatusOr<ChunkHandle> handle = session->handles.Assign(chunk.id, chunk.locator);
    if (!handle.ok()) return handle.status();
    handles.push_back(*handle);
  }
  return handles;
}

uint64_t SessionTable::LaneTag(const Opened& session, uint32_t lane) {
  return session.ordinal << kTagLaneBits | lane;
}

Session* SessionTable::Adopt(uint64_t tag) {
  absl::MutexLock lock(&mu_);
  for (const std::unique_ptr<Session>& session : sessions_) {
    if (session->ordinal != tag >> kTagLaneBits) continue;
    if (session->closed()) return nullptr;
    ++session->lanes_accepted_;
    ++session->lanes_live_;
    return session.get();
  }
  return nullptr;
}

void SessionTable::LaneGone(Session& session) {
  absl::MutexLock lock(&mu_);
  --session.lanes_live_;
}

Instant SessionTable::Reap(Instant now) {
  absl::MutexLock lock(&mu_);
  Instant next = kInstantMax;
  std::erase_if(sessions_, [&](const std::unique_ptr<Session>& session) {
    mu_.AssertHeld();
    if (session->lanes_live_ != 0) return false;
    const bool all_came = session->lanes_accepted_ == session->lane_count;
    if (!session->closed() && !all_came && now < session->invited_until_) {
      next = std::min(next, session->invited_until_);
      return false;
    }
    lane_bytes_ -= LaneBytes(*session);
    return true;
  });
  return next;
}

uint32_t SessionTable::count() const {
  absl::MutexLock lock(&mu_);
  uint32_t count = 0;
  for (const std::unique_ptr<Session>& session : sessions_) count += session->closed() ? 0 : 1;
  return count;
}

}  // namespace ckv
