#include "server/upkeep/replica_stub.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/extra_keys.h"
#include "proto/token_id.h"

namespace ckv {

absl::StatusOr<std::vector<bool>> ReplicaRegistryStub::Announce(uint64_t lease_id,
                                                                std::string_view tenant,
                                                                std::span<const ChunkId> ids,
                                                                Instant deadline) {
  v1::AnnounceReplicasRequest request;
  request.set_lease_id(lease_id);
  request.set_tenant(std::string(tenant));
  for (const ChunkId& id : ids) request.add_ids(std::string(id.AsBytes()));
  v1::AnnounceReplicasReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::AnnounceReplicas, "AnnounceReplicas", request, &reply, deadline));
  if (static_cast<size_t>(reply.accepted_size()) != ids.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("directory %s: AnnounceReplicas: %d answers for %d ids",
                        directory_.addresses(), reply.accepted_size(), ids.size()));
  }
  return std::vector<bool>(reply.accepted().begin(), reply.accepted().end());
}

absl::Status ReplicaRegistryStub::Withdraw(uint64_t lease_id,
                                           std::optional<std::string_view> tenant,
                                           std::span<const ChunkId> ids, Instant deadline) {
  v1::WithdrawReplicasRequest request;
  request.set_lease_id(lease_id);
  if (tenant) request.set_tenant(std::string(*tenant));
  for (const ChunkId& id : ids) request.add_ids(std::string(id.AsBytes()));
  v1::WithdrawReplicasReply reply;
  return directory_.Call(&Stub::WithdrawReplicas, "WithdrawReplicas", request, &reply, deadline);
}

absl::StatusOr<ChunkInfo> ChunkInfoStub::GetChunkInfo(const Member& holder, const ChunkId& id,
                                                      const Geometry& geometry,
                                                      std::string_view tenant, Instant deadline) {
  const std::string context_text =
      absl::StrFormat("holder %s at %s: GetChunkInfo", holder.id.name, holder.control_address);
  const auto stub =
      v1::HolderService::NewStub(MakeChannel(holder.control_address, kHolderMessageBytesMax));
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kControlTimeoutMax);
  v1::GetChunkInfoRequest request;
  request.set_id(std::string(id.AsBytes()));
  *request.mutable_geometry() = ToProto(geometry);
  request.set_tenant(std::string(tenant));
  v1::GetChunkInfoReply reply;
  CKV_RETURN_IF_ERROR(FromGrpc(stub->GetChunkInfo(&context, request, &reply), context_text));
  ChunkInfo info;
  info.id = id;
  CKV_ASSIGN_OR_RETURN(info.parent, ChunkId::FromBytes(reply.parent()));
  CKV_ASSIGN_OR_RETURN(info.verification_tag, VerificationTag::FromBytes(reply.verification_tag()));
  info.position = reply.position();
  CKV_ASSIGN_OR_RETURN(info.token_ids,
                       TokenIdsFromBytes("token_ids", reply.token_ids(), kChunkTokenCountMax));
  CKV_ASSIGN_OR_RETURN(info.extra_keys, DecodeExtraKeys(reply.extra_keys(), info.token_ids.size()));
  if (reply.tensor_checksums_size() != static_cast<int>(geometry.tensor_count())) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d tensor checksums for %d tensors",
                                                      context_text, reply.tensor_checksums_size(),
                                                      geometry.tensor_count()));
  }
  info.tensor_checksums.assign(reply.tensor_checksums().begin(), reply.tensor_checksums().end());
  return info;
}

}  // namespace ckv
