#include "client/grpc/channel_stub.h"

#include <grpc/grpc.h>

namespace ckv {
namespace {

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

grpc::ChannelArguments ArgumentsOf(int message_bytes_max) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(message_bytes_max);
  arguments.SetMaxSendMessageSize(message_bytes_max);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepAlivePeriod));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepAliveTimeout));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit: a Watch may be quiet
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // also the time a connect may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, Milliseconds(kNameLookUpMin));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

std::shared_ptr<grpc::Channel> Make(const std::string& address,
                                    const grpc::ChannelArguments& arguments) {
  KeepGrpcUp();
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

void KeepGrpcUp() { [[maybe_unused]] static const bool up = (grpc_init(), true); }

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int message_bytes_max) {
  return Make(address, ArgumentsOf(message_bytes_max));
}

std::shared_ptr<grpc::Channel> MakeOwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments = ArgumentsOf(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Make(address, arguments);
}

void HurryChannel(grpc::Channel& channel) {
  if (channel.GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE)
    grpc::experimental::ChannelResetConnectionBackoff(&channel);
}

}  // namespace ckv
