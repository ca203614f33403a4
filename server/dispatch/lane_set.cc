// The lanes that the dispatcher's thread polls. A lane's states:
//   hot     in hot_, and polled by each Poll. Quiet for kQuietMax, or armed by Arm: cold
//   cold    armed, with its event in the epoll set. Its event makes it hot, in Wait or, on a busy
//           thread, in the look that Poll takes each kColdLookInterval
//   broken  Break, from both: neither polled nor watched, until Destroy

#include "server/dispatch/lane_set.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

constexpr int kEventCountMax = 64;  // events taken at once; the next call takes the rest

bool WatchFor(int epoll_fd, int fd, HolderLane* lane) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = lane;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LaneSet>> LaneSet::Create() {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd >= 0) return std::unique_ptr<LaneSet>(new LaneSet(epoll_fd));
  return absl::ResourceExhaustedError(
      absl::StrFormat("dispatcher: no event descriptor: %s", std::strerror(errno)));
}

LaneSet::~LaneSet() { close(epoll_fd_); }

bool LaneSet::Watch(int fd) { return WatchFor(epoll_fd_, fd, nullptr); }

bool LaneSet::Add(SessionLanes& owner, std::unique_ptr<ServeLane> lane, Instant now) {
  role_.ClaimOrAssertHeld();
  auto added = std::make_unique<HolderLane>();
  const int fd = lane->event_fd();
  if (fd >= 0 && !WatchFor(epoll_fd_, fd, added.get())) return false;
  if (fd < 0) ++poll_only_count_;
  added->lane = std::move(lane);
  added->lane->BelongTo(&role_);
  added->owner = &owner;
  added->last_arrival = now;
  hot_.push_back(added.get());
  owner.lanes.push_back(std::move(added));
  return true;
}

SessionLanes* LaneSet::Find(const Session* session) const {
  for (const std::unique_ptr<SessionLanes>& known : sessions_) {
    if (known->session == session) return known.get();
  }
  return nullptr;
}

bool LaneSet::Poll(Instant now, Arrive arrive, Down down) {
  role_.ClaimOrAssertHeld();
  if (cold_count_ > 0 && now >= next_cold_look_) {
    next_cold_look_ = now + kColdLookInterval;
    TakeEvents(0);
  }
  bool any = false;
  for (size_t i = 0; i < hot_.size();) {
    HolderLane& lane = *hot_[i];
    if (!lane.broken && PollLane(lane, arrive, down)) {
      lane.last_arrival = now;
      any = true;
    }
    const bool quiet = !lane.broken && now - lane.last_arrival > kQuietMax &&
                       lane.lane->event_fd() >= 0 && lane.lane->Arm();
    if (!quiet) {
      ++i;
      continue;
    }
    MakeCold(i);
  }
  return any;
}

void LaneSet::MakeCold(size_t i) {
  hot_[i]->cold = true;
  ++cold_count_;
  hot_[i] = hot_.back();
  hot_.pop_back();
}

bool LaneSet::PollLane(HolderLane& lane, Arrive arrive, Down down) {
  std::array<Arrival, kSlotCountMax> arrivals;
  const size_t count = lane.lane->Poll(arrivals);
  for (size_t i = 0; i < count && !lane.broken; ++i) arrive(lane, arrivals[i]);
  if (count > 0) return true;
  if (const absl::Status status = lane.lane->status(); !status.ok()) down(lane, status);
  return false;
}

bool LaneSet::Arm() {
  role_.ClaimOrAssertHeld();
  for (size_t i = 0; i < hot_.size();) {
    HolderLane& lane = *hot_[i];
    if (lane.broken || lane.lane->event_fd() < 0) {
      ++i;  // sends nothing more, or has no event
    } else if (lane.lane->Arm()) {
      MakeCold(i);
    } else {
      return false;
    }
  }
  return true;
}

void LaneSet::Wait(int timeout_ms) {
  role_.ClaimOrAssertHeld();
  TakeEvents(timeout_ms);
}

void LaneSet::TakeEvents(int timeout_ms) {
  std::array<epoll_event, kEventCountMax> events;
  const int count = EpollWait(epoll_fd_, events, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto* lane = static_cast<HolderLane*>(events[static_cast<size_t>(i)].data.ptr);
    if (lane != nullptr && lane->cold) MakeHot(*lane);
  }
}

void LaneSet::MakeHot(HolderLane& lane) {
  lane.lane->Disarm();
  lane.cold = false;
  --cold_count_;
  hot_.push_back(&lane);
}

void LaneSet::Break(HolderLane& lane) {
  role_.ClaimOrAssertHeld();
  CKV_CHECK(!lane.broken);
  lane.broken = true;
  const int fd = lane.lane->event_fd();
  if (fd >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void LaneSet::Destroy(HolderLane& lane) {
  role_.ClaimOrAssertHeld();
  CKV_CHECK(lane.broken && lane.busy == 0);
  if (lane.cold) {
    --cold_count_;
  } else {
    std::erase(hot_, &lane);
  }
  if (lane.lane->event_fd() < 0) --poll_only_count_;
  lane.lane.reset();
}

}  // namespace ckv
