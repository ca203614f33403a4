// HolderService.VerifyChunks: chunks compared with their checksums where they lie, for an operator.

#pragma once

#include <cstdint>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/clock.h"
#include "server/holder.h"
#include "server/service_gate.h"

namespace ckv {

// Calls at a time. Each keeps a core and the device busy; one is what an operator starts.
inline constexpr uint32_t kVerifyCallCountMax = 4;
inline constexpr int kVerifyIdCountMax = 4096;  // a call: 128 KiB of ids
// Of one call: 3.6 TB of a device that reads 1 GB/s. What is longer is cut by whoever asks.
inline constexpr Duration kVerifyTimeoutMax = std::chrono::hours(1);
// A peer that does not take an answer for so long is gone.
inline constexpr Duration kVerifyProgressMax = std::chrono::seconds(30);

// Thread-safe. Errors as in proto/ckv/v1/holder.proto; those of a chunk are its verdict.
class ChunkVerifyService {
 public:
  // All must outlive the service.
  ChunkVerifyService(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  // Ends within one piece of kVerifyPieceBytes when the peer cancels or this holder drains.
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
