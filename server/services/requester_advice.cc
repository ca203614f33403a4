// RequesterService's calls about costs: Explain and Estimate, and the engine's prefills, which both
// compare with.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "client/grpc/explain_reply.h"
#include "client/grpc/grpc_status.h"
#include "client/live_prefill.h"
#include "proto/convert.h"
#include "server/rpc/attend_request.h"
#include "server/services/requester_service.h"

namespace ckv {

grpc::Status RequesterServiceImpl::Explain(grpc::ServerContext* context,
                                           const v1::ExplainRequest* request,
                                           v1::ExplainReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const Instant deadline = DeadlineFor(*context, 0);
  const auto corpus = requester_.Resolve(request->corpus(), request->tenant(), deadline);
  if (!corpus.ok()) return ToGrpc(corpus.status());
  ExplainCall call;
  call.corpus = *corpus;
  auto chunks = ChunksOf(*request, **corpus);
  if (!chunks.ok()) return ToGrpc(chunks.status());
  call.chunks = *std::move(chunks);
  call.query_rows = request->query_rows();
  call.steps = request->steps();
  call.agents = request->agents();
  call.select = request->select();
  const auto wire = DtypeOf(request->wire());
  if (!wire.ok()) return ToGrpc(wire.status());
  call.wire = *wire;
  call.spliced = request->spliced();
  if (request->has_cache_room_tokens()) call.cache_room_tokens = request->cache_room_tokens();
  call.deadline = deadline;
  const auto explained = requester_.Explain(call);
  if (!explained.ok()) return ToGrpc(explained.status());
  FillExplainReply(*explained, requester_.KnownHolders(), *reply);
  return grpc::Status::OK;
}

grpc::Status RequesterServiceImpl::Estimate(grpc::ServerContext* context,
                                            const v1::EstimateRequest* request,
                                            v1::EstimateReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const auto corpus =
      requester_.Resolve(request->corpus(), request->tenant(), DeadlineFor(*context, 0));
  if (!corpus.ok()) return ToGrpc(corpus.status());
  const auto chunks = ChunksOf(*request, **corpus);
  if (!chunks.ok()) return ToGrpc(chunks.status());
  const auto wire = DtypeOf(request->wire());
  if (!wire.ok()) return ToGrpc(wire.status());
  const auto estimates = requester_.Estimate({.corpus = *corpus,
                                              .chunks = *chunks,
                                              .query_rows = request->query_rows(),
                                              .steps = request->steps(),
                                              .agents = request->agents(),
                                              .select = request->select(),
                                              .wire = *wire,
                                              .spliced = request->spliced()});
  if (!estimates.ok()) return ToGrpc(estimates.status());
  FillEstimateReply(*estimates, **corpus, *reply);
  return grpc::Status::OK;
}

grpc::Status RequesterServiceImpl::ReportPrefill(grpc::ServerContext* context,
                                                 const v1::ReportPrefillRequest* request,
                                                 v1::ReportPrefillReply* /*reply*/) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  absl::StatusOr<Geometry> geometry = Geometry{};
  if (request->has_geometry()) {
    geometry = FromProto(request->geometry());
  } else {
    const auto corpus =
        requester_.Resolve(request->corpus(), request->tenant(), DeadlineFor(*context, 0));
    if (!corpus.ok()) return ToGrpc(corpus.status());
    geometry = (*corpus)->geometry;
  }
  if (!geometry.ok()) return ToGrpc(geometry.status());
  // A Duration has no value for any double. Those out of range become 0 or two hours, which
  // ReportPrefill refuses.
  const double limit_us = std::chrono::duration<double, std::micro>(LivePrefill::kTookMax).count();
  const double took_us = std::isfinite(request->microseconds())
                             ? std::clamp(request->microseconds(), 0.0, 2 * limit_us)
                             : 0.0;
  const auto took =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::micro>(took_us));
  return ToGrpc(requester_.ReportPrefill(*geometry, request->tokens(), took));
}

}  // namespace ckv
