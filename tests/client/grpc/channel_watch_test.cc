// Goal: a waiter learns at once that a process is reachable, and again after its restart.

#include "client/grpc/channel_watch.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

// Serves `service` on `port`; 0 takes a free port.
std::unique_ptr<grpc::Server> Serve(v1::DirectoryService::Service* service, int& port) {
  KeepGrpcUp();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

TEST(ChannelWatch, NotifiesEachTimeThatTheProcessAnswers) {
  v1::DirectoryService::Service service;
  int port = 0;
  std::unique_ptr<grpc::Server> server = Serve(&service, port);
  ASSERT_NE(server, nullptr);
  absl::Mutex mu;
  int up_count = 0;
  ChannelWatch watch(absl::StrCat("127.0.0.1:", port), [&] {
    absl::MutexLock lock(&mu);
    ++up_count;
  });
  const auto await = [&](int count) {
    absl::MutexLock lock(&mu);
    const auto reached = [&] { return up_count >= count; };
    return mu.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(30));
  };
  EXPECT_TRUE(await(1));
  server->Shutdown();
  server = Serve(&service, port);
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(await(2));
  server->Shutdown();
}

}  // namespace
}  // namespace ckv
