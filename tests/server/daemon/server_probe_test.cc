// Goal: a probe of another process makes a new connection each time, so that a server that accepts
// no new peers is found; a probe of this process keeps one, which needs no descriptor.
// Method: a gRPC server of the test refuses each call and keeps the address that called it.

#include "server/daemon/server_probe_stub.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>

#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "proto/base/clock.h"

namespace ckv {
namespace {

class Peers final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* call) override {
    class Refusal final : public grpc::ServerGenericBidiReactor {
     public:
      Refusal() { Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")); }
      void OnDone() override { delete this; }
    };
    absl::MutexLock lock(&mu_);
    seen_.insert(call->peer());
    return new Refusal;
  }
  size_t count() {
    absl::MutexLock lock(&mu_);
    return seen_.size();
  }

 private:
  absl::Mutex mu_;
  std::set<std::string> seen_ ABSL_GUARDED_BY(mu_);
};

// Returns how many connections carried `call_count` successive calls.
size_t ConnectionsOf(ServerProbe::Connection connection, uint64_t call_count) {
  Peers peers;
  int port = 0;
  // A daemon of an earlier test makes every server of the process answer for health itself.
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&peers);
  const auto server = builder.BuildAndStart();
  {
    ServerProbe probe("127.0.0.1:" + std::to_string(port), connection);
    const Instant end = Clock::Real()->Now() + std::chrono::seconds(30);
    while (probe.answer_count() < call_count && Clock::Real()->Now() < end) {
      probe.Send();
      std::this_thread::yield();
    }
    EXPECT_GE(probe.answer_count(), call_count);
  }
  server->Shutdown();
  return peers.count();
}

TEST(ServerProbe, ProbesOfAnotherProcessConnectEachTime) {
  EXPECT_GE(ConnectionsOf(ServerProbe::Connection::kNew, 5), 5u);
}

TEST(ServerProbe, ProbesOfThisProcessConnectOnce) {
  EXPECT_EQ(ConnectionsOf(ServerProbe::Connection::kKept, 5), 1u);
}

}  // namespace
}  // namespace ckv
