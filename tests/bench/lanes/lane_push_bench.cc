// Question: how fast does a holder push a chunk over one lane, in gathered replies of 512 KiB?
// Bound: the better of sendfile over one connection and plain sends over two, of the same bytes
// from a file in memory into one buffer: 0.9 of it on tcp.
//
// All are sampled in turn, a whole chunk each; of_best is the median over the rounds of the lane's
// rate by the round's best floor. copied: the receiver copies each reply from its slot to its place
// in the chunk, as a fetch does; else it leaves it in the slot.

#include <benchmark/benchmark.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "proto/base/status.h"
#include "tests/bench/floor.h"
#include "tests/bench/lanes/lane_ends.h"
#include "tests/bench/lanes/tcp_floor.h"
#include "transport/fabric.h"

namespace ckv::bench {
namespace {

constexpr size_t kBodyBytes = 512u << 10;
constexpr size_t kChunkBytes = 128 * kBodyBytes;  // 64 MiB: 2048 rows of V2-Lite's 27 layers
constexpr uint32_t kHeadBytes = 64;

// The holder's chunk, in a memory file, and its destination.
struct Chunk {
  Chunk() : file(memfd_create("chunk", MFD_CLOEXEC)), landed(kChunkBytes) {
    CKV_CHECK(file.valid() && ftruncate(file.get(), kChunkBytes) == 0);
    void* base = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    CKV_CHECK(base != MAP_FAILED);
    bytes = {static_cast<std::byte*>(base), kChunkBytes};
    std::memset(base, 0x5a, kChunkBytes);
  }
  ~Chunk() { munmap(bytes.data(), bytes.size()); }

  UniqueFd file;
  std::span<std::byte> bytes;
  Buffer landed;
};

// Runs `send` on its own thread and `receive` on this one at the same time. Returns the seconds of
// both.
double SecondsOfPush(const std::function<void()>& send, const std::function<void()>& receive) {
  std::atomic<bool> go{false};
  std::thread sender([&] {
    go.wait(false);
    send();
  });
  const double seconds = SecondsOf([&] {
    go = true;
    go.notify_one();
    receive();
    sender.join();
  });
  return seconds;
}

double PushBySendfile(const TcpPair& pair, const Chunk& chunk) {
  return SecondsOfPush(
      [&] {
        off_t at = 0;
        while (at < static_cast<off_t>(kChunkBytes)) {
          const ssize_t sent = sendfile(pair.a.get(), chunk.file.get(), &at, kBodyBytes);
          CKV_CHECK(sent > 0);
        }
      },
      [&] { CKV_CHECK(ReceiveWhole(pair.b.get(), chunk.landed.bytes().first(kChunkBytes))); });
}

// Half of the chunk per connection.
double PushOverTwo(const TcpPair (&pairs)[2], const Chunk& chunk) {
  return SecondsOf([&] {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      const size_t at = i * kChunkBytes / 2;
      threads.emplace_back([&, i, at] {
        CKV_CHECK(SendBlocking(pairs[i].a.get(), chunk.bytes.subspan(at, kChunkBytes / 2)));
      });
      threads.emplace_back([&, i, at] {
        CKV_CHECK(
            ReceiveBlocking(pairs[i].b.get(), chunk.landed.bytes().subspan(at, kChunkBytes / 2)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Spins for as long as a daemon would, then sleeps: with fewer than two free CPUs a spinner takes
// the one that its peer needs.
template <typename LaneType>
class Waiter {
 public:
  explicit Waiter(LaneType& lane) : lane_(lane) {}

  // After every Poll.
  void Polled(bool came) {
    if (came) {
      empty_polls_ = 0;
      return;
    }
    CKV_CHECK(lane_.status().ok());
    if (++empty_polls_ < kSpinPolls || !lane_.Arm()) return;
    pollfd entry = {lane_.event_fd(), POLLIN, 0};
    (void)poll(&entry, 1, -1);
    lane_.Disarm();
  }

 private:
  static constexpr int kSpinPolls = 100;  // of 0.3 us on tcp
  LaneType& lane_;
  int empty_polls_ = 0;
};

// The requester requests as many bodies at once as there are slots; request k is for body k.
double PushOverLane(LanePair& pair, const Chunk& chunk, bool copied) {
  constexpr size_t kBodyCount = kChunkBytes / kBodyBytes;
  return SecondsOfPush(
      [&] {
        std::vector<Arrival> arrivals(pair.serve->shape().slot_count);
        Waiter waiter(*pair.serve);
        size_t answered = 0;
        bool gathering = false;
        while (answered < kBodyCount || gathering) {
          const size_t count = pair.serve->Poll(arrivals);
          for (size_t i = 0; i < count; ++i) {
            const auto body = static_cast<uint32_t>(arrivals[i].bytes);
            const std::span<const std::byte> run =
                chunk.bytes.subspan(body * kBodyBytes, kBodyBytes);
            std::memset(pair.serve->reply(arrivals[i].slot).data(), 1, kHeadBytes);
            CKV_CHECK(
                pair.serve->PostGather(arrivals[i].slot, kHeadBytes, {&run, 1}, RegionType::kHost)
                    .ok());
          }
          answered += count;
          gathering = false;
          for (uint32_t slot = 0; slot < pair.serve->shape().slot_count; ++slot) {
            gathering |= pair.serve->gathering(slot);
          }
          waiter.Polled(count > 0 || (answered == kBodyCount && !gathering));
        }
      },
      [&] {
        std::vector<uint32_t> body_of(pair.request->shape().slot_count);
        Waiter waiter(*pair.request);
        Completion completion;
        size_t requested = 0;
        for (size_t done = 0; done < kBodyCount;) {
          while (requested < kBodyCount) {
            const std::optional<uint32_t> slot = pair.request->Acquire();
            if (!slot) break;
            body_of[*slot] = static_cast<uint32_t>(requested);
            CKV_CHECK(pair.request->Post(*slot, static_cast<uint32_t>(requested++)).ok());
          }
          const size_t count = pair.request->Poll({&completion, 1});
          waiter.Polled(count > 0);
          if (count == 0) continue;
          const auto body = pair.request->reply(completion.slot).subspan(kHeadBytes, kBodyBytes);
          if (copied) {
            std::memcpy(chunk.landed.bytes().data() + body_of[completion.slot] * kBodyBytes,
                        body.data(), kBodyBytes);
          }
          pair.request->Release(completion.slot);
          ++done;
        }
      });
}

void BM_Push(benchmark::State& state, std::unique_ptr<Fabric> (*make)(Clock*)) {
  Unpin();  // four threads share the available CPUs
  const auto slots = static_cast<uint32_t>(state.range(0));
  const bool copied = state.range(1) != 0;
  const Chunk chunk;
  const TcpPair one = ConnectTcp();
  const TcpPair two[2] = {ConnectTcp(), ConnectTcp()};
  const std::unique_ptr<Fabric> fabric = make(Clock::Real());
  LanePair pair = MakePair(*fabric, {slots, 64u << 10, kHeadBytes + kBodyBytes});
  std::vector<double> sendfile_s, two_s, lane_s, of_best;
  const auto round = [&] {
    sendfile_s.push_back(PushBySendfile(one, chunk));
    two_s.push_back(PushOverTwo(two, chunk));
    lane_s.push_back(PushOverLane(pair, chunk, copied));
    of_best.push_back(std::min(sendfile_s.back(), two_s.back()) / lane_s.back());
  };
  round();
  sendfile_s.clear(), two_s.clear(), lane_s.clear(), of_best.clear();
  for (auto _ : state) round();
  constexpr double kGiga = 1e9;
  state.counters["sendfile_gbs"] = kChunkBytes / Median(sendfile_s) / kGiga;
  state.counters["two_gbs"] = kChunkBytes / Median(two_s) / kGiga;
  state.counters["lane_gbs"] = kChunkBytes / Median(lane_s) / kGiga;
  state.counters["of_best"] = Median(of_best);
}

void Windows(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"slots", "copied"})
      ->ArgsProduct({{2, 4, 16}, {0, 1}})
      ->Iterations(25)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(BM_Push, tcp, &NewTcpFabric)->Apply(Windows);
BENCHMARK_CAPTURE(BM_Push, shm, &NewShmFabric)->Apply(Windows);

}  // namespace
}  // namespace ckv::bench
