// Question: what does a holder without any requests cost? Bound: under 1 % of a core, without a
// session and with two open ones of one lane each, on shm and on tcp.
//
// CPU time of the whole process, user and system, over 2 s of a main thread that blocks in poll;
// nothing but the holder runs. The first 10 ms, in which the dispatcher still spins after its last
// work, are not counted.

#include <poll.h>
#include <sys/resource.h>

#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"

namespace ckv::bench {
namespace {

constexpr int kSettleMs = 10;
constexpr int kIdleMs = 2000;

double ProcessSeconds() {
  rusage usage = {};
  CKV_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + double(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void BM_Idle(benchmark::State& state, FabricKind fabric) {
  Fleet fleet({.fabric = fabric, .token_count = 64, .pinned = false});
  std::vector<std::unique_ptr<AttendLane>> lanes;
  for (int64_t i = 0; i < state.range(0); ++i) {
    lanes.push_back(std::make_unique<AttendLane>(fleet, 1));
    CKV_CHECK(lanes.back()->Post(0).has_value());
    lanes.back()->Await();
  }
  for (auto _ : state) {
    poll(nullptr, 0, kSettleMs);
    const double cpu_begin = ProcessSeconds();
    const Instant begin = Clock::Real()->Now();
    poll(nullptr, 0, kIdleMs);
    const double cpu_s = ProcessSeconds() - cpu_begin;
    const double wall_s = double((Clock::Real()->Now() - begin).count()) / 1e9;
    state.SetIterationTime(wall_s);
    state.counters["cpu_percent"] = 100 * cpu_s / wall_s;
  }
}
void Sessions(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("sessions")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_Idle, shm, FabricKind::kShm)->Apply(Sessions)->Arg(0)->Arg(2);
BENCHMARK_CAPTURE(BM_Idle, tcp, FabricKind::kTcp)->Apply(Sessions)->Arg(2);

}  // namespace
}  // namespace ckv::bench
