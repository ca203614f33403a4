// RequesterService over gRPC: converts, calls the requester, converts back.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckv/v1/requester.grpc.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/services/ordinal_index.h"
#include "server/services/service_gate.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

struct RequesterServiceOptions {
  std::string id;
  std::function<std::string()> directory_address;
  std::string version;
  Clock* clock = Clock::Real();
  Duration default_timeout = std::chrono::seconds(5);
  std::function<bool()> directory_connected;
  // The copies of the holder in this process. It is null if there are none.
  ReplicaKeeper* replicas = nullptr;
};

// Thread-safe. Errors as in proto/ckv/v1/requester.proto.
class RequesterServiceImpl final : public v1::RequesterService::Service {
 public:
  // `requester` and `gate` must outlive the service.
  RequesterServiceImpl(RequesterServiceOptions options, Requester* requester, ServiceGate* gate)
      : options_(std::move(options)), requester_(*requester), gate_(*gate) {}

  grpc::Status Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                       v1::ResolveReply* reply) override;
  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendReply* reply) override;
  grpc::Status AttendStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::AttendStreamReply, v1::AttendRequest>* stream) override;
  grpc::Status Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainReply* reply) override;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchReply>* writer) override;
  grpc::Status Replicate(grpc::ServerContext* context, const v1::ReplicateRequest* request,
                         v1::ReplicateReply* reply) override;
  grpc::Status ReleaseReplicas(grpc::ServerContext* context,
                               const v1::ReleaseReplicasRequest* request,
                               v1::ReleaseReplicasReply* reply) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeReply* reply) override;

  // Counts Attend and AttendStream calls since the start, for people and metrics.
  uint64_t attend_count() const { return attend_count_.load(std::memory_order_relaxed); }
  uint64_t error_count() const { return error_count_.load(std::memory_order_relaxed); }

 private:
  // Sets `moved` if a holder lacks a chunk that the kept corpus places there.
  absl::Status AttendOnce(const v1::AttendRequest& request, Instant deadline,
                          v1::AttendReply& reply, bool* moved);
  // Attends and counts. If `moved`, it tries once more.
  absl::Status CountedAttend(const grpc::ServerContext& context, const v1::AttendRequest& request,
                             v1::AttendReply& reply);
  // Returns the corpus of this name. If the kept one is not at `version`, it asks the directory
  // once.
  //   FailedPrecondition  the corpus is at another version. A `version` of 0 accepts any.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveVersion(const std::string& name,
                                                               const std::string& tenant,
                                                               uint64_t version, Instant deadline);
  // Returns the corpus that a request names, or one made of its chunk ids.
  absl::StatusOr<std::shared_ptr<const Corpus>> CorpusOf(const v1::AttendRequest& request,
                                                         Instant deadline);
  // Returns the corpus and the chunks that a request names, for the keeper of replicas.
  //   FailedPrecondition  there is no keeper.
  template <typename Request>
  absl::StatusOr<ReplicaCall> ReplicaCallOf(const Request& request, uint64_t version,
                                            Instant deadline);
  absl::StatusOr<v1::ResolveReply> ResolveTokens(const v1::ResolveRequest& request,
                                                 Instant deadline);
  // Returns the sooner of the caller's deadline and `timeout_ms`; 0 means the default timeout.
  Instant DeadlineFor(const grpc::ServerContext& context, uint32_t timeout_ms) const;

  const RequesterServiceOptions options_;
  Requester& requester_;
  ServiceGate& gate_;
  OrdinalIndices ordinals_;
  std::atomic<uint64_t> attend_count_{0};  // for people; orders nothing
  std::atomic<uint64_t> error_count_{0};
};

}  // namespace ckv
