// Question: what does Attend over gRPC cost, for callers that do not link the client library?
// Bound: 1.3 x a gRPC call of the same bytes that computes nothing, beside the kernel's time.
//
// The daemon's service on a gRPC server of its own over loopback, before a requester and a holder
// on shm in this process. The kernel's time is what the reply says of the holder, taken off call by
// call. The floor is the same method with the same request on another server, which gives a reply
// of the same size: what is left is the lanes, the merge and the service's own checks. Calls and
// floors come in turns. The caller and both servers share one pinned CPU, since they take turns in
// a call; the dispatcher has the other. Of the threads that wait in gRPC any one may take another's
// event, so with one of them on the dispatcher's CPU, or none pinned, a call may wait for the slice
// of a thread that spins: 60 to 900 us at one row, from run to run.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "server/edge/service_gate.h"
#include "server/services/requester_service.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/data_path/grpc_server.h"
#include "tests/server/services/control_client.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 64;
// Taken once whoever took a CPU: gRPC's threads are more than CPUs, and take them from each other.
constexpr Turns kTurns = {.rounds = 10, .samples = 200, .tries = 1};

// A requester that answers with zeros.
class EmptyService final : public v1::RequesterService::Service {
 public:
  explicit EmptyService(uint32_t d_v) : d_v_(d_v) {}
  grpc::Status Attend(grpc::ServerContext*, const v1::AttendRequest* request,
                      v1::AttendReply* reply) override {
    const size_t rows = request->row_count();
    reply->set_row_count(request->row_count());
    reply->mutable_o()->resize(rows * d_v_ * sizeof(float));
    reply->mutable_m()->resize(rows * sizeof(float));
    reply->mutable_l()->resize(rows * sizeof(float));
    return grpc::Status::OK;
  }

 private:
  const uint32_t d_v_;
};

// Microseconds of each call beside what its reply says of a kernel.
class Caller {
 public:
  Caller(const std::string& address, v1::AttendRequest request)
      : request_(std::move(request)), stub_(v1::RequesterService::NewStub(MakeChannel(address))) {}

  Side Timed() {
    return {.sample = [this](bool counts) {
      test::Call call;
      v1::AttendReply reply;
      const Instant begin = Clock::Real()->Now();
      const grpc::Status status = stub_->Attend(call.get(), request_, &reply);
      const auto all = double((Clock::Real()->Now() - begin).count());
      CKV_CHECK(status.ok());
      benchmark::DoNotOptimize(reply);
      if (!counts) return;
      all_us_.push_back(all / 1e3);
      kernel_us_.push_back(double(reply.compute_ns_max()) / 1e3);
      net_us_.push_back(all_us_.back() - kernel_us_.back());
    }};
  }
  double all_us() const { return Quantile(all_us_, 0.5); }
  double kernel_us() const { return Quantile(kernel_us_, 0.5); }
  double net_us() const { return Quantile(net_us_, 0.5); }

 private:
  const v1::AttendRequest request_;
  const std::unique_ptr<v1::RequesterService::Stub> stub_;
  std::vector<double> all_us_, kernel_us_, net_us_;
};

void BM_GrpcAttend(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = kTokens});
  const Geometry& geometry = fleet.geometry();
  std::mt19937 rng(2);
  const v1::AttendRequest request = test::AttendOf(
      "bench", 0, test::RandomBf16(size_t{rows} * geometry.d_qk, rng, 0.1f), geometry.d_qk);
  ServiceGate gate(/*stream_count_max=*/1);
  RequesterServiceImpl service(BareRequester(), &fleet.requester(), &gate);
  EmptyService empty_service(geometry.d_v);
  const GrpcServer server(service), empty_server(empty_service);
  for (auto _ : state) {
    Caller attend(server.address(), request);
    Caller empty(empty_server.address(), request);
    TakeTurns(kTurns, {attend.Timed(), empty.Timed()});
    state.SetIterationTime(attend.all_us() / 1e6);
    state.counters["call_us"] = attend.all_us();
    state.counters["kernel_us"] = attend.kernel_us();
    state.counters["net_us"] = attend.net_us();
    state.counters["empty_us"] = empty.all_us();
    state.counters["ratio"] = attend.net_us() / empty.all_us();
  }
}
BENCHMARK(BM_GrpcAttend)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(16)
    ->Arg(256)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
