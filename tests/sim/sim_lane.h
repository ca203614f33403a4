// The lanes of a simulated fabric. A lane is a Pair: the buffers of both ends, what has arrived at
// each, and whether each end knows that it is down. Frames travel as copies, in events. Only the
// thread that has the turn is here, so nothing is locked.

#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/status.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/sim_fabric.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv::sim {

// After so long without an answer from its peer, an end takes its lane to be down.
inline constexpr int64_t kSilence = 3 * kSecond;

// The network of all lanes, and the observer of their replies.
struct LaneWorld {
  Network& network;
  const OnReply on_reply;
};

class LaneEvent {
 public:
  LaneEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CKV_CHECK(fd_ >= 0); }
  ~LaneEvent() { close(fd_); }
  LaneEvent(const LaneEvent&) = delete;
  LaneEvent& operator=(const LaneEvent&) = delete;
  int fd() const { return fd_; }
  void Set() const { CKV_CHECK(eventfd_write(fd_, 1) == 0); }
  void Clear() const {
    eventfd_t count = 0;
    [[maybe_unused]] const int none = eventfd_read(fd_, &count);
  }

 private:
  const int fd_;
};

struct Buffer {
  explicit Buffer(size_t bytes) : memory(bytes + 64) {}
  std::span<std::byte> span(size_t bytes) {
    void* at = memory.data();
    size_t room = memory.size();
    return {static_cast<std::byte*>(std::align(64, bytes, at, room)), bytes};
  }
  std::vector<std::byte> memory;
};

enum class SlotState : uint8_t { kFree, kTaken, kPosted, kAbandoned, kDone };

struct Slot {
  explicit Slot(const LaneShape& shape)
      : sent(shape.request_bytes_max),
        answer(shape.reply_bytes_max),
        asked(shape.request_bytes_max),
        reply(shape.reply_bytes_max) {}
  // The requester's end.
  SlotState state = SlotState::kFree;
  uint64_t post = 0;  // the number of its last post
  bool lost = false;  // the request or its reply
  Buffer sent, answer;
  // The holder's end.
  bool is_holders = false;
  uint64_t asked_post = 0;
  uint32_t asked_bytes = 0;
  Buffer asked, reply;
  // The descriptor that came with the reply.
  UniqueFd passed;
};

struct Pair {
  explicit Pair(const LaneShape& shape_in) : shape(shape_in) {
    for (uint32_t i = 0; i < shape.slot_count; ++i) slots.push_back(std::make_unique<Slot>(shape));
  }
  LaneShape shape;
  FabricKind kind = FabricKind::kTcp;
  Process* requester = nullptr;
  Process* holder = nullptr;
  std::vector<std::unique_ptr<Slot>> slots;
  uint64_t post_count = 0;
  uint32_t in_flight = 0;
  std::deque<Completion> completed;
  std::deque<Arrival> arrived;
  LaneEvent requester_event, holder_event;
  absl::Status requester_status, holder_status;
  bool requester_gone = false, holder_gone = false;  // that end was destroyed
};

// Both ends find that the lane is down.
void TakeDown(Pair& pair, std::string_view why);

// The ends of a lane.
std::unique_ptr<RequestLane> NewRequestLane(std::shared_ptr<LaneWorld> world,
                                            std::shared_ptr<Pair> pair);
std::unique_ptr<ServeLane> NewServeLane(std::shared_ptr<LaneWorld> world,
                                        std::shared_ptr<Pair> pair);

}  // namespace ckv::sim
