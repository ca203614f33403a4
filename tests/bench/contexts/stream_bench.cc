// Question: what does a stream over gRPC cost, against the library that serves it?
// Bound: 1.25 x the time an answer takes by tickets of the library. Both keep 8 calls of 16 query
// rows over 2,048 rows in flight.
//
// The daemon's service on its own gRPC server over loopback, in front of a requester and a holder
// on shm in this process. The dispatcher has one CPU; the caller, gRPC's threads and the service's
// share the other. So a stream costs more only by the work that does not fit into the kernel's
// time. Sides are measured in turns. A sample is kAnswers answers, from the first request to the
// last reply.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ckv/v1/requester.grpc.pb.h"
#include "client/context.h"
#include "proto/base/status.h"
#include "server/rpc/service_gate.h"
#include "server/services/requester_service.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/data_path/grpc_server.h"
#include "tests/server/services/control_client.h"
#include "tests/support/test_corpus.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kRows = 16, kInFlight = 8, kAnswers = 64;
constexpr Turns kStreamTurns = {.rounds = 10, .samples = 3, .tries = 1};

// Tickets of one thread.
class Tickets {
 public:
  Tickets(Fleet& fleet, const std::vector<uint16_t>& q) : fleet_(fleet), q_(q) {
    const ContextPart part = {*fleet.requester().Resolve("bench", "", kInstantMax), {}};
    context_ = *fleet.requester().Open({.parts = {&part, 1}}, kInstantMax);
    segment_ = {.row_count = kRows, .context = &context_};
    const uint32_t d_v = fleet.geometry().d_v;
    for (uint32_t i = 0; i < kInFlight; ++i) answers_.emplace_back(size_t{kRows} * (d_v + 2));
  }
  void Run() {
    std::deque<Ticket> tickets;
    for (uint32_t i = 0; i < kAnswers; ++i) {
      if (tickets.size() == kInFlight) Take(tickets);
      tickets.push_back(Submit(answers_[i % kInFlight]));
    }
    while (!tickets.empty()) Take(tickets);
  }

 private:
  static void Take(std::deque<Ticket>& tickets) {
    CKV_CHECK(tickets.front().Wait().ok());
    tickets.pop_front();
  }
  Ticket Submit(std::vector<float>& answer) {
    const uint32_t d_v = fleet_.geometry().d_v;
    LayerCall call;
    call.q = {q_.data(), kRows, fleet_.geometry().d_qk};
    call.segments = {&segment_, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    float* const o = answer.data();
    float* const m = o + size_t{kRows} * d_v;
    return *fleet_.requester().Submit(call, {o, m, m + kRows, PartialDtype::kF32});
  }

  Fleet& fleet_;
  const std::vector<uint16_t>& q_;
  Context context_;
  Segment segment_;
  std::vector<std::vector<float>> answers_;
};

// A stream whose context is open.
class OneStream {
 public:
  OneStream(const std::string& address, v1::AttendRequest request)
      : request_(std::move(request)),
        stub_(v1::RequesterService::NewStub(MakeChannel(address))),
        stream_(stub_->AttendStream(&context_)) {
    Write();
    Read();
    request_.clear_corpus();
  }
  ~OneStream() {
    stream_->WritesDone();
    CKV_CHECK(stream_->Finish().ok());
  }
  void Run() {
    for (uint32_t i = 0; i < kAnswers; ++i) {
      if (i >= kInFlight) Read();
      Write();
    }
    for (uint32_t i = 0; i < kInFlight; ++i) Read();
  }

 private:
  void Write() { CKV_CHECK(stream_->Write(request_)); }
  void Read() {
    CKV_CHECK(stream_->Read(&reply_) && reply_.code() == 0);
    benchmark::DoNotOptimize(reply_);
  }

  v1::AttendRequest request_;
  v1::AttendStreamReply reply_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::RequesterService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttendRequest, v1::AttendStreamReply>> stream_;
};

// Microseconds per answer.
class Timed {
 public:
  template <typename Run>
  Side Of(Run run) {
    return {.sample = [this, run](bool counts) {
      const Instant begin = Clock::Real()->Now();
      run();
      const auto all = double((Clock::Real()->Now() - begin).count());
      if (counts) us_.push_back(all / 1e3 / kAnswers);
    }};
  }
  double median() const { return Quantile(us_, 0.5); }

 private:
  std::vector<double> us_;
};

void BM_Stream(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.token_count = 2048});
  const Geometry& geometry = fleet.geometry();
  std::mt19937 rng(2);
  const std::vector<uint16_t> q =
      test::RandomBf16(size_t{kRows} * geometry.d_qk, rng, /*scale=*/0.1f);
  ServiceGate gate(/*stream_count_max=*/1);
  RequesterServiceImpl service(BareRequester(), &fleet.requester(), &gate);
  const GrpcServer server(service);
  for (auto _ : state) {
    Tickets tickets(fleet, q);
    OneStream stream(server.address(), test::AttendOf("bench", 0, q, geometry.d_qk));
    Timed library, over_grpc;
    TakeTurns(kStreamTurns,
              {over_grpc.Of([&] { stream.Run(); }), library.Of([&] { tickets.Run(); })});
    state.SetIterationTime(over_grpc.median() / 1e6);
    state.counters["stream_us"] = over_grpc.median();
    state.counters["library_us"] = library.median();
    state.counters["ratio"] = over_grpc.median() / library.median();
  }
}
BENCHMARK(BM_Stream)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
