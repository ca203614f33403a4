// One handler for each call, on gRPC's threads: checks the request, calls the requester, answers.
// In order: prompts, attends (repeated once if the chunks have moved), fetches, replicas.

#include "server/services/requester_service.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/explain_reply.h"
#include "client/grpc/grpc_status.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"
#include "proto/base/trace_context.h"
#include "proto/convert.h"
#include "proto/token_id.h"
#include "server/rpc/attend_request.h"
#include "server/rpc/select_request.h"
#include "server/services/corpus_match.h"
#include "server/services/replica_ids.h"

namespace ckv {
namespace {

constexpr size_t kPromptTokenCountMax = 1u << 22;

// The longest wait for a tenant's key if part of a prompt is matched without it.
constexpr Duration kKeyWaitMax = std::chrono::seconds(1);

constexpr size_t kHottestCountMax = 64;  // the most corpora that Describe reports

void AddLocalCache(const LocalRowStats& stats, v1::DescribeReply::LocalCache& cache) {
  cache.set_bytes(stats.bytes);
  cache.set_bytes_max(stats.bytes_max);
  cache.set_chunk_count(stats.chunk_count);
  cache.set_prefetch_count(stats.prefetch_count);
  cache.set_prefetch_failed_count(stats.prefetch_failed_count);
  cache.set_eviction_count(stats.eviction_count);
  cache.set_prefetched_bytes(stats.prefetched_bytes);
  cache.set_mapped_bytes(stats.mapped_bytes);
  cache.set_routed_us(stats.routed_us);
  cache.set_saved_us(stats.saved_us);
  cache.set_prefetched_us(stats.prefetched_us);
  cache.set_recomputed_token_count(stats.recomputed_token_count);
  for (size_t primitive = 0; primitive < kPrimitiveCount; ++primitive) {
    for (size_t reason = 0; reason < kPrefetchReasonCount; ++reason) {
      const uint64_t count = stats.decisions[primitive][reason];
      if (count == 0) continue;
      v1::DescribeReply::LocalCache::Decisions& decisions = *cache.add_decisions();
      decisions.set_primitive(std::string(PrimitiveName(static_cast<Primitive>(primitive))));
      decisions.set_reason(std::string(PrefetchReasonName(static_cast<PrefetchReason>(reason))));
      decisions.set_count(count);
    }
  }
}

void AddTrial(const FabricTrial& trial, v1::DescribeReply::Holder& holder) {
  v1::DescribeReply::FabricTrial* message = holder.add_trials();
  message->set_fabric(std::string(FabricName(trial.fabric)));
  message->set_t_probe_us(trial.constants.t_probe_us);
  message->set_bandwidth_bytes_per_s(trial.constants.bandwidth_bytes_per_s);
  message->set_exchange_us(trial.exchange_us);
  message->set_exchange_p50_us(trial.exchange_p50_us);
  message->set_why_not(trial.why_not);
}

// As ToGrpc. If a holder refused for lack of room, its retry hint is added as trailing metadata.
grpc::Status Answered(grpc::ServerContext& context, const absl::Status& status) {
  if (const uint32_t us = RetryAfterUs(status); us > 0)
    context.AddTrailingMetadata(kRetryAfterKey, std::to_string(us));
  return ToGrpc(status);
}

// The trace of the call whose handler runs on this thread (server/rpc/trace_interceptor.h).
TraceContext ThreadsTrace() {
  const TraceContext* const trace = CurrentTrace();
  return trace == nullptr ? TraceContext{} : *trace;
}

// Sends the rows in messages of at most kMessageRowsBytesMax. `first_layer` is the tensor of layer
// 0.
absl::Status SendRows(const FetchedRows& fetched, uint32_t first_layer, uint32_t row_bytes,
                      absl::FunctionRef<absl::Status(const v1::FetchReply&)> write) {
  const auto tokens_max = static_cast<uint32_t>(kMessageRowsBytesMax / row_bytes);
  v1::FetchReply reply;
  for (uint32_t sent = 0; sent < fetched.token_count;) {
    const uint32_t count = std::min(tokens_max, fetched.token_count - sent);
    reply.set_chunk(fetched.chunk);
    reply.set_layer(fetched.tensor - first_layer);
    reply.set_token_begin(fetched.token_begin + sent);
    reply.set_token_count(count);
    const auto rows = fetched.rows.subspan(size_t{sent} * row_bytes, size_t{count} * row_bytes);
    reply.set_rows(rows.data(), rows.size());
    CKV_RETURN_IF_ERROR(write(reply));
    sent += count;
  }
  return absl::OkStatus();
}

// The same for rows chosen by index.
absl::Status SendSelected(const SelectedRows& chosen, uint32_t row_bytes,
                          absl::FunctionRef<absl::Status(const v1::FetchSelectionReply&)> write) {
  const size_t rows_max = kMessageRowsBytesMax / row_bytes;
  v1::FetchSelectionReply reply;
  reply.set_layer(chosen.layer);
  reply.set_chunk(chosen.chunk);
  for (size_t sent = 0; sent < chosen.ordinals.size();) {
    const size_t count = std::min(rows_max, chosen.ordinals.size() - sent);
    const auto ordinals = std::as_bytes(chosen.ordinals.subspan(sent, count));
    const auto rows = chosen.rows.subspan(sent * row_bytes, count * row_bytes);
    reply.set_ordinals(ordinals.data(), ordinals.size());
    reply.set_rows(rows.data(), rows.size());
    CKV_RETURN_IF_ERROR(write(reply));
    sent += count;
  }
  return absl::OkStatus();
}

// Writes one message of a stream to a peer that reads on.
template <typename Reply>
absl::Status Write(const Reply& reply, ServiceGate::Stream& entry, const ServiceGate& gate,
                   grpc::ServerWriter<Reply>& writer) {
  if (!entry.BeginWrite()) return ServiceGate::ClosedError();
  const bool written = writer.Write(reply);
  entry.EndWait();
  if (written) return absl::OkStatus();
  return gate.closed() ? ServiceGate::ClosedError()
                       : absl::CancelledError("the caller of the stream has gone");
}

}  // namespace

absl::StatusOr<v1::ResolveReply> RequesterServiceImpl::MatchTokens(
    const v1::ResolveRequest& request, Instant deadline) {
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                       TokenIdsFromBytes("token_ids", request.token_ids(), kMatchedTokenCountMax));
  CKV_ASSIGN_OR_RETURN(const ExtraKeys extra_keys, FromProto(request.extra_keys(), tokens.size()));
  const uint64_t bytes = tokens.size() * kMatchTokenBytes;
  if (!match_budget_.Take(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "resolve: searches for other prompts take most of the %d bytes that there are for them "
        "here: try again when they are done",
        match_budget_.bytes_max()));
  }
  const absl::Cleanup give = [&] { match_budget_.Give(bytes); };
  PromptCall call{.tokens = tokens,
                  .tenant = request.tenant(),
                  .model = {},
                  .deadline = deadline,
                  .extra_keys = extra_keys};
  if (!request.geometry_of().empty()) {
    CKV_ASSIGN_OR_RETURN(const auto corpus,
                         requester_.Resolve(request.geometry_of(), request.tenant(), deadline));
    call.model = ModelFingerprint(corpus->geometry);
  }
  CKV_ASSIGN_OR_RETURN(const PromptMatch match, requester_.MatchPrompt(call));
  if (match.spans.empty()) return absl::NotFoundError("no holder has a chunk of these tokens");
  v1::ResolveReply reply;
  reply.set_token_count(match.token_count());
  reply.set_truncated(match.truncated);
  *reply.mutable_geometry() = ToProto(*match.geometry);
  for (const PromptSpan& span : match.spans) {
    v1::PromptSpan& message = *reply.add_spans();
    message.set_token_begin(span.token_begin);
    message.set_token_count(span.token_count);
    message.mutable_chunk()->set_id(std::string(span.chunk.AsBytes()));
    message.mutable_chunk()->set_offset(span.offset);
  }
  for (const PromptGap& gap : match.gaps) {
    v1::PromptGap& message = *reply.add_gaps();
    message.set_token_begin(gap.token_begin);
    message.set_token_count(gap.token_count);
  }
  return reply;
}

absl::StatusOr<v1::ResolveReply> RequesterServiceImpl::ResolveTokens(
    const v1::ResolveRequest& request, Instant deadline) {
  if (request.corpus_hint().empty()) return MatchTokens(request, deadline);
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                       TokenIdsFromBytes("token_ids", request.token_ids(), kPromptTokenCountMax));
  CKV_ASSIGN_OR_RETURN(const ExtraKeys extra_keys, FromProto(request.extra_keys(), tokens.size()));
  CKV_ASSIGN_OR_RETURN(const auto corpus,
                       requester_.Resolve(request.corpus_hint(), request.tenant(), deadline));
  // Most corpora are matched without a key, even while the directory is unreachable.
  CorpusMatch match = MatchCorpus(*corpus, tokens, {}, extra_keys);
  if (!corpus->tenant.empty() && match.chunk_count < corpus->chunks.size()) {
    // A directory that does not answer must not withhold what is matched already.
    const Instant soon = options_.clock->Now() + kKeyWaitMax;
    const auto key = requester_.TenantKeyOf(
        corpus->tenant, match.token_count > 0 ? std::min(deadline, soon) : deadline);
    if (key.ok()) match = MatchCorpus(*corpus, tokens, *key, extra_keys);
    if (!key.ok() && match.token_count == 0) return key.status();
  }
  if (match.token_count == 0) {
    return absl::NotFoundError(
        absl::StrFormat("no chunk of corpus '%s' is a prefix of these tokens", corpus->name));
  }
  v1::ResolveReply reply;
  reply.set_token_count(match.token_count);
  Corpus covered{corpus->name, corpus->tenant, corpus->geometry, {}, corpus->version};
  covered.chunks = corpus->chunks;
  covered.chunks.resize(match.chunk_count);
  *reply.mutable_corpus() = ToProto(covered);
  return reply;
}

grpc::Status RequesterServiceImpl::Resolve(grpc::ServerContext* context,
                                           const v1::ResolveRequest* request,
                                           v1::ResolveReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const Instant deadline = DeadlineFor(*context, 0);
  switch (request->what_case()) {
    case v1::ResolveRequest::kCorpus: {
      const auto corpus = requester_.Resolve(request->corpus(), request->tenant(), deadline);
      if (!corpus.ok()) return ToGrpc(corpus.status());
      *reply->mutable_corpus() = ToProto(**corpus);
      reply->set_token_count((*corpus)->token_count());
      return grpc::Status::OK;
    }
    case v1::ResolveRequest::kTokenIds: {
      auto resolved = ResolveTokens(*request, deadline);
      if (!resolved.ok()) return ToGrpc(resolved.status());
      *reply = *std::move(resolved);
      return grpc::Status::OK;
    }
    default:
      return ToGrpc(absl::InvalidArgumentError("resolve: a corpus or token ids"));
  }
}

absl::Status RequesterServiceImpl::AttendOnce(const v1::AttendRequest& request, Instant deadline,
                                              v1::AttendReply& reply, bool* moved) {
  CKV_ASSIGN_OR_RETURN(const RequestChunks chunks, corpora_.ChunksOf(request, deadline));
  const Geometry& geometry = chunks.corpus->geometry;
  AttendMemory memory;
  CKV_ASSIGN_OR_RETURN(const AttendParts parts, PartsOf(request, geometry, memory));
  AttendCall call;
  call.corpus = chunks.corpus;
  call.chunks = chunks.uses;
  call.layer = request.layer();
  call.q = parts.q;
  call.selection = parts.selection;
  call.row_limits = parts.row_limits;
  call.wire = parts.wire;
  call.precision = parts.precision;
  call.allow_approximate = request.allow_approximate();
  call.trace = ThreadsTrace();
  call.deadline = deadline;

  AttendReport report;
  AnswerBuffers answer;
  // Half a megabyte of fresh pages for 256 rows: allocated while the holders compute.
  const auto buffers = [&] { return answer.Make(request, geometry, reply); };
  const absl::Status attended = requester_.Attend(call, buffers, &report);
  // If time is left, the call has not waited for its holders: the chunks are elsewhere by now.
  *moved = absl::IsNotFound(attended) ||
           (absl::IsUnavailable(attended) && options_.clock->Now() + kAnswerMargin < deadline);
  CKV_RETURN_IF_ERROR(attended);
  answer.Finish(request, report, reply);
  return absl::OkStatus();
}

absl::Status RequesterServiceImpl::CountedAttend(const grpc::ServerContext& context,
                                                 const v1::AttendRequest& request,
                                                 v1::AttendReply& reply) {
  const Instant deadline = DeadlineFor(context, request.timeout_ms());
  const Duration given = deadline - options_.clock->Now();
  bool moved = false;
  absl::Status status = AttendOnce(request, deadline, reply, &moved);
  // The kept placement has been invalidated by now, so a chunk that was moved is found.
  if (moved) status = AttendOnce(request, deadline, reply, &moved);
  counters_.Count(status);
  return WithTimeGiven(status, given);
}

grpc::Status RequesterServiceImpl::Attend(grpc::ServerContext* context,
                                          const v1::AttendRequest* request,
                                          v1::AttendReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  return Answered(*context, CountedAttend(*context, *request, *reply));
}

absl::Status RequesterServiceImpl::SelectOnce(const v1::SelectRowsRequest& request,
                                              Instant deadline, v1::SelectRowsReply& reply) {
  CKV_ASSIGN_OR_RETURN(const RequestChunks chunks,
                       corpora_.ChunksOf(ChunkNamesOf(request), deadline));
  SelectMemory memory;
  CKV_ASSIGN_OR_RETURN(SelectRowsCall call, SelectCallOf(request, chunks.corpus->geometry, memory));
  const ContextPart part = {chunks.corpus, chunks.uses};
  CKV_ASSIGN_OR_RETURN(
      const Context context,
      requester_.Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, deadline));
  call.context = &context;
  call.trace = ThreadsTrace();
  call.deadline = deadline;
  std::vector<int32_t> rows(size_t{call.queries.tokens} * call.k);
  SelectRowsReport report;
  CKV_RETURN_IF_ERROR(requester_.SelectRows(call, rows, &report));
  reply.set_rows(rows.data(), rows.size() * sizeof(int32_t));
  reply.set_holder_count(report.holder_count);
  reply.set_bytes_sent(report.bytes_sent);
  reply.set_bytes_received(report.bytes_received);
  reply.set_elapsed_ns(static_cast<uint64_t>(report.elapsed.count()));
  reply.set_compute_ns_max(report.compute_ns_max);
  return absl::OkStatus();
}

grpc::Status RequesterServiceImpl::SelectRows(grpc::ServerContext* context,
                                              const v1::SelectRowsRequest* request,
                                              v1::SelectRowsReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const Instant deadline = DeadlineFor(*context, request->timeout_ms());
  const Duration given = deadline - options_.clock->Now();
  return Answered(*context, WithTimeGiven(SelectOnce(*request, deadline, *reply), given));
}

template <typename Request>
absl::StatusOr<RequesterServiceImpl::CorpusRange> RequesterServiceImpl::CorpusRangeOf(
    const Request& request, Instant deadline) {
  CKV_ASSIGN_OR_RETURN(auto corpus, corpora_.Resolve(request.corpus(), request.tenant(),
                                                     request.corpus_version(), deadline));
  CKV_ASSIGN_OR_RETURN(const ChunkRange chunks,
                       RangeOf(*corpus, request.chunk_begin(), request.chunk_end()));
  return CorpusRange{std::move(corpus), chunks};
}

grpc::Status RequesterServiceImpl::Fetch(grpc::ServerContext* context,
                                         const v1::FetchRequest* request,
                                         grpc::ServerWriter<v1::FetchReply>* writer) {
  auto entry = gate_.Enter(EndCall(context));
  if (!entry.ok()) return Answered(*context, entry.status());
  const Instant deadline = DeadlineFor(*context, request->timeout_ms());
  const Duration given = deadline - options_.clock->Now();
  const auto range = CorpusRangeOf(*request, deadline);
  if (!range.ok()) return ToGrpc(range.status());
  const Geometry& geometry = range->corpus->geometry;
  FetchCall call;
  call.corpus = range->corpus;
  call.chunk_begin = range->chunks.begin;
  call.chunk_end = range->chunks.end;
  const uint32_t layer_end = request->layer_end() == 0 ? geometry.layers : request->layer_end();
  const auto tensor = TensorOf(geometry, request->layer_begin(), request->index_keys());
  if (!tensor.ok()) return ToGrpc(tensor.status());
  const uint32_t first_layer = *tensor - request->layer_begin();  // the tensor of its rows or keys
  if (layer_end > geometry.layers) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrFormat(
        "fetch: layers %d to %d of %d", request->layer_begin(), layer_end, geometry.layers)));
  }
  call.tensor_begin = *tensor;
  call.tensor_end = first_layer + layer_end;
  call.trace = ThreadsTrace();
  call.deadline = deadline;
  if (request->has_position()) call.position = request->position();
  const auto write = [&](const v1::FetchReply& reply) {
    return Write(reply, *entry, gate_, *writer);
  };
  const auto send = [&](const FetchedRows& rows) {
    return SendRows(rows, first_layer, geometry.tensor_row_bytes(rows.tensor), write);
  };
  return Answered(*context, WithTimeGiven(requester_.Fetch(call, send), given));
}

grpc::Status RequesterServiceImpl::FetchSelection(
    grpc::ServerContext* context, const v1::FetchSelectionRequest* request,
    grpc::ServerWriter<v1::FetchSelectionReply>* writer) {
  auto entry = gate_.Enter(EndCall(context));
  if (!entry.ok()) return Answered(*context, entry.status());
  const Instant deadline = DeadlineFor(*context, request->timeout_ms());
  const Duration given = deadline - options_.clock->Now();
  const auto range = CorpusRangeOf(*request, deadline);
  if (!range.ok()) return ToGrpc(range.status());
  const auto lists = IndicesOf(*request, range->corpus->geometry);
  if (!lists.ok()) return ToGrpc(lists.status());
  const std::vector<std::span<const int32_t>> indices(lists->begin(), lists->end());
  const SelectionCall call = {.corpus = range->corpus,
                              .chunk_begin = range->chunks.begin,
                              .chunk_end = range->chunks.end,
                              .layer_begin = request->layer_begin(),
                              .indices = indices,
                              .columns = {},
                              .trace = ThreadsTrace(),
                              .deadline = deadline};
  const auto write = [&](const v1::FetchSelectionReply& reply) {
    return Write(reply, *entry, gate_, *writer);
  };
  const auto send = [&](const SelectedRows& chosen) {
    return SendSelected(chosen, range->corpus->geometry.row_bytes(), write);
  };
  return Answered(*context, WithTimeGiven(requester_.FetchSelection(call, send), given));
}

template <typename Request>
absl::StatusOr<ReplicaCall> RequesterServiceImpl::ReplicaCallOf(const Request& request,
                                                                uint64_t version,
                                                                Instant deadline) {
  if (options_.replicas == nullptr) {
    return absl::FailedPreconditionError(
        "this process has no holder to keep copies: ask a ckvd of --role=holder,requester");
  }
  if constexpr (std::is_same_v<Request, v1::ReplicateRequest>) {
    if (!request.ids().empty()) return ReplicaCallOfIds(request, requester_, deadline);
  }
  CKV_ASSIGN_OR_RETURN(auto corpus,
                       corpora_.Resolve(request.corpus(), request.tenant(), version, deadline));
  CKV_ASSIGN_OR_RETURN(std::vector<uint32_t> chunks, ChunksOf(request, *corpus));
  return ReplicaCall{std::move(corpus), std::move(chunks), deadline};
}

grpc::Status RequesterServiceImpl::Replicate(grpc::ServerContext* context,
                                             const v1::ReplicateRequest* request,
                                             v1::ReplicateReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const auto call = ReplicaCallOf(*request, request->corpus_version(),
                                  DeadlineFor(*context, request->timeout_ms()));
  if (!call.ok()) return ToGrpc(call.status());
  const auto report = options_.replicas->Replicate(*call);
  if (!report.ok()) return Answered(*context, report.status());
  reply->set_fetched_count(report->fetched_count);
  reply->set_present_count(report->present_count);
  reply->set_refused_count(report->refused_count);
  reply->set_fetched_bytes(report->fetched_bytes);
  reply->set_evicted_count(report->evicted_count);
  reply->set_holder(options_.replicas->self().name);
  return grpc::Status::OK;
}

grpc::Status RequesterServiceImpl::ReleaseReplicas(grpc::ServerContext* context,
                                                   const v1::ReleaseReplicasRequest* request,
                                                   v1::ReleaseReplicasReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const auto call =
      ReplicaCallOf(*request, /*version=*/0, DeadlineFor(*context, request->timeout_ms()));
  if (!call.ok()) return ToGrpc(call.status());
  const auto released = options_.replicas->Release(*call);
  if (!released.ok()) return ToGrpc(released.status());
  reply->set_released_count(*released);
  return grpc::Status::OK;
}

grpc::Status RequesterServiceImpl::Describe(grpc::ServerContext* /*context*/,
                                            const v1::DescribeRequest* /*request*/,
                                            v1::DescribeReply* reply) {
  reply->set_id(options_.id);
  reply->set_directory_address(options_.directory_address());
  reply->set_version(options_.version);
  if (options_.process) *reply->mutable_process() = ToProto(options_.process());
  for (const HolderView& holder : requester_.Holders()) {
    v1::DescribeReply::Holder* message = reply->add_holders();
    *message->mutable_member() = ToProto(holder.member);
    message->set_connected(holder.connected);
    message->set_fabric(std::string(FabricName(holder.fabric)));
    message->set_t_probe_us(holder.constants.t_probe_us);
    message->set_bandwidth_bytes_per_s(holder.constants.bandwidth_bytes_per_s);
    message->set_in_flight(holder.in_flight);
    message->set_fallback(holder.fallback);
    for (const FabricTrial& trial : holder.trials) AddTrial(trial, *message);
  }
  reply->set_attend_count(attend_count());
  reply->set_error_count(error_count());
  reply->set_directory_connected(options_.directory_connected());
  // All corpora are needed, because those of tenants are reported as a sum.
  const RequesterStats stats = requester_.Stats(CorpusMeter::kCorpusCountMax);
  reply->set_discarded_reply_count(stats.discarded_reply_count);
  reply->set_rdma_fallback_count(stats.rdma_fallback_count);
  reply->set_retry_count(stats.retry_count);
  reply->set_retry_refused_count(stats.retry_refused_count);
  AddLocalCache(stats.local_cache, *reply->mutable_local_cache());
  stats.ForEachLatency([reply](std::string_view of, const LatencyCounts& counts) {
    *reply->add_latency() = ToProto(of, counts);
  });
  for (const CorpusCalls& corpus : WithoutTenants(stats.hottest, kHottestCountMax)) {
    v1::DescribeReply::CorpusCalls& calls = *reply->add_hottest();
    calls.set_name(corpus.name);
    calls.set_call_count(corpus.call_count);
    calls.set_query_row_count(corpus.query_row_count);
  }
  reply->set_reused_token_count(stats.reused_token_count);
  return grpc::Status::OK;
}

}  // namespace ckv
