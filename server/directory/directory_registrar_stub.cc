#include "server/directory/directory_registrar_stub.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/grpc/health_convert.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

// Returns the number that the directory sent with its status, if it did.
template <typename Number>
std::optional<Number> ToldBeside(const grpc::ClientContext& context, const char* key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto reported = metadata.find(key);
  Number number = 0;
  if (reported == metadata.end() ||
      !absl::SimpleAtoi(std::string(reported->second.data(), reported->second.size()), &number)) {
    return std::nullopt;
  }
  return number;
}

// Returns `status` with the lease's end that the directory sent with it, if it did.
absl::Status WithLeaseEndOf(const grpc::ClientContext& context, const absl::Status& status) {
  const auto ms = ToldBeside<uint32_t>(context, kLeaseEndKey);
  return ms ? WithLeaseEnd(status, std::chrono::milliseconds(*ms)) : status;
}

}  // namespace

DirectoryRegistrarStub::DirectoryRegistrarStub(std::string address, Clock* clock,
                                               bool reports_parts)
    : address_(std::move(address)),
      clock_(clock),
      reports_parts_(reports_parts),
      stub_(v1::DirectoryService::NewStub(MakeChannel(address_))) {}

absl::StatusOr<LeaseGrant> DirectoryRegistrarStub::Register(const Member& member, Duration ttl,
                                                            Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::RegisterRequest request;
  *request.mutable_member() = ToProto(member);
  request.set_lease_ttl_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(ttl).count()));
  request.set_last_epoch(member.epoch.value);
  request.set_reports_parts(reports_parts_);
  v1::RegisterReply reply;
  const absl::Status status =
      FromGrpc(stub_->Register(&context, request, &reply), Context("Register"));
  if (!status.ok()) return WithLeaseEndOf(context, status);
  return LeaseGrant{reply.lease_id(),
                    {reply.epoch()},
                    std::chrono::milliseconds(reply.lease_ttl_ms()),
                    reply.directory_incarnation(),
                    reply.folder_id()};
}

absl::StatusOr<LeaseRenewal> DirectoryRegistrarStub::KeepAlive(uint64_t lease_id,
                                                               const MemberHealth* health,
                                                               Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::KeepAliveRequest request;
  request.set_lease_id(lease_id);
  if (health != nullptr) *request.mutable_health() = ToProto(*health);
  v1::KeepAliveReply reply;
  const absl::Status status =
      FromGrpc(stub_->KeepAlive(&context, request, &reply), Context("KeepAlive"));
  if (!status.ok()) {
    const auto incarnation = ToldBeside<uint64_t>(context, kDirectoryIncarnationKey);
    return incarnation ? WithDirectoryIncarnation(status, *incarnation) : status;
  }
  return LeaseRenewal{std::chrono::milliseconds(reply.lease_ttl_ms()), reply.placed_change_count(),
                      reply.copy_order_count()};
}

absl::Status DirectoryRegistrarStub::Deregister(uint64_t lease_id, Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::DeregisterRequest request;
  request.set_lease_id(lease_id);
  v1::DeregisterReply reply;
  return FromGrpc(stub_->Deregister(&context, request, &reply), Context("Deregister"));
}

std::string DirectoryRegistrarStub::Context(std::string_view call) const {
  return absl::StrFormat("directory %s: %s", address_, call);
}

}  // namespace ckv
