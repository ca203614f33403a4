#include "client/grpc/holder_stub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

constexpr size_t kHostIdentityBytesMax = 256;

v1::OpenSessionRequest RequestOf(const SessionOffer& offer) {
  v1::OpenSessionRequest request;
  request.set_wire_version_min(offer.wire_version_min);
  request.set_wire_version_max(offer.wire_version_max);
  *request.mutable_geometry() = ToProto(offer.geometry);
  request.set_tenant(offer.tenant);
  request.set_requester(offer.requester);
  request.set_host_identity(offer.host_identity);
  request.mutable_shape()->set_slot_count(offer.shape.slot_count);
  request.mutable_shape()->set_request_bytes_max(offer.shape.request_bytes_max);
  request.mutable_shape()->set_reply_bytes_max(offer.shape.reply_bytes_max);
  for (const FabricOffer& fabric : offer.fabrics) {
    v1::FabricOffer* message = request.add_offers();
    message->set_fabric(std::string(FabricName(fabric.fabric)));
    for (const std::string& lane : fabric.offers) message->add_offers(lane);
  }
  return request;
}

}  // namespace

HolderStub::HolderStub(const Member& member, Clock* clock)
    : member_(member),
      clock_(clock),
      channel_(MakeChannel(member.control_address, kHolderMessageBytesMax)),
      stub_(v1::HolderService::NewStub(channel_)) {}

absl::StatusOr<SessionAnswer> HolderStub::OpenSession(const SessionOffer& offer, Instant deadline) {
  const std::string context_text = Context("OpenSession");
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::OpenSessionReply reply;
  HurryChannel(*channel_);
  const grpc::Status opened = stub_->OpenSession(&context, RequestOf(offer), &reply);
  if (opened.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    // Its port was given to another process.
    return absl::UnavailableError(
        absl::StrFormat("%s: no holder answers at this address", context_text));
  }
  CKV_RETURN_IF_ERROR(FromPeer(opened, context_text));
  SessionAnswer answer;
  answer.session.value = reply.session();
  answer.epoch.value = reply.epoch();
  if (reply.wire_version() < offer.wire_version_min ||
      reply.wire_version() > offer.wire_version_max) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: wire version %d, which was not offered", context_text, reply.wire_version()));
  }
  answer.wire_version = static_cast<uint16_t>(reply.wire_version());
  auto fabric = ParseFabricName(reply.fabric());
  if (!fabric.ok()) return Annotate(fabric.status(), context_text);
  answer.fabric = *fabric;
  if (reply.answers_size() > static_cast<int>(kLaneCountMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d lanes, limit %d", context_text,
                                                      reply.answers_size(), kLaneCountMax));
  }
  answer.answers.assign(reply.answers().begin(), reply.answers().end());
  if (reply.fabrics_size() > static_cast<int>(kFabricCountMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d fabrics, limit %d", context_text,
                                                      reply.fabrics_size(), kFabricCountMax));
  }
  for (const std::string& name : reply.fabrics()) {
    // A holder of a later build may have one that this one does not know.
    if (const auto kind = ParseFabricName(name); kind.ok()) answer.fabrics.push_back(*kind);
  }
  if (reply.host_identity().size() > kHostIdentityBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the name of its host is too long", context_text));
  }
  answer.host = {reply.host_identity(), reply.processor_count(),
                 std::max(1u, reply.compute_thread_count())};
  return answer;
}

absl::Status HolderStub::CloseSession(SessionId session, Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::CloseSessionRequest request;
  request.set_session(session.value);
  v1::CloseSessionReply reply;
  return FromPeer(stub_->CloseSession(&context, request, &reply), Context("CloseSession"));
}

absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> HolderStub::ResolveChunks(
    SessionId session, std::span<const ChunkId> ids, Instant deadline) {
  std::vector<std::optional<ResolvedHandle>> handles;
  handles.reserve(ids.size());
  do {
    const size_t count = std::min(ids.size(), kResolveIdCountMax);
    CKV_RETURN_IF_ERROR(ResolveSome(session, ids.first(count), deadline, handles));
    ids = ids.subspan(count);
  } while (!ids.empty());
  return handles;
}

absl::Status HolderStub::ResolveSome(SessionId session, std::span<const ChunkId> ids,
                                     Instant deadline,
                                     std::vector<std::optional<ResolvedHandle>>& out) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::ResolveChunksRequest request;
  request.set_session(session.value);
  for (const ChunkId& id : ids) request.add_ids(std::string(id.AsBytes()));
  v1::ResolveChunksReply reply;
  CKV_RETURN_IF_ERROR(
      FromPeer(stub_->ResolveChunks(&context, request, &reply), Context("ResolveChunks")));
  if (static_cast<size_t>(reply.handles_size()) != ids.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d handles for %d ids", Context("ResolveChunks"), reply.handles_size(), ids.size()));
  }
  for (const v1::ResolveChunksReply::Handle& handle : reply.handles()) {
    if (handle.found()) {
      out.push_back(ResolvedHandle{{handle.handle()}, handle.token_count()});
    } else {
      out.emplace_back(std::nullopt);
    }
  }
  return absl::OkStatus();
}

std::string HolderStub::Context(std::string_view call) const {
  return absl::StrFormat("holder %s at %s: %s", member_.id.name, member_.control_address, call);
}

absl::StatusOr<std::unique_ptr<HolderControl>> HolderStubFactory::Connect(const Member& member) {
  if (member.control_address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("holder %s has no control address", member.id.name));
  }
  return std::make_unique<HolderStub>(member, clock_);
}

}  // namespace ckv
