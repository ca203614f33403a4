#include "server/daemon/roles/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "client/grpc/channel_stub.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "server/daemon/daemon_parts.h"
#include "server/rpc/server_limits.h"
#include "server/rpc/trace_interceptor.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    DaemonShared* shared, const std::vector<grpc::Service*>& services, int message_bytes_max,
    LeaderSource leader) {
  std::unique_ptr<ControlServer> control(new ControlServer);
  const Config& config = shared->config;
  grpc::EnableDefaultHealthCheckService(true);
  KeepGrpcUp();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  CKV_ASSIGN_OR_RETURN(HostPort local, HostPort::Parse(config.listen));
  auto listening = ControlAcceptor::Listen(local, builder);
  if (!listening.ok()) return CannotListen(config.listen, listening.status());
  control->acceptor_ = *std::move(listening);
  SetServerLimits(message_bytes_max, config.rpc_thread_count_max, builder);
  auto interceptors = TraceInterceptors([shared] { return shared->sampler.Sample(); },
                                        shared->spans.get(), shared->clock);
  if (leader) interceptors.push_back(LeaderInterceptor(std::move(leader)));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (grpc::Service* service : services) builder.RegisterService(service);
  control->server_ = builder.BuildAndStart();
  if (control->server_ == nullptr) {
    return absl::ResourceExhaustedError("gRPC's server did not start");
  }
  shared->held_port.Reset();
  control->acceptor_->Start();
  local.port = control->acceptor_->port();
  HostPort reported = local;
  if (!config.advertise.empty()) {
    CKV_ASSIGN_OR_RETURN(reported, HostPort::Parse(config.advertise));
    if (reported.port == 0) reported.port = local.port;
  }
  control->address_ = reported.ToString();
  shared->Publish(control->address_);
  if (local.IsWildcard()) local.host = local.host == "::" ? "::1" : "127.0.0.1";
  control->local_address_ = local.ToString();
  return control;
}

void ControlServer::AddHealth(const std::string& service) {
  serving_[service] = false;
  server_->GetHealthCheckService()->SetServingStatus(service, false);
}

void ControlServer::SetHealth(const std::string& service, bool serving) {
  if (std::exchange(serving_[service], serving) == serving) return;
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

bool ControlServer::serving(const std::string& service) const {
  const auto found = serving_.find(service);
  return found != serving_.end() && found->second;
}

void ControlServer::EndHealth() { server_->GetHealthCheckService()->SetServingStatus(false); }

void ControlServer::Shutdown(Duration grace) {
  acceptor_->Stop();
  server_->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(grace.count(), GPR_TIMESPAN)));
}

}  // namespace ckv
