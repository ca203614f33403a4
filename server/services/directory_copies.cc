// The handlers of DirectoryService for copies that the directory orders.

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/utf8.h"
#include "server/services/directory_service.h"

namespace ckv {
namespace {

// An error of a copy, as a holder reports it.
constexpr size_t kCopyErrorBytesMax = 512;

}  // namespace

grpc::Status DirectoryServiceImpl::ListCopyOrders(grpc::ServerContext* /*context*/,
                                                  const v1::ListCopyOrdersRequest* request,
                                                  v1::ListCopyOrdersReply* reply) {
  const auto orders = state_.replication().ListOrders(request->lease_id(), request->count_max());
  if (!orders.ok()) return ToGrpc(orders.status());
  for (const CopyOrder& order : *orders) {
    v1::CopyOrder& message = *reply->add_orders();
    message.set_corpus(order.corpus.second);
    message.set_tenant(order.corpus.first);
    *message.mutable_geometry() = ToProto(order.geometry);
    *message.mutable_chunk() = ToProto(order.chunk);
    message.set_is_leased(order.is_leased);
    for (const Member& source : order.sources) *message.add_sources() = ToProto(source);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ReportCopies(grpc::ServerContext* /*context*/,
                                                const v1::ReportCopiesRequest* request,
                                                v1::ReportCopiesReply* /*reply*/) {
  std::vector<CopyReport> reports;
  if (static_cast<size_t>(request->copies_size()) > kIdsPerCallMax) {
    return ToGrpc(absl::InvalidArgumentError(
        absl::StrFormat("%d copies, limit %d a call", request->copies_size(), kIdsPerCallMax)));
  }
  for (const v1::ReportCopiesRequest::Copy& copy : request->copies()) {
    const auto id = ChunkId::FromBytes(copy.id());
    if (!id.ok()) return ToGrpc(id.status());
    reports.push_back(
        {CorpusKey(copy.tenant(), copy.corpus()), *id, Utf8Text(copy.error(), kCopyErrorBytesMax)});
  }
  return ToGrpc(state_.replication().ReportCopies(request->lease_id(), reports));
}

grpc::Status DirectoryServiceImpl::DrainHolder(grpc::ServerContext* context,
                                               const v1::DrainHolderRequest* request,
                                               v1::DrainHolderReply* reply) {
  absl::Status valid = ValidateName("holder", request->name());
  if (valid.ok() && request->name().empty()) valid = absl::InvalidArgumentError("holder: no name");
  if (!valid.ok()) return ToGrpc(valid);
  const HolderId holder = {request->name()};
  if (request->has_drain()) {
    const absl::Status set = state_.replication().SetDraining(
        holder, request->drain(), DeadlineOf(*context, clock_, kControlTimeoutMax));
    if (!set.ok()) return ToGrpc(set);
  }
  const auto drain = state_.replication().DrainOf(holder);
  // Nothing but the mark made an offline holder without chunks known.
  if (absl::IsNotFound(drain.status()) && request->has_drain()) return grpc::Status::OK;
  if (!drain.ok()) return ToGrpc(drain.status());
  reply->set_is_draining(drain->is_draining);
  reply->set_may_go(drain->may_go);
  reply->set_chunk_count(drain->chunk_count);
  reply->set_bytes_left(drain->bytes_left);
  reply->set_ms_left(static_cast<uint64_t>(drain->left / std::chrono::milliseconds(1)));
  reply->set_stuck_count(drain->stuck.count);
  reply->set_stuck_why(drain->stuck.why);
  return grpc::Status::OK;
}

}  // namespace ckv
