#include "client/call/lane_wait.h"

#include <algorithm>
#include <ctime>

#include "proto/host/platform.h"

namespace ckv {
absl::Status LaneWait::Pause(std::span<RequestLane* const> lanes, Instant deadline, Instant wake) {
  const Instant now = clock_->Now();
  if (now >= deadline) return PassedError();
  if (policy_.Rest(*clock_, now)) return absl::OkStatus();
  // A `wake` that has passed is over.
  const Instant end = wake > now ? std::min(deadline, wake) : deadline;
  sleep_.Sleep(lanes, /*wake_fd=*/-1, std::min(kSleepMax, end - now));
  return absl::OkStatus();
}

void LaneSleep::Sleep(std::span<RequestLane* const> lanes, int wake_fd, Duration at_most) {
  fds_.clear();
  if (wake_fd >= 0) fds_.push_back({wake_fd, POLLIN, 0});
  for (RequestLane* lane : lanes) {
    const int fd = lane->event_fd();
    // A lane that cannot wake a thread is polled. Yielding the processor lets its peer run.
    if (fd < 0) {
      YieldProcessor();
      return;
    }
    fds_.push_back({fd, POLLIN, 0});
  }
  size_t armed = 0;
  while (armed < lanes.size() && lanes[armed]->Arm()) ++armed;
  if (armed == lanes.size()) {
    const timespec timeout = {0, static_cast<long>(at_most.count())};
    PollFds(fds_, timeout);
  } else {
    ++armed;  // the one that has something
  }
  for (size_t i = 0; i < armed; ++i) lanes[i]->Disarm();
}

}  // namespace ckv
