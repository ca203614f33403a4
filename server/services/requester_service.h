// RequesterService over gRPC: converts requests, calls the requester, and converts the results.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "ckv/v1/requester.grpc.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/process_facts.h"
#include "server/rpc/attend_request.h"
#include "server/rpc/attend_stream.h"
#include "server/rpc/memory_quota.h"
#include "server/rpc/put_stream.h"
#include "server/rpc/request_corpora.h"
#include "server/rpc/service_gate.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// Memory per token for a search for a prompt's chunks. The sums, token hashes and tables of two
// keys take 79 bytes: 78.7 MiB were measured for 2^20 tokens. The message and its tokens take 8
// bytes; the rest is for the positions of chunks.
inline constexpr uint64_t kMatchTokenBytes = 100;

// The maximum number of puts at a time. Each holds a thread.
inline constexpr uint32_t kRequesterPutCountMax = 8;

struct RequesterServiceOptions {
  std::string id;
  std::function<std::string()> directory_address;
  std::string version;
  Clock* clock = Clock::Real();
  Duration default_timeout = std::chrono::seconds(5);
  Duration spin_max = std::chrono::microseconds(50);  // as in RequesterOptions
  std::function<bool()> directory_connected;
  std::function<ProcessFacts()> process;  // facts that Describe reports; may be empty
  std::function<bool()> sample_trace;     // as AttendStreams::Options::sample
  // Memory for all prompt searches that run at the same time; the longest prompt takes 100 MiB.
  uint64_t match_bytes_max = uint64_t{1} << 30;
  // The replicas at the holder in this process. Null if there are none.
  ReplicaKeeper* replicas = nullptr;
};

// Thread-safe. Errors as in proto/ckv/v1/requester.proto. Must outlive the server at which it is
// registered.
class RequesterServiceImpl final
    : public v1::RequesterService::WithCallbackMethod_AttendStream<v1::RequesterService::Service> {
 public:
  // `requester` and `gate` must outlive the service.
  RequesterServiceImpl(RequesterServiceOptions options, Requester* requester, ServiceGate* gate)
      : options_(std::move(options)),
        requester_(*requester),
        gate_(*gate),
        corpora_(requester),
        streams_(
            {options_.clock, options_.default_timeout, options_.spin_max, options_.sample_trace},
            requester, &corpora_, gate, &counters_) {}

  grpc::Status Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                       v1::ResolveReply* reply) override;
  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendReply* reply) override;
  grpc::Status SelectRows(grpc::ServerContext* context, const v1::SelectRowsRequest* request,
                          v1::SelectRowsReply* reply) override;
  AttendStreams::Reactor* AttendStream(grpc::CallbackServerContext* context) override {
    return streams_.Accept(context);
  }
  grpc::Status Estimate(grpc::ServerContext* context, const v1::EstimateRequest* request,
                        v1::EstimateReply* reply) override;
  grpc::Status Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainReply* reply) override;
  grpc::Status ReportPrefill(grpc::ServerContext* context, const v1::ReportPrefillRequest* request,
                             v1::ReportPrefillReply* reply) override;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchReply>* writer) override;
  grpc::Status FetchSelection(grpc::ServerContext* context,
                              const v1::FetchSelectionRequest* request,
                              grpc::ServerWriter<v1::FetchSelectionReply>* writer) override;
  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                   v1::PutReply* reply) override;
  grpc::Status Replicate(grpc::ServerContext* context, const v1::ReplicateRequest* request,
                         v1::ReplicateReply* reply) override;
  grpc::Status ReleaseReplicas(grpc::ServerContext* context,
                               const v1::ReleaseReplicasRequest* request,
                               v1::ReleaseReplicasReply* reply) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeReply* reply) override;

  // Counts Attend and AttendStream calls since the start, for status pages and metrics.
  uint64_t attend_count() const { return counters_.attends.load(std::memory_order_relaxed); }
  uint64_t error_count() const { return counters_.errors.load(std::memory_order_relaxed); }
  // Returns how many iterations the loop of the streams has made. WakeStreams makes an idle loop
  // iterate soon.
  uint64_t stream_turn_count() const { return streams_.turn_count(); }
  void WakeStreams() { streams_.Wake(); }

 private:
  struct CorpusRange {
    std::shared_ptr<const Corpus> corpus;
    ChunkRange chunks;
  };
  // Sets `moved` if the chunks may have moved: a holder lacks one that the cached corpus places
  // there, or was unavailable with time left.
  absl::Status AttendOnce(const v1::AttendRequest& request, Instant deadline,
                          v1::AttendReply& reply, bool* moved);
  absl::Status SelectOnce(const v1::SelectRowsRequest& request, Instant deadline,
                          v1::SelectRowsReply& reply);
  // Attends and counts the call. If the chunks may have moved, attends once more.
  absl::Status CountedAttend(const grpc::ServerContext& context, const v1::AttendRequest& request,
                             v1::AttendReply& reply);
  // Returns the corpus and the range of chunks that a fetch names.
  template <typename Request>
  absl::StatusOr<CorpusRange> CorpusRangeOf(const Request& request, Instant deadline);
  // Returns the corpus and the chunks that a request names, for the replica keeper.
  //   FailedPrecondition  there is no replica keeper.
  template <typename Request>
  absl::StatusOr<ReplicaCall> ReplicaCallOf(const Request& request, uint64_t version,
                                            Instant deadline);
  // Returns the prompt match over the chunks of all corpora.
  absl::StatusOr<v1::ResolveReply> MatchTokens(const v1::ResolveRequest& request, Instant deadline);
  absl::StatusOr<v1::ResolveReply> ResolveTokens(const v1::ResolveRequest& request,
                                                 Instant deadline);
  Instant DeadlineFor(const grpc::ServerContext& context, uint32_t timeout_ms) const {
    return RequestDeadline(context, *options_.clock, timeout_ms, options_.default_timeout);
  }

  const RequesterServiceOptions options_;
  Requester& requester_;
  ServiceGate& gate_;
  RequestCorpora corpora_;
  AttendCounters counters_;
  AttendStreams streams_;
  MemoryQuota put_budget_{kPutBytesMax};
  MemoryQuota match_budget_{options_.match_bytes_max};
  ServiceGate::Kind puts_{"puts", kRequesterPutCountMax};
};

}  // namespace ckv
