#include "client/grpc/channel_watch.h"

#include <utility>

#include "client/grpc/channel_stub.h"

namespace ckv {

ChannelWatch::ChannelWatch(const std::string& address, std::function<void()> on_up)
    : on_up_(std::move(on_up)), channel_(MakeChannel(address)), thread_([this] { Run(); }) {}

ChannelWatch::~ChannelWatch() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void ChannelWatch::Run() {
  grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
  while (!stop_.load(std::memory_order_relaxed)) {
    const gpr_timespec slice =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kSliceMs, GPR_TIMESPAN));
    if (!channel_->WaitForStateChange(state, slice)) continue;
    const grpc_connectivity_state before = state;
    state = channel_->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY && before != GRPC_CHANNEL_READY) on_up_();
  }
}

}  // namespace ckv
