// Serves HolderService.VerifyChunks: compares chunks with their checksums in place, for an
// operator.

#pragma once

#include <cstdint>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/base/clock.h"
#include "server/holder/holder.h"
#include "server/rpc/service_gate.h"

namespace ckv {

// The most calls at a time. Each keeps a core and the device busy; an operator starts one.
inline constexpr uint32_t kVerifyCallCountMax = 4;
// Limit of one call: 3.6 TB on a device that reads 1 GB/s. Clients cut longer ones into several.
inline constexpr Duration kVerifyTimeoutMax = std::chrono::hours(1);
// A peer that does not take an answer for this long is gone.
inline constexpr Duration kVerifyProgressMax = std::chrono::seconds(30);

// Thread-safe. Errors as in proto/ckv/v1/holder.proto. A chunk's error is its verdict.
class ChunkVerifyService {
 public:
  // All arguments must outlive the service.
  ChunkVerifyService(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  // Ends within one step of kVerifyStepBytes when the peer cancels or this holder drains.
  grpc::Status Verify(grpc::ServerContext* context, const v1::VerifyChunksRequest* request,
                      grpc::ServerWriter<v1::VerifyChunksReply>* writer);

 private:
  absl::Status Serve(grpc::ServerContext& context, ServiceGate::Stream& stream,
                     const v1::VerifyChunksRequest& request,
                     grpc::ServerWriter<v1::VerifyChunksReply>& writer);

  Holder& holder_;
  ServiceGate& gate_;
  Clock& clock_;
  ServiceGate::Kind checks_{"checks", kVerifyCallCountMax};
};

}  // namespace ckv
