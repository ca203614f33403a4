#include "server/rpc/leader_interceptor.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <string_view>
#include <utility>

#include "client/grpc/grpc_status.h"

namespace ckv {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr std::string_view kDirectoryPrefix = "/ckv.v1.DirectoryService/";

class Interceptor final : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(const LeaderSource& leader) : leader_(leader) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      auto* const metadata = methods->GetSendTrailingMetadata();
      if (const auto leader = leader_(); leader && metadata != nullptr)
        metadata->emplace(kLeaderKey, *leader);
    }
    methods->Proceed();
  }

 private:
  const LeaderSource& leader_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(LeaderSource leader) : leader_(std::move(leader)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (!std::string_view(info->method()).starts_with(kDirectoryPrefix)) return nullptr;
    return new Interceptor(leader_);
  }

 private:
  const LeaderSource leader_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> LeaderInterceptor(
    LeaderSource leader) {
  return std::make_unique<Factory>(std::move(leader));
}

}  // namespace ckv
