// Connections to holders. A simulation has its own in place of this file.

#include <grpc/support/time.h>

#include "client/grpc/channel_stub.h"
#include "client/publish/holder_calls.h"

namespace ckv {
namespace {

// Two attempts, and 100 ms between them.
constexpr int kConnectAwaitMs = 300;

}  // namespace

std::unique_ptr<v1::HolderService::StubInterface> ConnectHolder(const Member& member) {
  const auto channel = MakeChannel(member.control_address, kHolderMessageBytesMax);
  // gRPC 1.51 looks at errno some calls after connect(2). So one connect of some thousands fails
  // with an error of something else ("no such file or directory"). The channel tries again after
  // 100 ms.
  channel->WaitForConnected(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis(kConnectAwaitMs, GPR_TIMESPAN)));
  return v1::HolderService::NewStub(channel);
}

std::unique_ptr<v1::StoreService::StubInterface> ConnectStore(const Member& member) {
  return v1::StoreService::NewStub(MakeChannel(member.control_address));
}

}  // namespace ckv
