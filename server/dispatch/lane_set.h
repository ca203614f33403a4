// The lanes of every session: polled while in use, left to their events while quiet.

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

// A lane as the dispatcher keeps it. LaneSet writes broken, cold and last_arrival.
struct HolderLane {
  std::unique_ptr<ServeLane> lane;
  SessionLanes* owner = nullptr;
  bool broken = false;  // it is neither polled nor answered any more, and is destroyed soon
  bool cold = false;    // it is armed, and not polled until its event comes
  // Requests of this lane that the side or reading thread works on. The lane is not destroyed
  // before they are done.
  uint32_t busy = 0;
  Instant last_arrival;  // when a request last came; at first, when the lane was added
};

// One session's lanes, and its requests that wait.
struct SessionLanes {
  Session* session = nullptr;
  std::vector<std::unique_ptr<HolderLane>> lanes;
  std::array<FairQueue::Flow*, kQueueCount> flows{};  // the session's place in each queue
  // Multiply-adds per query row of the session's last request. They estimate the next one's, since
  // an engine asks much the same again and again.
  uint64_t work_per_row = 0;
};

// Belongs to the thread that polls it; debug builds check that. The loop of its owner:
//
//   while (lanes->Poll(now, arrive, down) || spins) {}   // hot lanes, and cold ones now and then
//   if (lanes->Arm()) lanes->Wait(timeout_ms);           // sleeps until something comes
//
// A lane is hot (polled in every Poll) or cold (armed: its event tells). It becomes cold when
// nothing came for kQuietMax or when Arm succeeds, and hot when its event comes. Lanes without an
// event stay hot.
class LaneSet {
 public:
  // How long a lane is quiet before it becomes cold, so that a busy thread does not poll silent
  // peers. It is longer than the waits a dispatcher spins through (WaitPolicy::kPredictMax): a lane
  // in use never pays for a wake-up call.
  static constexpr Duration kQuietMax = std::chrono::milliseconds(10);
  // How often a busy thread asks for the events of cold lanes. The first request of a cold lane
  // waits this long at most, and the cost is one system call per interval.
  static constexpr Duration kColdLookInterval = std::chrono::microseconds(50);

  //   ResourceExhausted   the process has no descriptor left.
  static absl::StatusOr<std::unique_ptr<LaneSet>> Create();
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Makes Wait return when `fd` is readable, too. Returns false if the system refuses.
  bool Watch(int fd);

  // Adds a lane to the session. Returns false, and destroys the lane, if its event cannot be
  // watched (errno says why).
  bool Add(SessionLanes& owner, std::unique_ptr<ServeLane> lane, Instant now);

  // Sessions with lanes, in no order. The caller adds and removes entries.
  std::vector<std::unique_ptr<SessionLanes>>& sessions() {
    role_.ClaimOrAssertHeld();
    return sessions_;
  }
  SessionLanes* Find(const Session* session) const;

  using Arrive = absl::FunctionRef<void(HolderLane&, const Arrival&)>;
  using Down = absl::FunctionRef<void(HolderLane&, const absl::Status&)>;
  // Calls `arrive` for every request that came on a hot lane, and `down` for every lane that went
  // down. Returns whether any request came. Both may call Break.
  bool Poll(Instant now, Arrive arrive, Down down);

  // Arms every hot lane, which makes it cold. Returns false if one has something already: Poll
  // again.
  bool Arm();
  // Call after Arm returned true. Waits for an event of a lane or of a watched descriptor. Lanes
  // whose event came are hot again.
  void Wait(int timeout_ms);

  // Whether a lane without an event exists (loopback), so that sleeping must be short.
  bool must_poll() const { return poll_only_count_ > 0; }

  // Marks the lane broken: it is neither polled nor waited for from here on. Call once per lane.
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
