// Brings lanes up for tests, and waits on their events with a deadline.

#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/soon.h"
#include "transport/fabric.h"

namespace ckv::test {

// Whether `fd` became readable in time.
inline bool WaitReadable(int fd, Duration limit = kPatience) {
  pollfd entry = {fd, POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  return poll(&entry, 1, static_cast<int>(ms)) > 0;
}

struct LanePair {
  std::unique_ptr<RequestLane> request;
  std::unique_ptr<ServeLane> serve;
};

// Accepts until a lane arrives or the deadline passes.
inline std::optional<AcceptedLane> AcceptOne(Listener& listener, Instant deadline = Soon()) {
  while (Clock::Real()->Now() < deadline) {
    if (std::optional<AcceptedLane> lane = listener.Accept()) return lane;
    WaitReadable(listener.event_fd(), std::chrono::milliseconds(100));
  }
  return std::nullopt;
}

// Runs Connect concurrently with an accepting thread, as in production.
inline absl::StatusOr<std::unique_ptr<RequestLane>> ConnectBeside(
    Dialer& dialer, const std::string& answer, Listener& listener,
    std::vector<AcceptedLane>* accepted, Instant deadline = Soon()) {
  absl::StatusOr<std::unique_ptr<RequestLane>> lane = absl::UnknownError("not run");
  std::atomic<bool> done{false};
  std::thread connector([&] {
    lane = dialer.Connect(answer, deadline);
    done = true;
  });
  bool last = false;
  while (!last) {
    last = done;  // one more look after Connect has returned
    while (std::optional<AcceptedLane> one = listener.Accept()) {
      accepted->push_back(*std::move(one));
    }
    if (!last) WaitReadable(listener.event_fd(), std::chrono::milliseconds(2));
  }
  connector.join();
  return lane;
}

// A lane of `shape`; fails the test and returns nulls if it does not open.
inline LanePair MakeLane(Fabric& fabric, Listener& listener, const LaneShape& shape,
                         Instant deadline = Soon(), std::string_view account = "") {
  constexpr uint64_t kTag = 7;
  LanePair pair;
  auto dialer = fabric.Dial(shape);
  EXPECT_TRUE(dialer.ok()) << dialer.status();
  if (!dialer.ok()) return pair;
  const auto answer = listener.Invite((*dialer)->offer(), shape, account, kTag, deadline);
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return pair;
  std::vector<AcceptedLane> accepted;
  auto lane = ConnectBeside(**dialer, *answer, listener, &accepted, deadline);
  EXPECT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ(accepted.size(), 1u);
  if (!lane.ok() || accepted.size() != 1) return pair;
  EXPECT_EQ(accepted[0].tag, kTag);
  pair.request = *std::move(lane);
  pair.serve = std::move(accepted[0].lane);
  return pair;
}

// Sleeps on the lane until Poll returns something, it is down (nothing), or the patience ends.
template <typename Message, typename LaneType>
std::optional<Message> Await(LaneType& lane) {
  const Instant deadline = Soon();
  Message message;
  while (Clock::Real()->Now() < deadline) {
    if (lane.Poll({&message, 1}) == 1) return message;
    if (!lane.status().ok()) return std::nullopt;
    if (!lane.Arm()) continue;
    WaitReadable(lane.event_fd());
    lane.Disarm();
  }
  ADD_FAILURE() << "nothing came in time";
  return std::nullopt;
}
inline std::optional<Completion> AwaitReply(RequestLane& lane) { return Await<Completion>(lane); }
inline std::optional<Arrival> AwaitRequest(ServeLane& lane) { return Await<Arrival>(lane); }

// The status of a lane that is expected to go down.
template <typename LaneType, typename Message>
absl::Status AwaitDown(LaneType& lane) {
  while (Await<Message>(lane)) {
  }
  return lane.status();
}
inline absl::Status AwaitDown(RequestLane& lane) {
  return AwaitDown<RequestLane, Completion>(lane);
}
inline absl::Status AwaitDown(ServeLane& lane) { return AwaitDown<ServeLane, Arrival>(lane); }

// A byte of message `id` at `position`: differs between messages and between places.
inline std::byte PatternByte(uint64_t id, size_t position) {
  return static_cast<std::byte>((id * 131 + position * 7 + (position >> 8)) & 0xff);
}
inline void FillPattern(uint64_t id, std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternByte(id, i);
}
inline bool HasPattern(uint64_t id, std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != PatternByte(id, i)) return false;
  }
  return true;
}

// A holder thread that sends every request's bytes back, as far as the reply holds them, until the
// lane is down.
class EchoHolder {
 public:
  explicit EchoHolder(std::unique_ptr<ServeLane> lane)
      : lane_(std::move(lane)), thread_([this] { Run(); }) {}
  // Destroy the requester's end first: that ends the thread.
  ~EchoHolder() { thread_.join(); }

  uint64_t served() const { return served_; }

 private:
  void Run() {
    while (const std::optional<Arrival> arrival = AwaitRequest(*lane_)) {
      const uint32_t bytes = std::min(arrival->bytes, lane_->shape().reply_bytes_max);
      if (bytes > 0) {
        std::memcpy(lane_->reply(arrival->slot).data(), lane_->request(arrival->slot).data(),
                    bytes);
      }
      ++served_;
      if (!lane_->Post(arrival->slot, bytes).ok()) break;
    }
    lane_.reset();
  }

  std::unique_ptr<ServeLane> lane_;
  std::atomic<uint64_t> served_{0};
  std::thread thread_;
};

}  // namespace ckv::test
