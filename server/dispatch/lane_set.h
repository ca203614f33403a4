// The lanes of every session: polled while they are used, left to their events while they are not.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/fair_queue.h"
#include "server/session.h"
#include "transport/fabric.h"

namespace ckv {

struct SessionLanes;

struct HolderLane {
  std::unique_ptr<ServeLane> lane;
  SessionLanes* owner = nullptr;
  bool broken = false;
  // Armed, and not polled until its event comes.
  bool cold = false;
  // Requests of it that the side thread is still busy with: it is not destroyed before they are
  // done.
  uint32_t busy = 0;
  Instant last_arrival;
};

// One session's lanes, and what of it waits for what.
struct SessionLanes {
  Session* session = nullptr;
  std::vector<std::unique_ptr<HolderLane>> lanes;
  FairQueue::Flow* attends = nullptr;
  FairQueue::Flow* bulks = nullptr;
  FairQueue::Flow* longs = nullptr;
  FairQueue::Flow* colds = nullptr;
  FairQueue::Flow* pushes = nullptr;
  // Multiply-adds of a query row, as the session's last request had them: an engine asks much the
  // same again and again.
  uint64_t work_per_row = 0;
};

// Belongs to one thread.
class LaneSet {
 public:
  // A lane that nothing came over for so long is left to its event: longer than the waits that a
  // dispatcher spins through (WaitPolicy::kPredictMax), so that one in use never pays for a wake-up
  // call. Then neither does the polling of a busy thread grow with the peers that are silent.
  static constexpr Duration kQuietMax = std::chrono::milliseconds(10);
  // While others keep the thread busy, how often the events of cold lanes are asked for: such a
  // lane's first request waits that long at most, and a system call in so long is all it costs.
  static constexpr Duration kColdLookInterval = std::chrono::microseconds(50);

  //   ResourceExhausted   no descriptor.
  static absl::StatusOr<std::unique_ptr<LaneSet>> Create();
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Also wakes Wait when `fd` is readable.
  bool Watch(int fd);

  // False: no event can be had of it, and the lane is dropped.
  bool Add(SessionLanes& owner, std::unique_ptr<ServeLane> lane, Instant now);

  // Sessions with lanes, in no order. The owner adds and removes them.
  std::vector<std::unique_ptr<SessionLanes>>& sessions() { return sessions_; }
  SessionLanes* Find(const Session* session) const;

  using Arrive = absl::FunctionRef<void(HolderLane&, const Arrival&)>;
  using Down = absl::FunctionRef<void(HolderLane&, const absl::Status&)>;
  // Takes what has arrived on hot lanes, and on cold ones whose event came. Returns whether there
  // was anything.
  bool Poll(Instant now, Arrive arrive, Down down);

  // Arms every hot lane; false if one has something already: poll again.
  bool Arm();
  // After Arm: waits for an event of a lane or a watched descriptor. Lanes whose event came are hot
  // again, the others stay armed.
  void Wait(int timeout_ms);

  // A lane without an event is there (loopback): it has to be polled.
  bool must_poll() const { return poll_only_count_ > 0; }

  // From here on the lane is neither polled nor waited for.
  void Break(HolderLane& lane);
  // Destroys a broken lane that nobody is busy with.
  void Destroy(HolderLane& lane);

 private:
  explicit LaneSet(int epoll_fd) : epoll_fd_(epoll_fd) {}
  bool PollLane(HolderLane& lane, Arrive arrive, Down down);
  void MakeCold(size_t i);
  void TakeEvents(int timeout_ms);
  void MakeHot(HolderLane& lane);

  const int epoll_fd_;
  std::vector<std::unique_ptr<SessionLanes>> sessions_;
  std::vector<HolderLane*> hot_;
  uint32_t cold_count_ = 0;
  uint32_t poll_only_count_ = 0;
  Instant next_cold_look_;
};

}  // namespace ckv
