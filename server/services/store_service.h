// StoreService over gRPC: a holder's free space, and its copy of what the directory places on it.

#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ckv/v1/store.grpc.pb.h"
#include "proto/base/clock.h"
#include "server/holder/holder.h"
#include "server/rpc/service_gate.h"

namespace ckv {

// Thread-safe. Errors as in proto/ckv/v1/store.proto.
class StoreServiceImpl final : public v1::StoreService::Service {
 public:
  // Queries the directory for what is placed on this holder and stores it, by the deadline.
  using Keep = std::function<absl::Status(Instant deadline)>;

  // `holder`, `gate` and `clock` must outlive the service. The holder's chunks are in `store_path`,
  // or in memory only if that is empty.
  StoreServiceImpl(Holder* holder, std::string store_path, ServiceGate* gate, Clock* clock,
                   Keep keep)
      : holder_(*holder),
        store_path_(std::move(store_path)),
        gate_(*gate),
        clock_(*clock),
        keep_(std::move(keep)) {}

  grpc::Status GetCapacity(grpc::ServerContext* context, const v1::GetCapacityRequest* request,
                           v1::GetCapacityReply* reply) override;
  grpc::Status KeepPlaced(grpc::ServerContext* context, const v1::KeepPlacedRequest* request,
                          v1::KeepPlacedReply* reply) override;

 private:
  Holder& holder_;
  const std::string store_path_;
  ServiceGate& gate_;
  Clock& clock_;
  const Keep keep_;
};

}  // namespace ckv
