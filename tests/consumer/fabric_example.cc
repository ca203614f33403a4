// The example of transport/fabric.h: a requester and a holder exchange one request and its reply.

#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "proto/base/status.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

constexpr int kPatienceMs = 10'000;

// Waits for the next message at either end. False if the lane is down or none arrives in time.
template <typename End, typename Message>
bool Await(End& lane, Message& message) {
  while (lane.Poll({&message, 1}) == 0) {
    if (!lane.status().ok()) return false;
    if (!lane.Arm()) continue;
    pollfd event = {lane.event_fd(), POLLIN, 0};
    const int ready = poll(&event, 1, kPatienceMs);
    lane.Disarm();
    if (ready == 0) return false;
  }
  return true;
}

// The holder's thread: accepts one lane and echoes its requests until the requester disconnects.
void Serve(Listener& listener) {
  std::optional<AcceptedLane> peer;
  pollfd event = {listener.event_fd(), POLLIN, 0};
  while (!(peer = listener.Accept()) && poll(&event, 1, kPatienceMs) > 0) continue;
  Arrival in = {};
  while (peer && Await(*peer->lane, in)) {
    std::memcpy(peer->lane->reply(in.slot).data(), peer->lane->request(in.slot).data(), in.bytes);
    if (!peer->lane->Post(in.slot, in.bytes).ok()) return;
  }
}

absl::StatusOr<std::string> Ask(Fabric& fabric, const std::string& text) {
  const Instant deadline = Clock::Real()->Now() + std::chrono::milliseconds(kPatienceMs);
  CKV_ASSIGN_OR_RETURN(const auto listener, fabric.Listen({}));
  CKV_ASSIGN_OR_RETURN(const auto dialer, fabric.Dial({}));
  // Between two processes the offer and the answer travel over the control plane.
  CKV_ASSIGN_OR_RETURN(const std::string answer,
                       listener->Invite(dialer->offer(), {}, "", /*tag=*/0, deadline));
  const std::jthread holder([&] { Serve(*listener); });  // joined after the lane is closed
  CKV_ASSIGN_OR_RETURN(const auto lane, dialer->Connect(answer, deadline));

  const uint32_t slot = lane->Acquire().value();  // a new lane's slots are free
  std::memcpy(lane->request(slot).data(), text.data(), text.size());
  CKV_RETURN_IF_ERROR(lane->Post(slot, static_cast<uint32_t>(text.size())));
  Completion done = {};
  if (!Await(*lane, done)) return absl::UnavailableError("no reply came");
  std::string reply(reinterpret_cast<const char*>(lane->reply(slot).data()), done.bytes);
  lane->Release(slot);
  return reply;
}

}  // namespace
}  // namespace ckv

int main() {
  const auto fabric = ckv::NewTcpFabric(ckv::Clock::Real());
  const absl::StatusOr<std::string> reply = ckv::Ask(*fabric, "hello");
  std::puts(reply.ok() ? reply->c_str() : reply.status().ToString().c_str());
  return reply.ok() && *reply == "hello" ? 0 : 1;
}
