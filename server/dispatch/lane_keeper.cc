// The lanes of the dispatcher, on its thread. A lane's states:
//   accepted  Accept takes it from a listener. Add gives it to its session, or destroys it: the
//             session is closed, or kernels do not reach the lane's slots
//   in use    LaneSet polls it
//   broken    Break, for a fault or a closed session: cancels its side work, drops its requests
//   gone      DropBroken destroys it once nothing uses it, and its session's record after the
//             last lane

#include "server/dispatch/lane_keeper.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "proto/base/log.h"

namespace ckv {
namespace {

// How often the listeners are polled while the thread is busy. A new lane waits that long at most,
// and the calls (2 us for tcp) stay below 2 % of the thread.
constexpr Duration kAcceptInterval = std::chrono::microseconds(200);

// A lane without an event (loopback) is polled at this interval when idle: 1 % of a core.
constexpr int kPollOnlySleepMs = 1;

}  // namespace

LaneKeeper::LaneKeeper(LaneKeeperParts parts) : parts_(std::move(parts)) {}

bool LaneKeeper::WatchListeners() {
  return std::all_of(parts_.listeners.begin(), parts_.listeners.end(), [this](Listener* listener) {
    return listener->event_fd() < 0 || parts_.lanes->Watch(listener->event_fd());
  });
}

void LaneKeeper::BreakClosed(Instant now) {
  for (const std::unique_ptr<SessionLanes>& session : parts_.lanes->sessions()) {
    if (!session->session->closed()) continue;
    for (const std::unique_ptr<HolderLane>& lane : session->lanes) {
      Break(*lane, absl::CancelledError("session closed"));
    }
  }
  DropBroken(now);
  next_reap_ = parts_.sessions->Reap(now);
}

void LaneKeeper::Accept(Instant now) {
  next_accept_ = now + kAcceptInterval;
  for (Listener* listener : parts_.listeners) {
    while (std::optional<AcceptedLane> accepted = listener->Accept()) {
      Add(*std::move(accepted), now);
    }
  }
}

void LaneKeeper::Add(AcceptedLane accepted, Instant now) {
  Session* session = parts_.sessions->Adopt(accepted.tag);
  if (session == nullptr) return;  // closed meanwhile; `accepted` destroys the lane
  SessionLanes& owner = LanesOf(session);
  const uint32_t slot_count = accepted.lane->shape().slot_count;
  if (!Reaches(*accepted.lane, *session)) {
    parts_.sessions->LaneGone(*session);
    any_broken_ = true;  // as below
    return;
  }
  if (!parts_.lanes->Add(owner, std::move(accepted.lane), now)) {
    Log().error("lane of {} dropped: epoll: {}", session->requester, std::strerror(errno));
    parts_.sessions->LaneGone(*session);
    any_broken_ = true;  // the session may have no other lane
    return;
  }
  parts_.queues->Grow(owner, slot_count);
  count_of(owner.lanes.back()->lane->kind()).fetch_add(1, std::memory_order_relaxed);
}

bool LaneKeeper::Reaches(const ServeLane& lane, const Session& session) const {
  if (parts_.chunk_memory == MemoryKind::kHost || lane.slot_type() == RegionType::kPinned)
    return true;
  Log().error("{} lane of {} dropped: its slots are in {} memory, which kernels of {} do not reach",
              FabricName(lane.kind()), session.requester, RegionTypeName(lane.slot_type()),
              parts_.backend->kernel_target());
  return false;
}

SessionLanes& LaneKeeper::LanesOf(Session* session) {
  if (SessionLanes* known = parts_.lanes->Find(session); known != nullptr) return *known;
  auto added = std::make_unique<SessionLanes>();
  added->session = session;
  parts_.queues->AddSession(*added);
  parts_.lanes->sessions().push_back(std::move(added));
  return *parts_.lanes->sessions().back();
}

void LaneKeeper::Break(HolderLane& lane, const absl::Status& why) {
  if (lane.broken) return;
  parts_.lanes->Break(lane);
  any_broken_ = true;
  parts_.side_work->Cancel(lane);
  parts_.queues->DropLane(lane);
  const bool peer_is_wrong = absl::IsInvalidArgument(why) || absl::IsFailedPrecondition(why);
  Log().log(peer_is_wrong ? spdlog::level::warn : spdlog::level::debug, "{} lane of {} closed: {}",
            FabricName(lane.lane->kind()), lane.owner->session->requester,
            std::string(why.message()));
}

void LaneKeeper::BreakFor(const ReadyRequest& ready, const absl::Status& why) {
  const ScopedTrace scope(TraceOf(ready.header));
  Break(*ready.from, why);
}

void LaneKeeper::DropSomeBroken(Instant now) {
  any_broken_ = false;
  for (const std::unique_ptr<SessionLanes>& session : parts_.lanes->sessions()) {
    std::erase_if(session->lanes, [this](const std::unique_ptr<HolderLane>& lane) {
      if (!lane->broken) return false;
      if (lane->busy != 0) {
        any_broken_ = true;
        return false;
      }
      Drop(*lane);
      return true;
    });
  }
  std::erase_if(parts_.lanes->sessions(), [this](const std::unique_ptr<SessionLanes>& session) {
    if (!session->lanes.empty()) return false;
    parts_.queues->RemoveSession(*session);
    return true;
  });
  next_reap_ = parts_.sessions->Reap(now);
}

void LaneKeeper::Drop(HolderLane& lane) {
  const ServeLane* const gone = lane.lane.get();
  count_of(gone->kind()).fetch_sub(1, std::memory_order_relaxed);
  parts_.lanes->Destroy(lane);
  parts_.push_server->Forget(gone);
  parts_.sessions->LaneGone(*lane.owner->session);
}

void LaneKeeper::DropAll() {
  for (const std::unique_ptr<SessionLanes>& session : parts_.lanes->sessions()) {
    for (const std::unique_ptr<HolderLane>& lane : session->lanes) {
      if (!lane->broken) parts_.lanes->Break(*lane);
      Drop(*lane);
    }
  }
  parts_.lanes->sessions().clear();
}

int LaneKeeper::SleepMilliseconds(Instant now, Duration sleep_max) const {
  if (parts_.lanes->must_poll()) return kPollOnlySleepMs;
  for (const Listener* listener : parts_.listeners) {
    if (listener->event_fd() < 0) return kPollOnlySleepMs;
  }
  const Duration until_reap = next_reap_ - now;
  const Duration sleep = std::clamp(until_reap, Duration(0), sleep_max);
  return static_cast<int>(sleep.count() / 1'000'000 + 1);
}

}  // namespace ckv
