// The servers that data_path_grpc_bench.cc calls, each in a process of its own as a ckvd is.
//
//   grpc_attend_server attend   a requester's service before a holder on shm
//   grpc_attend_server empty    the same methods; an attend waits for its tag in nanoseconds, and
//                               answers with zeros
//   grpc_attend_server plain    empty, without the method of streams and gRPC's threads for it
//
// Prints its address, and runs until its input ends.

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "ckv/v1/requester.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/host/lock_checks.h"
#include "server/daemon/heap.h"
#include "server/rpc/service_gate.h"
#include "server/services/requester_service.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/data_path/grpc_server.h"
#include "tests/support/named_geometry.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 64;

// A requester that answers with zeros. It waits as the real one does for a holder: at work, as all
// that shares its CPU sees it.
template <typename Base>
class EmptyService final : public Base {
 public:
  grpc::Status Attend(grpc::ServerContext*, const v1::AttendRequest* request,
                      v1::AttendReply* reply) override {
    const Instant begin = Clock::Real()->Now();
    Duration waited(0);
    while (waited.count() < static_cast<int64_t>(request->tag()))
      waited = Clock::Real()->Now() - begin;
    reply->set_compute_ns_max(static_cast<uint64_t>(waited.count()));
    const size_t rows = request->row_count();
    reply->set_row_count(request->row_count());
    reply->mutable_o()->resize(rows * d_v_ * sizeof(float));
    reply->mutable_m()->resize(rows * sizeof(float));
    reply->mutable_l()->resize(rows * sizeof(float));
    return grpc::Status::OK;
  }

 private:
  const size_t d_v_ = NamedGeometry("deepseek-v2-lite")->d_v;  // the fleet's
};
using Plain = v1::RequesterService::Service;
using WithStreams = v1::RequesterService::WithCallbackMethod_AttendStream<Plain>;

void ServeUntilInputEnds(grpc::Service& service) {
  const GrpcServer server(service);
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) > 0;) {
  }
}

int Main(std::string_view kind) {
  KeepHeapForAnswers();
  EndLockOrderChecks();
  if (kind == "plain") {
    EmptyService<Plain> service;
    ServeUntilInputEnds(service);
  } else if (kind == "empty") {
    EmptyService<WithStreams> service;
    ServeUntilInputEnds(service);
  } else {
    Fleet fleet({.token_count = kTokens});
    ServiceGate gate(/*stream_count_max=*/1);
    RequesterServiceImpl service(BareRequester(), &fleet.requester(), &gate);
    ServeUntilInputEnds(service);
  }
  return 0;
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) { return argc == 2 ? ckv::bench::Main(argv[1]) : 2; }
