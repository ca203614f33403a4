// Serves HolderService.PushChunks: takes orders from the control plane and puts chunks to another
// holder.

#pragma once

#include <cstdint>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/base/clock.h"
#include "server/holder/holder.h"
#include "server/rpc/service_gate.h"

namespace ckv {

// The most orders at a time. Each holds kPushDepth threads and messages of 1 MiB.
inline constexpr uint32_t kPushOrderCountMax = 8;
// Limit of one order; clients cut larger ones into several.
inline constexpr Duration kPushOrderTimeoutMax = std::chrono::minutes(10);

// Thread-safe. Errors as in proto/ckv/v1/holder.proto.
class ChunkPushService {
 public:
  // All arguments must outlive the service.
  ChunkPushService(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  grpc::Status Push(grpc::ServerContext* context, const v1::PushChunksRequest* request,
                    grpc::ServerWriter<v1::PushChunksReply>* writer);

 private:
  absl::Status Serve(grpc::ServerContext& context, ServiceGate::Stream& stream,
                     const v1::PushChunksRequest& request,
                     grpc::ServerWriter<v1::PushChunksReply>& writer);

  Holder& holder_;
  ServiceGate& gate_;
  Clock& clock_;
  ServiceGate::Kind orders_{"pushes", kPushOrderCountMax};
};

}  // namespace ckv
