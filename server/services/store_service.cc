#include "server/services/store_service.h"

#include <filesystem>
#include <system_error>

#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"

namespace ckv {

grpc::Status StoreServiceImpl::GetCapacity(grpc::ServerContext* /*context*/,
                                           const v1::GetCapacityRequest* /*request*/,
                                           v1::GetCapacityReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  if (store_path_.empty()) {
    const HolderStats stats = holder_.stats();
    reply->set_capacity_bytes(stats.table.capacity_bytes);
    reply->set_room_bytes(stats.table.capacity_bytes - stats.table.used_bytes);
    return grpc::Status::OK;
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(store_path_, error);
  if (error) return grpc::Status::OK;
  reply->set_capacity_bytes(space.capacity);
  reply->set_room_bytes(space.available);
  return grpc::Status::OK;
}

grpc::Status StoreServiceImpl::KeepPlaced(grpc::ServerContext* context,
                                          const v1::KeepPlacedRequest* /*request*/,
                                          v1::KeepPlacedReply* /*reply*/) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  return ToGrpc(keep_(DeadlineOf(*context, clock_, kControlTimeoutMax)));
}

}  // namespace ckv
