// HolderService over gRPC: converts requests, calls the holder or its chunk table, and converts the
// results.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "proto/process_facts.h"
#include "server/holder/holder.h"
#include "server/rpc/service_gate.h"
#include "server/services/chunk_push_service.h"
#include "server/services/chunk_read.h"
#include "server/services/chunk_verify_service.h"

namespace ckv {

// The maximum number of puts at a time. Each holds a thread, a message and space for a chunk in the
// store. A loader has one put per holder, so 16 loaders can work at a time.
inline constexpr uint32_t kPutCountMax = 16;
// A put is ended if it sends nothing for this long: its peer hangs, and it occupies space in the
// store.
inline constexpr Duration kPutProgressMax = std::chrono::seconds(30);

// Thread-safe. Errors as in proto/ckv/v1/holder.proto.
class HolderServiceImpl final : public v1::HolderService::Service {
 public:
  // `holder`, `gate` and `clock` must outlive the service.
  HolderServiceImpl(Holder* holder, std::string id, ServiceGate* gate, Clock* clock)
      : holder_(*holder),
        id_(std::move(id)),
        gate_(*gate),
        clock_(*clock),
        push_(holder, gate, clock),
        reads_(holder, gate, clock),
        verify_(holder, gate, clock) {}

  // Each put calls `on_put` twice with its chunk: before it looks the chunk up in the table, and
  // once the table contains the chunk. Call OnPut before the service serves.
  void OnPut(std::function<void(const ChunkId&)> on_put) { on_put_ = std::move(on_put); }

  // Sets the source of the holder's health in Stats. Call before the service serves. Without it,
  // Stats reports no health.
  void ReportHealth(std::function<MemberHealth()> health) { health_ = std::move(health); }
  // Sets the source of the process facts in Stats. Call before the service serves. Without it,
  // Stats reports no process facts.
  void ReportProcess(std::function<ProcessFacts()> process) { process_ = std::move(process); }

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionReply* reply) override;
  grpc::Status CloseSession(grpc::ServerContext* context, const v1::CloseSessionRequest* request,
                            v1::CloseSessionReply* reply) override;
  grpc::Status ResolveChunks(grpc::ServerContext* context, const v1::ResolveChunksRequest* request,
                             v1::ResolveChunksReply* reply) override;
  grpc::Status PutChunk(grpc::ServerContext* context,
                        grpc::ServerReader<v1::PutChunkRequest>* reader,
                        v1::PutChunkReply* reply) override;
  grpc::Status GetChunkInfo(grpc::ServerContext* context, const v1::GetChunkInfoRequest* request,
                            v1::GetChunkInfoReply* reply) override;
  grpc::Status ListChunks(grpc::ServerContext* context, const v1::ListChunksRequest* request,
                          v1::ListChunksReply* reply) override;
  grpc::Status PinChunk(grpc::ServerContext* context, const v1::PinChunkRequest* request,
                        v1::PinChunkReply* reply) override;
  grpc::Status DropChunk(grpc::ServerContext* context, const v1::DropChunkRequest* request,
                         v1::DropChunkReply* reply) override;
  grpc::Status ReadChunk(grpc::ServerContext* context, const v1::ReadChunkRequest* request,
                         grpc::ServerWriter<v1::ReadChunkReply>* writer) override;
  grpc::Status PushChunks(grpc::ServerContext* context, const v1::PushChunksRequest* request,
                          grpc::ServerWriter<v1::PushChunksReply>* writer) override {
    return push_.Push(context, request, writer);
  }
  grpc::Status VerifyChunks(grpc::ServerContext* context, const v1::VerifyChunksRequest* request,
                            grpc::ServerWriter<v1::VerifyChunksReply>* writer) override {
    return verify_.Verify(context, request, writer);
  }
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                     v1::StatsReply* reply) override;

 private:
  using PutReader = grpc::ServerReader<v1::PutChunkRequest>;
  // Reads the put's stream to its end; nothing is visible unless it returns OK (I3).
  absl::Status Receive(grpc::ServerContext& context, ServiceGate::Stream& stream,
                       PutReader& reader);
  absl::Status Settle(const absl::Status& status, const ChunkId& id, const Geometry& geometry,
                      const std::string& tenant, Duration ttl);
  // Reads the next message. Returns false at the end of the stream, and also after a drain or
  // kPutProgressMax.
  bool Read(ServiceGate::Stream& stream, PutReader& reader, v1::PutChunkRequest* message);

  Holder& holder_;
  const std::string id_;
  ServiceGate& gate_;
  Clock& clock_;
  ChunkPushService push_;
  ChunkReads reads_;
  ChunkVerifyService verify_;
  std::function<void(const ChunkId&)> on_put_;  // may be empty
  std::function<MemberHealth()> health_;        // may be empty
  std::function<ProcessFacts()> process_;       // may be empty
  ServiceGate::Kind puts_{"puts", kPutCountMax};
};

}  // namespace ckv
