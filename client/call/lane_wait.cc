#include "client/call/lane_wait.h"

#include <sched.h>

#include <algorithm>
#include <ctime>

#include "proto/base/pause_cpu.h"

namespace ckv {
absl::Status LaneWait::Pause(std::span<RequestLane* const> lanes, Instant deadline) {
  const Instant now = clock_->Now();
  if (now >= deadline) return PassedError();
  if (policy_.Spins(now)) {
    PauseCpu();
  } else {
    Sleep(lanes, std::min(kSleepMax, deadline - now));
  }
  return absl::OkStatus();
}

void LaneWait::Sleep(std::span<RequestLane* const> lanes, Duration at_most) {
  fds_.clear();
  for (RequestLane* lane : lanes) {
    const int fd = lane->event_fd();
    // A lane that cannot wake anybody is polled; giving the processor away lets its peer run.
    if (fd < 0) {
      sched_yield();
      return;
    }
    fds_.push_back({fd, POLLIN, 0});
  }
  size_t armed = 0;
  while (armed < lanes.size() && lanes[armed]->Arm()) ++armed;
  if (armed == lanes.size()) {
    const timespec timeout = {0, static_cast<long>(at_most.count())};  // below kSleepMax
    ppoll(fds_.data(), fds_.size(), &timeout, nullptr);
  } else {
    ++armed;  // the one that has something
  }
  for (size_t i = 0; i < armed; ++i) lanes[i]->Disarm();
}

}  // namespace ckv
