// HolderService over gRPC: converts, calls the holder or its chunk table, converts back.

#pragma once

#include <string>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/clock.h"
#include "server/holder.h"
#include "server/service_gate.h"

namespace ckv {

// Bytes of rows in one message of a put.
inline constexpr size_t kPutRowsBytesMax = 1u << 20;

// Thread-safe. Errors as in proto/ckv/v1/holder.proto.
class HolderServiceImpl final : public v1::HolderService::Service {
 public:
  // `holder`, `gate` and `clock` must outlive the service.
  HolderServiceImpl(Holder* holder, std::string id, ServiceGate* gate, Clock* clock)
      : holder_(*holder), id_(std::move(id)), gate_(*gate), clock_(*clock) {}

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionReply* reply) override;
  grpc::Status CloseSession(grpc::ServerContext* context, const v1::CloseSessionRequest* request,
                            v1::CloseSessionReply* reply) override;
  grpc::Status ResolveChunks(grpc::ServerContext* context, const v1::ResolveChunksRequest* request,
                             v1::ResolveChunksReply* reply) override;
  grpc::Status PutChunk(grpc::ServerContext* context,
                        grpc::ServerReader<v1::PutChunkRequest>* reader,
                        v1::PutChunkReply* reply) override;
  grpc::Status ListChunks(grpc::ServerContext* context, const v1::ListChunksRequest* request,
                          v1::ListChunksReply* reply) override;
  grpc::Status PinChunk(grpc::ServerContext* context, const v1::PinChunkRequest* request,
                        v1::PinChunkReply* reply) override;
  grpc::Status DropChunk(grpc::ServerContext* context, const v1::DropChunkRequest* request,
                         v1::DropChunkReply* reply) override;
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                     v1::StatsReply* reply) override;

 private:
  // The put's stream, read to its end; nothing is visible unless it returns OK (I3).
  absl::Status Receive(grpc::ServerContext& context,
                       grpc::ServerReader<v1::PutChunkRequest>& reader);

  Holder& holder_;
  const std::string id_;
  ServiceGate& gate_;
  Clock& clock_;
};

}  // namespace ckv
