#include "server/directory/directory_registrar_stub.h"

#include "client/grpc/health_convert.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {

absl::StatusOr<LeaseGrant> DirectoryRegistrarStub::Register(const Member& member, Duration ttl,
                                                            bool continues, Instant deadline) {
  v1::RegisterRequest request;
  *request.mutable_member() = ToProto(member);
  request.set_lease_ttl_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(ttl).count()));
  request.set_last_epoch(member.epoch.value);
  request.set_reports_parts(reports_parts_);
  request.set_continues(continues);
  v1::RegisterReply reply;
  CallEnd end;
  const absl::Status status =
      directory_.Call(&Stub::Register, "Register", request, &reply, deadline, &end);
  if (!status.ok() && end.lease_end_ms)
    return WithLeaseEnd(status, std::chrono::milliseconds(*end.lease_end_ms));
  CKV_RETURN_IF_ERROR(status);
  return LeaseGrant{reply.lease_id(),
                    {reply.epoch()},
                    std::chrono::milliseconds(reply.lease_ttl_ms()),
                    reply.directory_incarnation(),
                    reply.folder_id()};
}

absl::StatusOr<LeaseRenewal> DirectoryRegistrarStub::KeepAlive(uint64_t lease_id,
                                                               const MemberHealth* health,
                                                               Instant deadline) {
  v1::KeepAliveRequest request;
  request.set_lease_id(lease_id);
  if (health != nullptr) *request.mutable_health() = ToProto(*health);
  v1::KeepAliveReply reply;
  CallEnd end;
  const absl::Status status =
      directory_.Call(&Stub::KeepAlive, "KeepAlive", request, &reply, deadline, &end);
  if (!status.ok() && end.directory_incarnation)
    return WithDirectoryIncarnation(status, *end.directory_incarnation);
  CKV_RETURN_IF_ERROR(status);
  return LeaseRenewal{std::chrono::milliseconds(reply.lease_ttl_ms()), reply.placed_change_count(),
                      reply.copy_order_count()};
}

absl::Status DirectoryRegistrarStub::Deregister(uint64_t lease_id, Instant deadline) {
  v1::DeregisterRequest request;
  request.set_lease_id(lease_id);
  v1::DeregisterReply reply;
  return directory_.Call(&Stub::Deregister, "Deregister", request, &reply, deadline);
}

}  // namespace ckv
