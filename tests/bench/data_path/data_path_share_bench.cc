// Question: what do 8 requesters get of one holder that attend the same 2048 tokens of one layer, 1
// or 16 query rows each, next to what one alone gets? Bound: in all 4 x one's throughput at 1 row,
// where the rows are read from memory once for all of them, and 1.3 x at 16, where one alone
// computes most of its time; at 1 row half of them wait at most 3 x as long as one alone.
//
// Closed loop: a requester sends its next request as soon as it is answered. One driver thread owns
// the 8 sessions, each of one shm lane, since real requesters are other machines: it polls them in
// turn, reads a reply and posts the next request immediately. One requester and eight take turns of
// 100 ms in one process, on two pinned CPUs; rates and latencies are medians over the turns. The
// layer is one of four, changed from turn to turn. batch is the number of requests per kernel call.

#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kLayers = 4;
constexpr size_t kRequesters = 8;
constexpr uint32_t kRounds = 8;
constexpr Duration kTurn = std::chrono::milliseconds(100);

struct Load {
  std::vector<double> rate, p50_us, batch;  // one value per turn
};

// The first `count` lanes for a turn, after a warm-up.
void RunTurn(Fleet& fleet, std::vector<std::unique_ptr<AttendLane>>& lanes, size_t count,
             uint32_t layer, Load& load) {
  const Clock& clock = *Clock::Real();
  std::vector<Instant> posted(count);
  std::vector<double> us;
  const auto post = [&](size_t i) {
    posted[i] = clock.Now();
    CKV_CHECK(lanes[i]->Post(layer).has_value());
  };
  for (size_t i = 0; i < count; ++i) post(i);
  const Instant begin = clock.Now() + kWarmUp;
  HolderStats before;
  bool counts = false;
  Instant now = clock.Now();
  for (; now < begin + kTurn; now = clock.Now()) {
    if (!counts && now >= begin) {
      counts = true;
      before = fleet.holder().stats();
    }
    for (size_t i = 0; i < count; ++i) {
      const auto answer = lanes[i]->Poll();
      if (!answer) continue;
      CKV_CHECK(answer->code == absl::StatusCode::kOk);
      if (counts) us.push_back(double((clock.Now() - posted[i]).count()) / 1e3);
      post(i);
    }
  }
  const HolderStats after = fleet.holder().stats();
  for (size_t i = 0; i < count; ++i) lanes[i]->Await();
  load.rate.push_back(double(us.size()) * 1e9 / double((now - begin).count()));
  load.p50_us.push_back(Quantile(us, 0.5));
  load.batch.push_back(double(after.request_count - before.request_count) /
                       double(after.batch_count - before.batch_count));
}

void BM_EightRequesters(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.layers = kLayers});
  std::vector<std::unique_ptr<AttendLane>> lanes;
  for (size_t i = 0; i < kRequesters; ++i) {
    lanes.push_back(std::make_unique<AttendLane>(fleet, rows));
  }
  for (auto _ : state) {
    Load one, eight;
    for (uint32_t round = 0; round < kRounds; ++round) {
      RunTurn(fleet, lanes, 1, round % kLayers, one);
      RunTurn(fleet, lanes, kRequesters, round % kLayers, eight);
    }
    std::vector<double> rates, waits;
    for (uint32_t round = 0; round < kRounds; ++round) {
      rates.push_back(eight.rate[round] / one.rate[round]);
      waits.push_back(eight.p50_us[round] / one.p50_us[round]);
    }
    state.SetIterationTime(Quantile(eight.p50_us, 0.5) / 1e6);
    state.counters["throughput_ratio"] = Quantile(rates, 0.5);
    state.counters["p50_ratio"] = Quantile(waits, 0.5);
    state.counters["one_rate"] = Quantile(one.rate, 0.5);
    state.counters["eight_rate"] = Quantile(eight.rate, 0.5);
    state.counters["one_p50_us"] = Quantile(one.p50_us, 0.5);
    state.counters["eight_p50_us"] = Quantile(eight.p50_us, 0.5);
    state.counters["batch"] = Quantile(eight.batch, 0.5);
  }
}
BENCHMARK(BM_EightRequesters)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(16)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
