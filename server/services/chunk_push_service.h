// HolderService.PushChunks: orders from the control plane, puts to another holder's.

#pragma once

#include <cstdint>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/clock.h"
#include "server/holder.h"
#include "server/service_gate.h"

namespace ckv {

// Orders at a time. Each holds kPushDepth threads and messages of 1 MiB.
inline constexpr uint32_t kPushOrderCountMax = 8;
inline constexpr int kPushIdCountMax = 4096;  // an order: 128 KiB of ids
// Of one order; what is larger is cut into several by whoever orders.
inline constexpr Duration kPushOrderTimeoutMax = std::chrono::minutes(10);

// Thread-safe. Errors as in proto/ckv/v1/holder.proto.
class ChunkPushService {
 public:
  // All must outlive the service.
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
