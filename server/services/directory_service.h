// DirectoryService over gRPC: converts requests, calls the directory's state, and converts the
// results.

#pragma once

#include <functional>
#include <utility>

#include "ckv/v1/directory.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/process_facts.h"
#include "server/directory/directory_state.h"
#include "server/directory/durable_directory.h"
#include "server/directory/ranking/load_table.h"
#include "server/directory/ranking/network_oracles.h"
#include "server/rpc/service_gate.h"
#include "server/services/engine_list.h"
#include "server/services/publish_times.h"

namespace ckv {

// Thread-safe. Errors as in proto/ckv/v1/directory.proto.
class DirectoryServiceImpl final : public v1::DirectoryService::Service {
 public:
  // All arguments must outlive the service. Describe reports `home`, which may be null. `lease_ttl`
  // is the default of reported loads.
  DirectoryServiceImpl(DirectoryState* state, ServiceGate* gate, Clock* clock,
                       DurableDirectory* home = nullptr,
                       Duration lease_ttl = LoadTableOptions().ttl)
      : state_(*state),
        gate_(*gate),
        clock_(*clock),
        home_(home),
        loads_({.clock = clock, .ttl = lease_ttl}) {}

  // Sets the source of the process facts in Describe. Call before the service serves. Without it,
  // Describe reports no process facts.
  void ReportProcess(std::function<ProcessFacts()> process) { process_ = std::move(process); }
  // Sets the source of the fleet's health in Describe. Call before the service serves. Without it,
  // Describe reports the facts of `state`.
  void ReportFacts(std::function<FleetFacts()> facts) { facts_ = std::move(facts); }

  // Sets what a read does first: it waits until a follower's tables have every change that was
  // acknowledged before, and returns the error. Call before the service serves. Without it, reads
  // do not wait.
  void CatchUpBy(std::function<absl::Status(Instant deadline)> catch_up) {
    catch_up_ = std::move(catch_up);
  }

  // Sets the network's costs, with which Rank charges transfers; it must outlive the service. Call
  // before the service serves. Without it, transfers cost nothing.
  void RankBy(NetworkOracles* oracles) { oracles_ = oracles; }

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterReply* reply) override;
  grpc::Status KeepAlive(grpc::ServerContext* context, const v1::KeepAliveRequest* request,
                         v1::KeepAliveReply* reply) override;
  grpc::Status Deregister(grpc::ServerContext* context, const v1::DeregisterRequest* request,
                          v1::DeregisterReply* reply) override;
  grpc::Status ListMembers(grpc::ServerContext* context, const v1::ListMembersRequest* request,
                           v1::ListMembersReply* reply) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeDirectoryRequest* request,
                        v1::DescribeDirectoryReply* reply) override;
  grpc::Status PublishCorpus(grpc::ServerContext* context, const v1::PublishCorpusRequest* request,
                             v1::PublishCorpusReply* reply) override;
  grpc::Status GetCorpus(grpc::ServerContext* context, const v1::GetCorpusRequest* request,
                         v1::GetCorpusReply* reply) override;
  grpc::Status ListCorpora(grpc::ServerContext* context, const v1::ListCorporaRequest* request,
                           v1::ListCorporaReply* reply) override;
  grpc::Status DropCorpus(grpc::ServerContext* context, const v1::DropCorpusRequest* request,
                          v1::DropCorpusReply* reply) override;
  grpc::Status LocateChunk(grpc::ServerContext* context, const v1::LocateChunkRequest* request,
                           v1::LocateChunkReply* reply) override;
  grpc::Status LocateChunks(grpc::ServerContext* context, const v1::LocateChunksRequest* request,
                            v1::LocateChunksReply* reply) override;
  grpc::Status GetTenantKey(grpc::ServerContext* context, const v1::GetTenantKeyRequest* request,
                            v1::GetTenantKeyReply* reply) override;
  grpc::Status FindPrompt(grpc::ServerContext* context, const v1::FindPromptRequest* request,
                          v1::FindPromptReply* reply) override;
  grpc::Status CountReferences(grpc::ServerContext* context,
                               const v1::CountReferencesRequest* request,
                               v1::CountReferencesReply* reply) override;
  grpc::Status AnnounceReplicas(grpc::ServerContext* context,
                                const v1::AnnounceReplicasRequest* request,
                                v1::AnnounceReplicasReply* reply) override;
  grpc::Status WithdrawReplicas(grpc::ServerContext* context,
                                const v1::WithdrawReplicasRequest* request,
                                v1::WithdrawReplicasReply* reply) override;
  grpc::Status ListPlacedCorpora(grpc::ServerContext* context,
                                 const v1::ListPlacedCorporaRequest* request,
                                 v1::ListPlacedCorporaReply* reply) override;
  grpc::Status ListPlaced(grpc::ServerContext* context, const v1::ListPlacedRequest* request,
                          v1::ListPlacedReply* reply) override;
  grpc::Status ReportPart(grpc::ServerContext* context, const v1::ReportPartRequest* request,
                          v1::ReportPartReply* reply) override;
  grpc::Status ReportDropped(grpc::ServerContext* context, const v1::ReportDroppedRequest* request,
                             v1::ReportDroppedReply* reply) override;
  grpc::Status ReportLacking(grpc::ServerContext* context, const v1::ReportLackingRequest* request,
                             v1::ReportLackingReply* reply) override;
  grpc::Status ListCopyOrders(grpc::ServerContext* context,
                              const v1::ListCopyOrdersRequest* request,
                              v1::ListCopyOrdersReply* reply) override;
  grpc::Status ReportCopies(grpc::ServerContext* context, const v1::ReportCopiesRequest* request,
                            v1::ReportCopiesReply* reply) override;
  grpc::Status DrainHolder(grpc::ServerContext* context, const v1::DrainHolderRequest* request,
                           v1::DrainHolderReply* reply) override;
  grpc::Status ReportLoad(grpc::ServerContext* context, const v1::ReportLoadRequest* request,
                          v1::ReportLoadReply* reply) override;
  grpc::Status Rank(grpc::ServerContext* context, const v1::RankRequest* request,
                    v1::RankReply* reply) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override;
  grpc::Status Export(grpc::ServerContext* context, const v1::ExportRequest* request,
                      grpc::ServerWriter<v1::DirectoryRecords>* writer) override;
  grpc::Status Import(grpc::ServerContext* context,
                      grpc::ServerReader<v1::DirectoryRecords>* reader,
                      v1::ImportReply* reply) override;

 private:
  absl::Status CatchUp(const grpc::ServerContext& context) const;
  // Fills the parts of `query` that a corpus, or the holders of the first chunk, supply.
  absl::Status CompleteQuery(const v1::RankRequest& request, FleetQuery& query);

  DirectoryState& state_;
  ServiceGate& gate_;
  Clock& clock_;
  DurableDirectory* const home_;
  std::function<ProcessFacts()> process_;                   // may be empty
  std::function<FleetFacts()> facts_;                       // may be empty
  std::function<absl::Status(Instant deadline)> catch_up_;  // may be empty
  NetworkOracles* oracles_ = nullptr;                       // may be null
  LoadTable loads_;
  PublishTimes published_;
  EngineList engines_;
};

}  // namespace ckv
