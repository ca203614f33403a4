// Goal: a trace is current on the thread of its call, and on no other and no longer.
// Method: a real server over loopback, whose callbacks report what is current.

#include "server/rpc/trace_interceptor.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "ckv/v1/requester.grpc.pb.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;

// Answers any method of the callback API, and counts those that found a trace.
class EveryMethod final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      Reactor() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    requested_.fetch_add(1);
    found_.fetch_add(CurrentTrace() == nullptr ? 0 : 1);
    return new Reactor();
  }
  int requested() const { return requested_.load(); }
  int found() const { return found_.load(); }

 private:
  std::atomic<int> requested_{0}, found_{0};
};

// The health service watches on one thread and ends on another.
TEST(TraceInterceptor, AWatchOfHealthLeavesNoTraceOnAThread) {
  EveryMethod service;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  builder.experimental().SetInterceptorCreators(
      TraceInterceptors([] { return false; }, nullptr, Clock::Real()));
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto channel =
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials());
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  const auto call = [&](grpc::ClientContext& context, const char* method) {
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(&context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    stream->StartCall(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    grpc::Slice empty;
    stream->WriteLast(grpc::ByteBuffer(&empty, 1), {}, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    grpc::ByteBuffer reply;
    stream->Read(&reply, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    context.TryCancel();
    grpc::Status status;
    stream->Finish(&status, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  };
  constexpr int kRoundCount = 100;
  for (int i = 0; i < kRoundCount; ++i) {
    Call watch, other;
    call(*watch.get(), "/grpc.health.v1.Health/Watch");
    call(*other.get(), "/test.Service/Method");
  }
  EXPECT_EQ(service.requested(), kRoundCount);
  EXPECT_EQ(service.found(), 0);
  server->Shutdown();
}

}  // namespace
}  // namespace ckv
