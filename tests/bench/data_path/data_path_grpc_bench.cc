// Question: what does Attend over gRPC cost, for callers that do not link the client library?
// Bound: 1.3 x a gRPC call of the same bytes that computes nothing, without the kernel's time.
//
// The daemon's service is in front of a requester and a holder on shm, on a gRPC server over
// loopback (grpc_attend_server.cc). The holder's kernel time, as the reply reports it, is
// subtracted call by call. The floor is the same method with the same request on a server of the
// same kind, which waits for the kernel's median time, also subtracted, and gives a reply of the
// same size. The difference is the lanes, the merge and the service's own checks. Calls and floors
// take turns.
//
// Both servers are processes of their own, as a ckvd is: in one process all threads that wait in
// gRPC wait for one set of sockets, and any of them may be woken by another's. The caller and both
// servers share one pinned CPU, since they take turns in a call; the dispatcher has the other. On
// one CPU a slow handler changes when the others run, and a floor that does not wait is 8 to 180 us
// faster for that alone: `plain_us` is this floor, and without streams.

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/server/services/control_client.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

// Which of gRPC's threads waits for which event settles after a server's start, and changes a
// call's time by half. So servers are started again for each round, and the median round counts.
constexpr uint32_t kRounds = 11;
// Taken once, even if a thread lost its CPU: gRPC has more threads than there are CPUs, so they
// preempt each other.
constexpr Turns kTurns = {.rounds = 2, .samples = 100, .tries = 1};

// A server in a process of its own, until the end of the scope.
class ServerProcess {
 public:
  explicit ServerProcess(const char* kind) {
    int in[2], out[2];
    CKV_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    const std::string program = ProgramBeside("grpc_attend_server");
    const char* argv[] = {program.c_str(), kind, nullptr};
    CKV_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, const_cast<char**>(argv),
                          environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) address_ += c;
    close(out[0]);
    CKV_CHECK(!address_.empty());
  }
  ~ServerProcess() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  const std::string& address() const { return address_; }

 private:
  // The program of that name in this one's folder.
  static std::string ProgramBeside(const std::string& name) {
    return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
  }

  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

// Microseconds of each call, without the kernel time in its reply.
class Caller {
 public:
  Caller(const std::string& address, const v1::AttendRequest& request)
      : request_(request), stub_(v1::RequesterService::NewStub(MakeChannel(address))) {}

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
      kernel_us_.push_back(double(reply.compute_ns_max()) / 1e3);
      net_us_.push_back(all / 1e3 - kernel_us_.back());
    }};
  }
  double kernel_us() const { return Quantile(kernel_us_, 0.5); }
  double net_us() const { return Quantile(net_us_, 0.5); }

 private:
  const v1::AttendRequest& request_;
  const std::unique_ptr<v1::RequesterService::Stub> stub_;
  std::vector<double> kernel_us_, net_us_;
};

// The kernel's median time of one server's first calls, in nanoseconds.
uint64_t KernelNs(const ServerProcess& server, const v1::AttendRequest& request) {
  Caller first(server.address(), request);
  TakeTurns({.samples = 20, .tries = 1}, {first.Timed()});
  return static_cast<uint64_t>(first.kernel_us() * 1e3);
}

// The medians of rounds.
class Rounds {
 public:
  void Add(const Caller& caller) {
    net_us_.push_back(caller.net_us());
    kernel_us_.push_back(caller.kernel_us());
  }
  double net_us() const { return Quantile(net_us_, 0.5); }
  double kernel_us() const { return Quantile(kernel_us_, 0.5); }

 private:
  std::vector<double> net_us_, kernel_us_;
};

void BM_GrpcAttend(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  const Geometry geometry = *NamedGeometry("deepseek-v2-lite");  // the fleet's
  std::mt19937 rng(2);
  const v1::AttendRequest request = test::AttendOf(
      "bench", 0, test::RandomBf16(size_t{rows} * geometry.d_qk, rng, 0.1f), geometry.d_qk);
  for (auto _ : state) {
    Rounds attends, empties, plains;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const ServerProcess server("attend"), empty_server("empty"), plain_server("plain");
      v1::AttendRequest waiting = request;
      waiting.set_tag(KernelNs(server, request));
      Caller attend(server.address(), request), empty(empty_server.address(), waiting),
          plain(plain_server.address(), request);
      TakeTurns(kTurns, {attend.Timed(), empty.Timed(), plain.Timed()});
      attends.Add(attend);
      empties.Add(empty);
      plains.Add(plain);
    }
    state.SetIterationTime(attends.net_us() / 1e6);
    state.counters["kernel_us"] = attends.kernel_us();
    state.counters["net_us"] = attends.net_us();
    state.counters["empty_us"] = empties.net_us();
    state.counters["plain_us"] = plains.net_us();
    state.counters["ratio"] = attends.net_us() / empties.net_us();
    state.counters["of_plain"] = attends.net_us() / plains.net_us();
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
