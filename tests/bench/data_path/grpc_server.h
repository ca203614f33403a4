// A requester's service and a server for it, for benchmarks over gRPC.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "server/services/requester_service.h"

namespace ckv::bench {

// A service of a requester that has no daemon around it.
inline RequesterServiceOptions BareRequester() {
  RequesterServiceOptions options;
  options.id = "r";
  options.directory_address = [] { return std::string(); };
  options.version = "bench";
  options.directory_connected = [] { return true; };
  return options;
}

// A service on a free port, with a ckvd's limits.
class GrpcServer {
 public:
  explicit GrpcServer(grpc::Service& service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.SetMaxSendMessageSize(kMessageBytesMax);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    CKV_CHECK(server_ != nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~GrpcServer() { server_->Shutdown(); }
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace ckv::bench
