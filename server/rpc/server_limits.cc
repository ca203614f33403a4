#include "server/rpc/server_limits.h"

#include <grpcpp/resource_quota.h>

#include <chrono>

#include "client/grpc/channel_stub.h"
#include "proto/base/clock.h"

namespace ckv {
namespace {

// All messages of this process together; beyond it gRPC refuses calls. 32 of the largest.
constexpr size_t kMessageMemoryMax = size_t{32} * kMessageBytesMax;

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace

void SetServerLimits(int message_bytes_max, uint32_t thread_count_max,
                     grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(message_bytes_max);
  builder.SetMaxSendMessageSize(message_bytes_max);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second ckvd here is a mistake
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepAlivePeriod));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepAliveTimeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Peers ping as often as this side does; half of it leaves room for jitter.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kKeepAlivePeriod / 2));
  grpc::ResourceQuota quota("ckvd");
  quota.SetMaxThreads(static_cast<int>(thread_count_max));
  quota.Resize(kMessageMemoryMax);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
}

}  // namespace ckv
