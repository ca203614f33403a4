// Question: what does Attend over gRPC cost, for callers that do not link the client library?
// Bound: 1.3 x a gRPC call of the same bytes that computes nothing, beside the kernel's time.
//
// A directory, a holder and a requester as ckvd starts them, each on a gRPC server of its own in
// this process; the caller's channel goes over loopback. The kernel's time is what the reply says
// of the slowest holder, taken off call by call. The floor is the same method of the same service
// with the same request on a server of its own, which gives a reply of the same size: what is left
// is the lanes, the merge and the daemon's own checks. Calls and floors come in turns. The caller,
// the requester's daemon and the floor's server share one pinned CPU, as they take turns in a call;
// the holder's daemon has the other. Unpinned, a call may wait for the slice of a thread that spins
// on the CPU that the scheduler chose for it: medians then differ by 3 x from run to run.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/channel_stub.h"
#include "proto/status.h"
#include "server/daemon.h"
#include "spdlog/spdlog.h"
#include "tests/bench/data_path.h"
#include "tests/server/control_client.h"
#include "tests/server/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 64;
// Taken once whoever took a CPU: gRPC's threads are more than CPUs, and take them from each other.
constexpr Turns kTurns = {.rounds = 10, .samples = 200, .tries = 1};

std::unique_ptr<Daemon> StartRole(unsigned cpu, const std::string& role,
                                  const std::string& directory) {
  const OnCpu pinned(cpu);
  Config config;
  config.role = {role};
  config.name = role;
  config.listen = "127.0.0.1:0";
  config.directory = directory;
  config.store_capacity_bytes = 16u << 20;
  auto daemon = Daemon::Start(config);
  CKV_CHECK(daemon.ok());
  CKV_CHECK((*daemon)->AwaitReady(Clock::Real()->Now() + std::chrono::seconds(20)).ok());
  return *std::move(daemon);
}

// The three daemons with one corpus of one chunk.
struct Daemons {
  Daemons() {
    spdlog::set_level(spdlog::level::off);  // the benchmark's figures are what stdout is for
    directory = StartRole(kHolderCpu, "directory", "");
    holder = StartRole(kHolderCpu, "holder", directory->address());
    requester = StartRole(kDriverCpu, "requester", directory->address());
    Geometry geometry = *NamedGeometry("deepseek-v2-lite");
    geometry.revision = "bench";
    geometry.layers = 1;
    const test::TestCorpus corpus = test::MakeTestCorpus(geometry, {kTokens}, 1);
    const auto holders = v1::HolderService::NewStub(MakeChannel(holder->address()));
    CKV_CHECK(test::Put(*holders, geometry, corpus.chunks[0]).ok());
    const auto directories = v1::DirectoryService::NewStub(MakeChannel(directory->address()));
    CKV_CHECK(
        test::Publish(*directories, corpus.Publish("bench", "", {{HolderId{"holder"}}})).ok());
  }

  std::unique_ptr<Daemon> directory, holder, requester;
};

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
  const Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  std::mt19937 rng(2);
  const v1::AttendRequest request = test::AttendOf(
      "bench", 0, test::RandomBf16(size_t{rows} * geometry.d_qk, rng, 0.1f), geometry.d_qk);
  EmptyService service(geometry.d_v);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CKV_CHECK(server != nullptr);
  Daemons daemons;  // after the first server, so that gRPC's own threads are on this CPU
  for (auto _ : state) {
    Caller attend(daemons.requester->address(), request);
    Caller empty("127.0.0.1:" + std::to_string(port), request);
    TakeTurns(kTurns, {attend.Timed(), empty.Timed()});
    state.SetIterationTime(attend.all_us() / 1e6);
    state.counters["call_us"] = attend.all_us();
    state.counters["kernel_us"] = attend.kernel_us();
    state.counters["net_us"] = attend.net_us();
    state.counters["empty_us"] = empty.all_us();
    state.counters["ratio"] = attend.net_us() / empty.all_us();
  }
  server->Shutdown();
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
