// Question: what does a lane add to a round trip of M query rows, 1152 bytes out and 2056 back
// each? Bound: the same bytes written once and read once, over a bare flag in memory (shm) or bare
// sends and receives (tcp): 0.5 us over it on shm at 1 row, 25 % over it on tcp.
//
// Lane and floor have the same two threads on two CPUs, both spinning, and are sampled in turn, a
// millisecond each (floor.h has the reason); ratio and added_us are medians over the pairs. With
// fewer than two free cores the figures are the scheduler's.

#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "tests/bench/floor.h"
#include "tests/bench/lanes/lane_ends.h"
#include "tests/bench/lanes/tcp_floor.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kHeaderBytes = 64;
constexpr double kSampleSeconds = 1e-3;
constexpr int kWarmTrips = 200;
constexpr int kPairsPerIteration = 50;

// The work of the ends in addition to sending and receiving.
enum class Ends : int {
  kBare = 0,   // nothing: the floor's one buffer stays in the cache, and so do the lane's slots
  kTouch = 1,  // write what they send, read what they get
  kChunk = 2,  // and the holder reads a chunk's rows between the two; that time is not counted
};

struct Load {
  uint32_t request_bytes = 0;
  uint32_t reply_bytes = 0;
  Ends ends = Ends::kTouch;

  void Write(std::span<std::byte> to, uint32_t bytes) const {
    static const std::vector<std::byte> source(1u << 20, std::byte{3});
    if (ends != Ends::kBare) std::memcpy(to.data(), source.data(), bytes);
  }
  void Read(std::span<const std::byte> from, uint32_t bytes) const {
    if (ends != Ends::kBare) benchmark::DoNotOptimize(XXH3_64bits(from.data(), bytes));
  }
  // The holder's part: request, chunk, reply. Returns the seconds of the chunk.
  double Answer(std::span<const std::byte> request, std::span<std::byte> reply) const {
    static const std::vector<std::byte> chunk(2048 * 1152, std::byte{5});
    Read(request, request_bytes);
    double seconds = 0;
    if (ends == Ends::kChunk) {
      seconds =
          SecondsOf([&] { benchmark::DoNotOptimize(XXH3_64bits(chunk.data(), chunk.size())); });
    }
    Write(reply, reply_bytes);
    return seconds;
  }
};

// One way of making a round trip. Call belongs to the requester's thread, Serve to the holder's.
class Way {
 public:
  virtual ~Way() = default;
  virtual void Call() = 0;   // one round trip
  virtual void Serve() = 0;  // answers a request if one is there

  // Time in Serve that does not count, over the Calls that have returned.
  double uncounted_seconds() const { return uncounted_seconds_; }

 protected:
  // Written by the holder before its reply, read by the requester after it.
  double uncounted_seconds_ = 0;
};

class LaneWay final : public Way {
 public:
  LaneWay(std::unique_ptr<Fabric> fabric, const Load& load)
      : fabric_(std::move(fabric)), load_(load), pair_(MakePair(*fabric_, LaneShape{})) {}

  void Call() override {
    const uint32_t slot = *pair_.request->Acquire();
    load_.Write(pair_.request->request(slot), load_.request_bytes);
    CKV_CHECK(pair_.request->Post(slot, load_.request_bytes).ok());
    Completion completion;
    while (pair_.request->Poll({&completion, 1}) == 0) CKV_CHECK(pair_.request->status().ok());
    load_.Read(pair_.request->reply(slot), completion.bytes);
    pair_.request->Release(slot);
  }
  void Serve() override {
    Arrival arrival;
    if (pair_.serve->Poll({&arrival, 1}) == 0) return;
    uncounted_seconds_ +=
        load_.Answer(pair_.serve->request(arrival.slot), pair_.serve->reply(arrival.slot));
    CKV_CHECK(pair_.serve->Post(arrival.slot, load_.reply_bytes).ok());
  }

 private:
  std::unique_ptr<Fabric> fabric_;
  const Load load_;
  LanePair pair_;
};

// The same writes and reads in one memory; one flag per direction signals them.
class FlagWay final : public Way {
 public:
  explicit FlagWay(const Load& load) : load_(load) {
    auto memory = LaneMemory::CreatePrivate(LaneShape{});
    CKV_CHECK(memory.ok());
    memory_ = std::make_unique<LaneMemory>(*std::move(memory));
  }

  void Call() override {
    load_.Write(memory_->request(0), load_.request_bytes);
    request_.turn.store(++turn_, std::memory_order_release);
    while (reply_.turn.load(std::memory_order_acquire) != turn_) {
    }
    load_.Read(memory_->reply(0), load_.reply_bytes);
  }
  void Serve() override {
    if (request_.turn.load(std::memory_order_acquire) != served_ + 1) return;
    uncounted_seconds_ += load_.Answer(memory_->request(0), memory_->reply(0));
    reply_.turn.store(++served_, std::memory_order_release);
  }

 private:
  struct alignas(64) Flag {
    std::atomic<uint64_t> turn{0};
  };
  const Load load_;
  std::unique_ptr<LaneMemory> memory_;
  Flag request_;
  Flag reply_;
  alignas(64) uint64_t turn_ = 0;
  alignas(64) uint64_t served_ = 0;
};

// Whole messages by bare sends and receives, one buffer per direction at each end.
class TcpWay final : public Way {
 public:
  explicit TcpWay(const Load& load)
      : load_(load),
        pair_(ConnectTcp()),
        request_(load.request_bytes),
        reply_(load.reply_bytes),
        served_request_(load.request_bytes),
        served_reply_(load.reply_bytes) {}

  void Call() override {
    load_.Write(request_, load_.request_bytes);
    CKV_CHECK(SendWhole(pair_.a.get(), request_) && ReceiveWhole(pair_.a.get(), reply_));
    load_.Read(reply_, load_.reply_bytes);
  }
  void Serve() override {
    const size_t got = ReceiveReady(pair_.b.get(), served_request_);
    if (got == 0) return;
    CKV_CHECK(ReceiveWhole(pair_.b.get(), std::span(served_request_).subspan(got)));
    uncounted_seconds_ += load_.Answer(served_request_, served_reply_);
    CKV_CHECK(SendWhole(pair_.b.get(), served_reply_));
  }

 private:
  const Load load_;
  TcpPair pair_;
  std::vector<std::byte> request_, reply_, served_request_, served_reply_;
};

// The holder's thread: serves only the way that is being sampled.
class Holder {
 public:
  Holder() : thread_([this] { Run(); }) {}
  ~Holder() {
    stop_ = true;
    thread_.join();
  }

  // Microseconds per round trip, over some kSampleSeconds.
  double Sample(Way& way, int trips) {
    way_ = &way;
    const double before = way.uncounted_seconds();
    const double seconds = SecondsOf([&] {
      for (int i = 0; i < trips; ++i) way.Call();
    });
    way_ = nullptr;
    return (seconds - (way.uncounted_seconds() - before)) / trips * 1e6;
  }

 private:
  void Run() {
    Pin(1);
    while (!stop_.load(std::memory_order_relaxed)) {
      if (Way* way = way_.load(std::memory_order_acquire)) way->Serve();
    }
  }

  std::atomic<Way*> way_{nullptr};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void RunPairs(benchmark::State& state, Way& floor, Way& lane) {
  Pin(0);
  Holder holder;
  // The first trips meet cold pages and a holder that is not awake yet.
  for (Way* way : {&floor, &lane}) holder.Sample(*way, kWarmTrips);
  const double once_us =
      std::min(holder.Sample(floor, kWarmTrips), holder.Sample(lane, kWarmTrips));
  const int trips = std::max(1, static_cast<int>(kSampleSeconds * 1e6 / once_us));
  std::vector<double> floor_us, lane_us, ratio, added_us;
  for (auto _ : state) {
    for (int i = 0; i < kPairsPerIteration; ++i) {
      floor_us.push_back(holder.Sample(floor, trips));
      lane_us.push_back(holder.Sample(lane, trips));
      ratio.push_back(lane_us.back() / floor_us.back());
      added_us.push_back(lane_us.back() - floor_us.back());
    }
  }
  state.counters["floor_us"] = Median(floor_us);
  state.counters["lane_us"] = Median(lane_us);
  state.counters["ratio"] = Median(ratio);
  state.counters["added_us"] = Median(added_us);
}

Load LoadOf(const benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  return {kHeaderBytes + rows * 1152, kHeaderBytes + rows * 2056,
          static_cast<Ends>(state.range(1))};
}

void BM_ShmRoundTrip(benchmark::State& state) {
  FlagWay floor(LoadOf(state));
  LaneWay lane(NewShmFabric(Clock::Real()), LoadOf(state));
  RunPairs(state, floor, lane);
}

void BM_TcpRoundTrip(benchmark::State& state) {
  TcpWay floor(LoadOf(state));
  LaneWay lane(NewTcpFabric(Clock::Real()), LoadOf(state));
  RunPairs(state, floor, lane);
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "ends"})
      ->ArgsProduct({{1, 16, 64, 256}, {0, 1, 2}})
      ->Iterations(5)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(BM_ShmRoundTrip)->Apply(Sizes);
BENCHMARK(BM_TcpRoundTrip)->Apply(Sizes);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
