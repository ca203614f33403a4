// The lanes of every session: polled while in use, watched by their events while quiet.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/dispatch/fair_queue.h"
#include "server/session/serve_counters.h"
#include "server/session/session.h"
#include "transport/fabric.h"
#include "transport/thread_role.h"

namespace ckv {

struct SessionLanes;

// The dispatcher's record of a lane. LaneSet writes broken, cold and last_arrival.
struct HolderLane {
  std::unique_ptr<ServeLane> lane;
  SessionLanes* owner = nullptr;
  bool broken = false;  // neither polled nor replied to any more, and destroyed soon
  bool cold = false;    // armed, and not polled until its event arrives
  // Requests of this lane in use by the side or reading thread. The lane is not destroyed until
  // they are done.
  uint32_t busy = 0;
  Instant last_arrival;  // time of the last request; initially when the lane was added
};

// One session's lanes and its waiting requests.
struct SessionLanes {
  Session* session = nullptr;
  std::vector<std::unique_ptr<HolderLane>> lanes;
  std::array<FairQueue::Flow*, kQueueCount> flows{};  // the session's flow in each queue
  // Multiply-adds per query row of the session's last request. The next request is estimated by it,
  // since an engine repeats similar requests.
  uint64_t work_per_row = 0;
};

// Belongs to the thread that polls it; debug builds check that. The owner's loop:
//
//   while (lanes->Poll(now, arrive, down) || spins) {}   // hot lanes, and cold ones now and then
//   if (lanes->Arm()) lanes->Wait(timeout_ms);           // sleeps until an event
//
// A lane is hot (polled in every Poll) or cold (armed, with an event instead). It becomes cold when
// nothing arrived for kQuietMax or when Arm succeeds, and hot when its event arrives. Lanes without
// an event stay hot.
class LaneSet {
 public:
  // How long a lane is quiet before it becomes cold, so that a busy thread does not poll silent
  // peers. It is longer than the waits a dispatcher spins through (WaitPolicy::kPredictMax), so a
  // lane in use never pays for a wake-up call.
  static constexpr Duration kQuietMax = std::chrono::milliseconds(10);
  // How often a busy thread checks the events of cold lanes. The first request of a cold lane waits
  // at most this long. The cost is one system call per interval.
  static constexpr Duration kColdLookInterval = std::chrono::microseconds(50);

  //   ResourceExhausted   the process has no file descriptor left.
  static absl::StatusOr<std::unique_ptr<LaneSet>> Create();
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Makes Wait also return when `fd` is readable. Returns false if the system refuses.
  bool Watch(int fd);

  // Adds a lane to the session. If its event cannot be watched, destroys the lane and returns false
  // (errno has the reason).
  bool Add(SessionLanes& owner, std::unique_ptr<ServeLane> lane, Instant now);

  // Sessions with lanes, in no order. The caller adds and removes entries.
  std::vector<std::unique_ptr<SessionLanes>>& sessions() {
    role_.ClaimOrAssertHeld();
    return sessions_;
  }
  SessionLanes* Find(const Session* session) const;

  using Arrive = absl::FunctionRef<void(HolderLane&, const Arrival&)>;
  using Down = absl::FunctionRef<void(HolderLane&, const absl::Status&)>;
  // Calls `arrive` for every request that arrived on a hot lane, and `down` for every hot lane that
  // failed. Returns true if any request arrived. Both callbacks may call Break.
  bool Poll(Instant now, Arrive arrive, Down down);

  // Arms every hot lane, which makes it cold. Returns false if one already has a request: Poll
  // again.
  bool Arm();
  // Call after Arm returned true. Waits for an event of a lane or of a watched descriptor. Lanes
  // whose event arrived are hot again.
  void Wait(int timeout_ms);

  // Returns true if there is a lane without an event (loopback), so that sleeps must be short.
  bool must_poll() const { return poll_only_count_ > 0; }

  // Marks the lane broken: from now on it is neither polled nor waited for. Call once per lane.
  void Break(HolderLane& lane);
  // Destroys the transport lane of a broken lane whose `busy` is zero.
  void Destroy(HolderLane& lane);

 private:
  explicit LaneSet(int epoll_fd) : epoll_fd_(epoll_fd) {}
  bool PollLane(HolderLane& lane, Arrive arrive, Down down);
  void MakeCold(size_t i);
  void TakeEvents(int timeout_ms);
  void MakeHot(HolderLane& lane);

  ThreadRole role_;
  const int epoll_fd_;
  std::vector<std::unique_ptr<SessionLanes>> sessions_;
  std::vector<HolderLane*> hot_;
  uint32_t cold_count_ = 0;
  uint32_t poll_only_count_ = 0;
  Instant next_cold_look_;
};

}  // namespace ckv
